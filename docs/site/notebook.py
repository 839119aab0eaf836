"""Notebook as a page of Markdown with its pictures."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal
LONGEST_OUTPUT = 4000  # characters


def notebook_page(notebook: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Returns the page, and its pictures by file name.

    A notebook that was not executed has no outputs.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            parts.extend(_output_parts(output, pictures))
    return "\n\n".join(parts) + "\n", pictures


def _output_parts(output: Mapping[str, Any], pictures: dict[str, bytes]) -> Iterator[str]:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"tutorial-{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode(data["image/png"])
        yield f"![What the cell has drawn]({name})"
        return
    text = output.get("text") or data.get("text/plain") or ()
    plain = ESCAPES.sub("", "".join(text)).rstrip()[:LONGEST_OUTPUT]
    if plain:
        yield f"```text\n{plain}\n```"
