"""A flame graph's widths are shares of samples, below the function that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speed.flames import draw, read_stacks

STACKS = [
    "main (a/b/main.py:1);work (a/b/work.py:7);sum (a/b/work.py:9) 30",
    "main (a/b/main.py:2);work (a/b/work.py:8) 10",
]


def test_lines_of_one_function_are_one_frame() -> None:
    (main,) = read_stacks(STACKS).inner.values()
    (work,) = main.inner.values()
    assert (main.name, main.samples, work.samples) == ("main b/main.py", 40, 40)
    assert {name: one.samples for name, one in work.inner.items()} == {"sum b/work.py": 30}


def test_stacks_outside_the_function_asked_for_do_not_count() -> None:
    root = read_stacks([*STACKS, "main (a/b/main.py:3);other (a/b/other.py:1) 60"], within="work")
    assert root.samples == 40 and list(root.inner) == ["work b/work.py"]


def test_a_function_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="'nobody'"):
        read_stacks(STACKS, within="nobody")


def test_each_frame_of_a_percent_is_drawn(tmp_path: Path) -> None:
    draw(read_stacks([*STACKS, "main (a/b/main.py:3);rare (a/b/rare.py:1) 0"]), tmp_path / "flames.svg")
    drawn = (tmp_path / "flames.svg").read_text(encoding="utf-8")
    assert "work b/work.py 100 %" in drawn and "sum b/work.py 75 %" in drawn and "rare" not in drawn
