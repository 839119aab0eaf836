"""Pins the images named in .env to the registry's digests of today.

`make base-digest` runs it. All of them are pinned or the file stays as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / ".env"
LINE = re.compile(r"(?P<variable>LPSFED_[A-Z]+_IMAGE)=(?P<image>[^@\s]+)(?:@\S*)?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SECONDS = 120.0


def ask_engine(*words: str) -> str:
    """Returns the output of a docker command, or nothing if it fails.

    Raises ValueError if there is no docker.
    """
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        raise ValueError("expected a docker command, got none") from None
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_digest(image: str) -> str:
    """Returns an image's digest from its registry, else the digest that was pulled."""
    found = ask_engine("buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}")
    if not DIGEST.fullmatch(found):
        pulled = ask_engine("image", "inspect", image, "--format", '{{join .RepoDigests " "}}')
        found = next((name.partition("@")[2] for name in pulled.split()), "")
    if not DIGEST.fullmatch(found):
        raise ValueError(f"{image}: expected a digest from its registry, got none (no registry, or an image made here)")
    return found


def pin_images(text: str) -> str:
    """Returns the file's text with each image's digest of today."""
    lines = []
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        lines.append(f"{match['variable']}={match['image']}@{find_digest(match['image'])}" if match else line)
    return "\n".join(lines) + "\n"


def main() -> int:
    try:
        text = pin_images(FILE.read_text(encoding="utf-8"))
    except ValueError as error:
        sys.stderr.write(f"base-digest: {error}; {FILE.name} stays as it is\n")
        return 1
    part = FILE.with_name(f"{FILE.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, FILE)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
