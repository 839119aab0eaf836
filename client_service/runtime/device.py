"""Chooses the torch device (auto, cpu, cuda), with the reason in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from threadpoolctl import threadpool_limits

from shared.errors import SettingsError

if TYPE_CHECKING:
    import torch

DeviceChoice = Literal["auto", "cpu", "cuda"]


def pin_threads(count: int) -> None:
    """Sets the number of CPU threads of linear algebra and torch.

    Torch's is set for the calling thread. Sums depend on how they are split: the same number everywhere is part of
    what makes runs repeatable.
    """
    import torch  # it takes seconds, and code that only reads settings does not need it
    from scipy.linalg import blas  # scipy has a library of its own: loaded later, it would have all cores

    del blas
    threadpool_limits(count)
    torch.set_num_threads(count)


def choose_device(wish: DeviceChoice) -> tuple[torch.device, str]:
    """Chooses the torch device, and describes the reason.

    Raises SettingsError if `cuda` is set and there is no such device.
    """
    import torch

    available = torch.cuda.is_available()
    if wish == "cuda" and not available:
        raise SettingsError(f"device: 'cuda' is set, but torch {torch.__version__} finds no CUDA device")
    if wish == "cpu" or not available:
        return torch.device("cpu"), "as set" if wish == "cpu" else "torch finds no CUDA device"
    return torch.device("cuda"), f"torch finds {torch.cuda.get_device_name(0)}"
