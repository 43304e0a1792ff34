"""Numbers that backends compute with, beside their operands."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from eqlayers_kernels.host import on_device

from ..torch_internals import as_constant, outside_of_func, outside_of_traces


class Constants:
    """Tensors that follow from a form alone, kept on the host; see :func:`eqlayers_kernels.host.on_device`."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Tensor] = {}

    def __call__(self, key: Hashable, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """The tensor of that key on a device; ``make()`` makes it on the host when it is first asked for."""
        found = self._kept.get(key)
        if found is not None and device.type == "cpu":
            return as_constant(found)
        with outside_of_traces(), outside_of_func(), torch.inference_mode(False):
            if found is None:
                self._kept[key] = make()
            found = on_device(self._kept, key, device)
        return as_constant(found)
