"""Tensors that are cached on the host and copied to a device in each call."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")


class HostTensors(Generic[Key]):
    """Tensors by key, cached on the host.

    No tensor is cached on a device: a call may run in the memory pool of a CUDA graph, which later calls overwrite. A
    copy from page-locked memory can be part of such a graph.
    """

    def __init__(self) -> None:
        self.on_host: dict[Key, Tensor] = {}
        self._locked: set[Key] = set()  # keys in page-locked memory: querying a tensor takes as long as a copy

    def on_device(self, key: Key, device: torch.device) -> Tensor:
        """The tensor under ``key`` on a device, for one call."""
        if device.type != "cuda":
            return self.on_host[key].to(device)
        if key not in self._locked:  # threads may do so twice
            self.on_host[key] = self.on_host[key].pin_memory()
            self._locked.add(key)
        return self.on_host[key].to(device, non_blocking=True)
