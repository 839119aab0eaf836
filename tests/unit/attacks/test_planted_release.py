"""The release that a noised client keeps for a repeated round was sent as stored, whoever wrote it.

Who: whoever can write the silo's state directory, and has not the client's key. What they got: an update without noise,
or any other content, that the gate took for the round's charged release.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from client_service.privacy.accounting import FOLDER
from client_service.privacy.guard import NAME
from tests.unit.client_service.privacy.test_guard import AT, UPDATE, at_round, charged, guard, sent


def plant(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """These arrays under the head that is there."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file(arrays, path, metadata=metadata)


def test_a_release_that_somebody_else_wrote_is_drawn_anew_and_charged(tmp_path: Path) -> None:
    first = sent(guard(tmp_path).release(UPDATE, AT))
    plant(tmp_path / FOLDER / NAME, {name: np.asarray(value) for name, value in UPDATE.arrays.items()})
    again = guard(tmp_path).release(UPDATE, AT)
    assert again is not None and all((again.arrays[name] != UPDATE.arrays[name]).any() for name in UPDATE.arrays)
    assert sent(again) != first and [entry["round"] for entry in charged(tmp_path)] == [1, 1]


def test_a_planted_head_cannot_make_a_release_cheap(tmp_path: Path) -> None:
    """The charges of a release that was not charged yet stand in the same file."""
    one = guard(tmp_path)
    one.release(UPDATE, AT)
    path = tmp_path / FOLDER / NAME
    with safe_open(path, framework="numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    occasion = at_round(2)
    head = metadata["head"].replace(AT.name("1" * 64), occasion.name("1" * 64)).replace("3.0", "3000.0")
    save_file(arrays, path, metadata=metadata | {"head": head})
    guard(tmp_path).release(UPDATE, occasion)
    assert [entry["charges"]["tensors"][1] for entry in charged(tmp_path)] == [3.0, 3.0]
