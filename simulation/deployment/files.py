"""What all deployments need: a number of silos that is in range, templates, and files replaced by new texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared.errors import SettingsError
from shared.files import PUBLIC

TEMPLATES = Path(__file__).parent / "templates"
BasisKind = Literal["off", "exact", "iterated"]


def require_silos(silos: int, most: int, reason: str) -> int:
    """The number itself. SettingsError, with the reason of the limit, outside of 1 to `most`."""
    if not 1 <= silos <= most:
        raise SettingsError(f"--silos: expected 1 to {most}, {reason}, got {silos}")
    return silos


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """A template's text with these values; one that is missing is an error."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        line_statement_prefix="#:",
        keep_trailing_newline=True,
        autoescape=False,  # YAML; where a value comes from somebody, its caller has held it to what YAML reads as it is
    )
    return environment.get_template(name).render(values)


def write_files(texts: Mapping[Path, str]) -> tuple[Path, ...]:
    """Replace each file by its text. SettingsError where that is not possible."""
    for path, text in texts.items():
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(PUBLIC)  # containers of other users read some of them, and no secret is in any
        except OSError as error:
            raise SettingsError(f"{path}: expected a place for a file, got none ({error.strerror})") from None
    return tuple(texts)
