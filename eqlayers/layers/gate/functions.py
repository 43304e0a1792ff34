"""Activations that users pass, scaled as e3nn scales them: with its estimate of their second moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from e3nn.math import moment
from torch import Tensor

from ...core.checks import check_function, check_items, got
from ...core.errors import ConfigError
from .lower import AS_IT_IS, Act

#: What kernels of formulas know by name.
NAMES: dict[Callable[..., Any], str] = {
    torch.nn.functional.silu: "silu",
    torch.nn.functional.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    torch.nn.functional.tanh: "tanh",
    torch.tanh: "tanh",
}
_CLASSES: dict[type, str] = {torch.nn.SiLU: "silu", torch.nn.Sigmoid: "sigmoid", torch.nn.Tanh: "tanh"}


def _like(f: Any) -> Tensor:
    """A number of the dtype and the device of a function's weights, at which it is evaluated; float64 on the CPU."""
    tensors = [*f.parameters(), *f.buffers()] if isinstance(f, torch.nn.Module) else []
    tensors = [t for t in tensors if t.is_floating_point()]
    return tensors[0].detach() if tensors else torch.zeros((), dtype=torch.float64, device="cpu")


def _constant(f: Callable[[Tensor], Tensor]) -> float:
    like = _like(f)
    with torch.no_grad():
        # e3nn's numbers are always float64, which functions with weights of another dtype refuse
        second = moment(lambda z: _values(f, z.to(like.dtype)).double(), 2, dtype=torch.float64, device=like.device)
    return float(second.pow(-0.5))


_of_function = lru_cache(maxsize=256)(_constant)


def _values(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Values of a function of one number, or an error if it is not one."""
    values: Any = f(z)
    if not isinstance(values, Tensor) or values.shape != z.shape:
        raise ConfigError(
            f"an activation must map a tensor to one of its shape, {list(z.shape)}, got {got(values)}. Pass a function "
            f"of one number, such as torch.tanh."
        )
    return values


class NormalizedFunction(torch.nn.Module):
    """A function divided by the root of its second moment, with e3nn's estimate of it.

    e3nn takes the mean over a million normal numbers of one seed, which differs from the integral by about 1e-3. Layers
    that stand in for e3nn's keep that number, so that checkpoints keep theirs.

    Attributes:
        f: The function.
        cst: The factor; 1 where it is within 1e-4 of it.
        name: Of the activation, '' if kernels do not know it.
    """

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = check_function("an activation", f, "a function or a module")
        fixed = isinstance(f, (FunctionType, BuiltinFunctionType))  # others may hold numbers that change
        constant = _of_function(f) if fixed else _constant(f)
        if not constant < float("inf"):
            raise ConfigError(f"an activation must not be zero everywhere, got {got(f)}. Pass another, or None.")
        self.cst = 1.0 if abs(constant - 1) < 1e-4 else constant
        self.name = NAMES.get(f, "") if fixed else _CLASSES.get(type(f), "")

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        values = self.f(x)
        return values if self.cst == 1.0 else values * self.cst

    def parity(self, tolerance: float = 1e-5, relative: bool = False) -> int:
        """1 of an even function, -1 of an odd one, else 0; by its values at 256 points up to 10, as e3nn tells it."""
        like = _like(self.f)
        x = torch.linspace(0, 10, 256, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            first, second = self(x), self(-x)
        bound = tolerance * float(first.abs().max()) if relative else tolerance
        if float((first - second).abs().max()) < bound:
            return 1
        return -1 if float((first + second).abs().max()) < bound else 0

    def extra_repr(self) -> str:
        """Function and factor."""
        return f"{self.name or getattr(self.f, '__name__', type(self.f).__name__)}, {self.cst:.6g}"


def normalized(acts: Any, count: int, name: str) -> list[NormalizedFunction | None]:
    """The functions of a list, one for each irreps group.

    Raises:
        ConfigError: No list of functions, or a list of another length.
    """
    fix = f"Give {count}, None where nothing is to be done."
    functions = check_items(name, acts, "a list of functions, one for each irreps group", fix)
    if len(functions) != count:
        raise ConfigError(f"{name} must be {count} functions, one for each irreps group, got {len(functions)}. {fix}")
    return [None if act is None else NormalizedFunction(act) for act in functions]


def known(functions: Sequence[NormalizedFunction | None]) -> list[Act] | None:
    """The activations of a formula, or None if kernels do not know one of them."""
    if any(one is not None and not one.name for one in functions):
        return None
    return [AS_IT_IS if one is None else (one.name, one.cst) for one in functions]
