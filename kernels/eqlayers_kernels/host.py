"""Tensors that are kept on the host and copied to a device in each call."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")


def on_device(kept: MutableMapping[Key, Tensor], key: Key, device: torch.device) -> Tensor:
    """The tensor of that key on a device, for one call.

    None is kept on a device: a call may run in the memory pool of a CUDA graph, which later calls write to. A copy from
    page-locked memory can be part of such a graph.
    """
    found = kept[key]
    if device.type == "cpu":
        return found
    if device.type == "cuda" and not found.is_pinned():  # threads may do so twice
        found = kept[key] = found.pin_memory()
    return found.to(device, non_blocking=True)
