"""Explain which backend runs each layer of a model, and why others do not."""

from __future__ import annotations

import torch

from ..core.checks import check_device, check_dtype, check_module
from .base.module import EquivariantModule
from .tensor_product.module import TensorProduct


def explain(
    module: torch.nn.Module | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> str:
    """Explain which backend runs the layers of ``module`` on ``device``, and why the others do not.

    Args:
        module: A layer or a model; None for a small tensor product.
        device, dtype: Device and dtype of the tensors.

    Returns:
        Text, one line per call and backend.

    Raises:
        ConfigError: ``module`` is no module. DeviceError, DTypeError: There is no such device or dtype.

    Example:
        >>> print(explain())  # doctest: +ELLIPSIS
        TensorProduct on cpu, torch.float32, backend=auto
          all 1 paths: cpu runs
        ...
    """
    dtype, device = check_dtype("dtype", dtype), check_device("device", device)
    if module is None:
        return TensorProduct("0e", "0e", "0e", [(0, 0, 0, "uuu", False)]).explain(device, dtype)
    named = check_module("module", module, "a torch.nn.Module or None").named_modules()
    layers = [(name, m) for name, m in named if isinstance(m, EquivariantModule) and m.whole_call(dtype, device)]
    parts = [(f"{name}: " if name else "") + layer.explain(device, dtype) for name, layer in layers]
    return "\n".join(parts) or f"{type(module).__name__} holds no product layers"
