"""Flame graph of sampled stacks, root at the top, small enough for a document.

python -m benchmarks.speed.flames STACKS --out picture.svg [--within ROOT]

STACKS: lines of `outer;inner;innermost count`, such as `py-spy record --format raw` writes of a running process. With
--within the graph begins at the first function whose name contains ROOT. Frames of less than 1 % are left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.common import STEADY

LEAST_SHARE = 0.01
LETTERS = 150  # of text that fit across the whole picture
COLOURS = ("#e8b06b", "#e0905a", "#edc98a")
INSIDE = re.compile(r"^(?P<name>\S+) \((?P<file>.*?)(:\d+)?\)$")


@dataclass
class Frame:
    """Function in one stack, with its own samples and its callees'."""

    name: str
    samples: int = 0
    inner: dict[str, Frame] = field(default_factory=dict)


def read_stacks(lines: Iterable[str], within: str = "") -> Frame:
    """Reads all stacks as one tree; raises ValueError without such a function."""
    root = Frame("all")
    for line in lines:
        told, _, count = line.strip().rpartition(" ")
        _add_stack(root, _beginning_at(told.split(";"), within), int(count))
    if not root.samples:
        raise ValueError(f"expected stacks with a function called {within!r}, got none")
    return root


def _beginning_at(stack: list[str], within: str) -> list[str]:
    places = [place for place, name in enumerate(stack) if within in name]
    return stack[places[0] :] if places else []


def _add_stack(root: Frame, stack: list[str], count: int) -> None:
    frame, names = root, [_shorten(name) for name in stack]
    for name in ["", *names] if names else []:
        frame = frame.inner.setdefault(name, Frame(name)) if name else frame
        frame.samples += count


def _shorten(name: str) -> str:
    """Shortens a frame to the function and its file's last two parts."""
    found = INSIDE.match(name)
    return f"{found['name']} {'/'.join(Path(found['file']).parts[-2:])}" if found else name


def draw(root: Frame, out: Path) -> None:
    """Draws each function below its caller, as wide as its share of samples."""
    pyplot.switch_backend("Agg")
    with pyplot.rc_context(STEADY):
        figure, axes = pyplot.subplots(figsize=(11, 0.16 * _depth(root, root) + 0.3), layout="constrained")
        _draw_inside(axes, root, root, 0.0, 0)
        axes.set(xlim=(0, 1), ylim=(_depth(root, root), 0))
        axes.axis("off")
        figure.savefig(out, metadata={"Date": None})
        pyplot.close(figure)


def _depth(frame: Frame, root: Frame) -> int:
    return 1 + max((_depth(one, root) for one in _wide(frame, root)), default=0)


def _wide(frame: Frame, root: Frame) -> list[Frame]:
    return sorted((one for one in frame.inner.values() if one.samples >= LEAST_SHARE * root.samples), key=_by_samples)


def _by_samples(frame: Frame) -> int:
    return -frame.samples


def _draw_inside(axes: Axes, frame: Frame, root: Frame, left: float, level: int) -> None:
    width = frame.samples / root.samples
    axes.barh(level + 0.5, width, 0.96, left, color=COLOURS[level % len(COLOURS)], edgecolor="white", linewidth=0.4)
    told = f"{frame.name} {100 * width:.0f} %"[: int(LETTERS * width)]
    axes.text(left + 0.002, level + 0.5, told if len(told) > 3 else "", va="center", fontsize=6, clip_on=True)
    for one in _wide(frame, root):
        _draw_inside(axes, one, root, left, level + 1)
        left += one.samples / root.samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--within", default="")
    arguments = parser.parse_args()
    draw(read_stacks(arguments.stacks.read_text(encoding="utf-8").splitlines(), arguments.within), arguments.out)


if __name__ == "__main__":
    main()
