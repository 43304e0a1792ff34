"""Tensors that are kept on the host and copied to a device in each call."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")


class HostTensors(Generic[Key]):
    """Tensors by key, kept on the host.

    None is kept on a device: a call may run in the memory pool of a CUDA graph, which later calls write to. A copy from
    page-locked memory can be part of such a graph.
    """

    def __init__(self) -> None:
        self.kept: dict[Key, Tensor] = {}
        self._locked: set[Key] = set()  # in page-locked memory: to ask each tensor takes as long as a copy

    def on_device(self, key: Key, device: torch.device) -> Tensor:
        """The tensor of that key on a device, for one call."""
        if device.type != "cuda":
            return self.kept[key].to(device)
        if key not in self._locked:  # threads may do so twice
            self.kept[key] = self.kept[key].pin_memory()
            self._locked.add(key)
        return self.kept[key].to(device, non_blocking=True)
