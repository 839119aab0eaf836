"""The device that is chosen with its reason, and the threads of all libraries."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from client_service.runtime.device import DeviceChoice, choose_device
from shared.errors import SettingsError
from tests.support.questions import LONGEST_SECONDS

PINNED = """
import os
from threadpoolctl import threadpool_info
from client_service.runtime.device import pin_threads

pin_threads(1)
import scipy.sparse.linalg
libraries = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
assert len(libraries) > 1 and {pool["num_threads"] for pool in libraries} == {1}, libraries
"""


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")


@pytest.mark.parametrize(
    ("wish", "cuda", "device", "reason"),
    [
        ("auto", False, "cpu", "torch finds no CUDA device"),
        ("auto", True, "cuda", "torch finds card 0"),
        ("cuda", True, "cuda", "torch finds card 0"),
        ("cpu", False, "cpu", "as set"),
        ("cpu", True, "cpu", "as set"),
    ],
)
def test_a_wish_is_a_device_and_a_reason(
    monkeypatch: pytest.MonkeyPatch, wish: DeviceChoice, cuda: bool, device: str, reason: str
) -> None:
    pretend(monkeypatch, cuda=cuda)
    assert choose_device(wish) == (torch.device(device), reason)


def test_a_demand_for_cuda_is_never_quietly_met_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=False)
    with pytest.raises(SettingsError, match="'cuda' is set"):
        choose_device("cuda")


def test_threads_are_pinned_in_libraries_that_are_loaded_later_too() -> None:
    """scipy has linear algebra of its own; sums of another number of threads end in other bytes."""
    own = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    subprocess.run([sys.executable, "-c", PINNED], env=own, check=True, timeout=LONGEST_SECONDS)
