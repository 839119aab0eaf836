"""A wish for a device -> the device and a reason."""

from __future__ import annotations

import pytest
import torch

from client_service.runtime.device import DeviceChoice, choose_device
from shared.errors import SettingsError


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
