"""Activations scaled to unit second moment, by the integral or by e3nn's estimate, and the gate of eqlayers' models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from e3nn import o3
from e3nn.math import moment
from torch import Tensor

from ...core.apply import as_rows
from ...core.checks import check_choice, check_floating, check_function, got
from ...core.dtypes import broadcast_lead, of_one_dtype
from ...core.errors import ConfigError
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ..base.module import FormulaModule, formula_at_once, run_formula
from .lower import AS_IT_IS, Act, gate_formula

#: Functions that kernels of formulas have, and their names there.
NAMES: dict[Callable[..., Any], str] = {
    torch.nn.functional.silu: "silu",
    torch.nn.functional.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    torch.nn.functional.tanh: "tanh",
    torch.tanh: "tanh",
}
_CLASSES: dict[type, str] = {torch.nn.SiLU: "silu", torch.nn.Sigmoid: "sigmoid", torch.nn.Tanh: "tanh"}


def _like(f: Any) -> Tensor:
    """A tensor with the dtype and device of a function's weights, or float64 on the CPU if it has none."""
    tensors = [*f.parameters(), *f.buffers()] if isinstance(f, torch.nn.Module) else []
    tensors = [t for t in tensors if t.is_floating_point()]
    return tensors[0].detach() if tensors else torch.zeros((), dtype=torch.float64, device="cpu")


def _constant(f: Callable[[Tensor], Tensor]) -> float:
    like = _like(f)
    with torch.no_grad():
        # e3nn samples in float64, which functions with weights of another dtype refuse
        second = moment(lambda z: _values(f, z.to(like.dtype)).double(), 2, dtype=torch.float64, device=like.device)
    return float(second.pow(-0.5))


_of_function = lru_cache(maxsize=256)(_constant)


def _values(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Values of an elementwise function; ConfigError if the shape changes."""
    values: Any = f(z)
    if not isinstance(values, Tensor) or values.shape != z.shape:
        raise ConfigError(
            f"an activation must map a tensor to one of its shape, {list(z.shape)}, got {got(values)}. Pass a function "
            f"of one number, such as torch.tanh."
        )
    return values


class NormalizedFunction(torch.nn.Module):
    """A function f times ``cst``, one over the root of its second moment as estimated by e3nn.

    e3nn's estimate is a mean over a million normal numbers of one seed, about 1e-3 off the integral. Layers
    that replace e3nn's use it, so checkpoints give the same results. ``name`` is '' if kernels do not have f.
    """

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = check_function("an activation", f, "a function or a module")
        fixed = isinstance(f, (FunctionType, BuiltinFunctionType))  # other callables may have parameters that change
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
        """1 for an even function, -1 for an odd one, else 0; by its values at 256 points up to 10, as in e3nn."""
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


def known(functions: Sequence[NormalizedFunction | None]) -> list[Act] | None:
    """Name and factor of each function, as formulas take them; None if kernels lack one of the functions."""
    if any(function is not None and not function.name for function in functions):
        return None
    return [AS_IT_IS if function is None else (function.name, function.cst) for function in functions]


#: name -> (function, whether f(-x) = -f(x), so that it may act on odd scalars)
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "silu": (torch.nn.functional.silu, False),
    "sigmoid": (torch.sigmoid, False),
    "tanh": (torch.tanh, True),
}


@cache
def second_moment(name: str) -> float:
    """Mean of :math:`f(z)^2` for standard normal z, by Gauss-Hermite quadrature in float64."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    values = ACTIVATIONS[name][0](torch.from_numpy(nodes)).numpy()
    return float((weights * values**2).sum() / weights.sum())


class NormalizedActivation(torch.nn.Module):
    r"""An activation divided by the root of its second moment, so that unit variance stays unit variance.

    Args:
        name: 'silu', 'sigmoid' or 'tanh'.

    Raises:
        ConfigError: Another name.

    Example:
        >>> NormalizedActivation("tanh")(torch.zeros(2)).tolist()
        [0.0, 0.0]
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = check_choice("activation", name, ACTIVATIONS)
        self.factor = second_moment(name) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return ACTIVATIONS[self.name][0](check_floating("x", x, "[...]")) * self.factor

    def extra_repr(self) -> str:
        """Name."""
        return self.name


class GatedNonlinearity(FormulaModule):
    r"""Applies an activation to scalars, and multiplies each other irrep by an activated scalar.

    The input has one even scalar for each gated irrep copy, followed by the irreps of the output. The layer is one
    pass over the rows, forward and in every derivative; a tensor that is added to the input, and one that is added to
    the output, are read in the same pass. Activations are part of its formula: the submodules with
    their names are not called.

    Args:
        irreps_out: Irreps of the output; even scalars get ``even``, odd ones ``odd``.
        even, odd, gate: Activations of even scalars, odd scalars and gates.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        irreps_in: Gates, then ``irreps_out``.

    Raises:
        ConfigError: An unknown activation, or one for odd scalars that is not odd.

    Source:
        Weiler et al. 2018, arXiv:1807.02547, section 4.

    Example:
        >>> GatedNonlinearity("8x0e + 4x1o").irreps_in
        4x0e+8x0e+4x1o
    """

    def __init__(
        self,
        irreps_out: Any,
        even: str = "silu",
        odd: str = "tanh",
        gate: str = "sigmoid",
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_out = as_irreps(irreps_out, "irreps_out")
        check_choice("odd", odd, [name for name, (_, is_odd) in ACTIVATIONS.items() if is_odd])
        gates = sum(mul for mul, ir in self.irreps_out if ir.l > 0)
        self.irreps_in = o3.Irreps([(gates, "0e")] if gates else []) + self.irreps_out
        self.num_paths = len(self.irreps_out)
        self._flat, self._out = FlatLayout(self.irreps_in, layout), FlatLayout(self.irreps_out, layout)
        self.even, self.odd, self.gate = (NormalizedActivation(name) for name in (even, odd, gate))
        acts = {(0, p): (act.name, act.factor) for p, act in ((1, self.even), (-1, self.odd))}
        groups = tuple((mul, ir.dim, *acts.get((ir.l, ir.p), AS_IT_IS)) for mul, ir in self.irreps_out)
        #: Index: 2 * (a tensor is added to the input) + (a tensor is added to the output).
        self._formulas = [
            gate_formula(groups, (gate, self.gate.factor), layout, 1 + before, after)
            for before in (False, True)
            for after in (False, True)
        ]

    def forward(self, x: Tensor, added: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        """Activate the input, or the sum of two inputs, and add a third to the output.

        Args:
            x: ``[..., irreps_in.dim]``.
            added: The same, added to x first; None for nothing.
            residual: ``[..., irreps_out.dim]``, added to the output; None for nothing.

        Returns:
            ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The features do not fit the layer, or each other.
        """
        base = self._formulas[2 * (added is not None) + (residual is not None)]
        operands: dict[str, Tensor] = {"x": x}
        if added is not None:
            operands["added"] = added
        if residual is not None:
            operands["residual"] = residual
        if self._out.dim and (results := formula_at_once(base, [*operands.values()], None, self.backend)):
            return results[0]
        for name, value in operands.items():
            (self._out if name == "residual" else self._flat).check(name, value)
        operands = dict(zip(operands, of_one_dtype(**operands), strict=True))
        lead = broadcast_lead(**{name: value.shape[:-1] for name, value in operands.items()})
        if not self._out.dim:
            return x.new_zeros(*lead, 0)
        (z,) = run_formula(base, [as_rows(value, lead) for value in operands.values()], None, self.backend)
        return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])
