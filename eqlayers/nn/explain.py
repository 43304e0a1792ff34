"""Which backend runs what, and why not the others, in words."""

from __future__ import annotations

import torch

from ..backends import verdicts
from ..errors import DTypeError
from ..info.build import sparse_product_infos
from ..ops.call import ProductCall
from ..ops.channels import parse
from .base import EquivariantModule


def explain(
    module: torch.nn.Module | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> str:
    """Say which backend runs the layers of ``module`` on ``device``, and what the others answer.

    Args:
        module: A layer or a model; None asks the backends about a small product.
        device, dtype: Of the tensors.

    Returns:
        Text, one line per sparse product and backend.

    Raises:
        DTypeError: No module.

    Example:
        >>> print(explain())  # doctest: +ELLIPSIS
        a small product on cpu, torch.float32
          triton: ...
    """
    if not isinstance(module, torch.nn.Module | None):
        raise DTypeError(f"module must be a torch.nn.Module or None, got {module!r}. Pass a layer or a model.")
    if module is not None:
        named = [(name, m) for name, m in module.named_modules() if isinstance(m, EquivariantModule)]
        parts = [(f"{name}: " if name else "") + m.explain(device, dtype) for name, m in named if _has_calls(m)]
        return "\n".join(parts) or f"{type(module).__name__} holds no sparse products"
    x = torch.empty(0, 1, 1, dtype=dtype, device=device)
    info = sparse_product_infos([0], [0], [0], in1_size=1, in2_size=1, out_size=1)[0].to(device)
    call = ProductCall(parse("u,u->u"), x, x, info, (True, True, True), 0)
    lines = [f"a small product on {device}, {dtype}"]
    lines.extend(f"  {name}: {verdict}" for name, verdict in verdicts(call).items())
    return "\n".join(lines)


def _has_calls(module: EquivariantModule) -> bool:
    return next(iter(module.sample_calls(torch.float32, torch.device("cpu"))), None) is not None
