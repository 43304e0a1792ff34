"""Constant tensors of forms, cached per device."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from eqlayers_kernels.host import HostTensors

from ..torch_internals import as_constant, is_plain, outside_of_func, outside_of_traces


class Constants:
    """Tensors that depend on a form alone, cached on the host; see :class:`eqlayers_kernels.host.HostTensors`."""

    def __init__(self) -> None:
        self._tensors: HostTensors[Hashable] = HostTensors()

    def __call__(self, key: Hashable, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """The tensor under ``key`` on a device; ``make()`` computes it on the host at the first call."""
        tensor = self._tensors.on_host.get(key)
        if tensor is not None and device.type == "cpu":
            return as_constant(tensor)
        if tensor is not None and is_plain(()) and not torch.is_inference_mode_enabled():
            return self._tensors.on_device(key, device)
        with outside_of_traces(), outside_of_func(), torch.inference_mode(False):
            if tensor is None:
                self._tensors.on_host[key] = make()
            tensor = self._tensors.on_device(key, device)
        return as_constant(tensor)
