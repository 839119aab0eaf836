"""A wish for a device -> the device and a reason."""

from __future__ import annotations

import pytest
import torch

from client_service.device import choose_device
from shared.errors import SettingsError


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")


def test_without_cuda_auto_is_the_cpu_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=False)
    assert choose_device("auto") == (torch.device("cpu"), "torch finds no CUDA device")


def test_with_cuda_auto_is_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=True)
    assert choose_device("auto") == choose_device("cuda") == (torch.device("cuda"), "torch finds card 0")


@pytest.mark.parametrize("cuda", [False, True])
def test_a_wish_for_the_cpu_is_granted(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    pretend(monkeypatch, cuda=cuda)
    assert choose_device("cpu") == (torch.device("cpu"), "as set")


def test_a_demand_for_cuda_is_never_quietly_met_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=False)
    with pytest.raises(SettingsError, match="'cuda' is set"):
        choose_device("cuda")
