"""Equally spaced knots, and cubic splines between them: combinations of rows of a table, by polynomial coefficients."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.formula import Expression, Formula, formula

from ...core.apply import run_program
from ...core.backends.constants import Constants
from ...core.backends.forms import chosen
from ...core.checks import check_floating, check_integer, check_number
from ...core.errors import ConfigError, ShapeError
from ...core.forms.description import Form, register_formula
from ...core.graph import Graph
from ...core.operator import WITH_KERNELS
from ...core.torch_internals import is_plain
from ..base.columns import row_of
from ..base.module import KeepsFloat64, run_formula
from ..tensor_product.lower import scale_program
from .lower import polynomial

MOST_KNOTS = 1 << 14
#: Rows of a table for each knot: the slope, times the distance of knots, the value,
#: and the difference to the next value. A length reads these and the next slope. Slopes of weights are combinations of
#: differences and slopes alone, so they keep the digits of the dtype however near the knots are.
ORDERS = 3
#: The coefficient of each row that a length reads as a polynomial of the offset from the knot before it, 0 to 1:
#: numbers from the constant one on.
POLYNOMIALS = ((0, 1, -2, 1), (1,), (0, 0, 3, -2), (0, 0, -1, 1))
#: ``[4, 4]``: from the coefficients of rows at a length to the coefficients of B-splines.
TO_COEFFICIENTS = (
    (-1 / 2, 0.0, 1 / 2, 0.0), (1 / 6, 2 / 3, 1 / 6, 0.0), (-1 / 6, -1 / 2, 1 / 2, 1 / 6), (0.0, -1 / 2, 0.0, 1 / 2)
)  # fmt: skip
#: Likewise, of the rows of a table of B-splines, which has one for each knot and two more.
B_SPLINES = (
    (1 / 6, -1 / 2, 1 / 2, -1 / 6), (2 / 3, 0, -1, 1 / 2), (1 / 6, 1 / 2, 1 / 2, -1 / 2), (0, 0, 0, 1 / 6)
)  # fmt: skip


@lru_cache
def coefficients_formula(orders: int = ORDERS) -> Formula:
    """The formula from offsets ``[E, 1]`` in an interval and factors ``[E, 1]`` to coefficients ``[E, 4]``."""
    expr = Expression()
    offset, factor = expr.load(0, 0), expr.load(1, 0)
    outputs = [
        expr.multiply(polynomial(expr, offset, numbers), factor)
        for numbers in (POLYNOMIALS if orders > 1 else B_SPLINES)
    ]
    operands = [row_of(name, 1) for name in ("place", "factor")]  # names are part of the key
    return register_formula(formula(expr, operands, [row_of("coefficients", len(outputs))], [outputs]))


class Knots(KeepsFloat64):
    """Equally spaced lengths from 0 to the cutoff, in Angstrom; ConfigError for arguments out of range.

    The offset from a knot is computed in float64, so a length lies in the same interval in every dtype. At the cutoff
    value and slope of functions are 0 (end 'level'), the curvature, too ('flat'), or nothing is ('open'); second
    derivatives may jump at an inner knot, of index ``kink``.
    """

    at: Tensor
    kept_in_float64 = ("at",)

    def __init__(self, count: int, cutoff: float, end: str = "level", kink: int = 0) -> None:
        super().__init__()
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        self.count = check_integer("knots", count, 6, MOST_KNOTS, fix="256 is usual.")
        self.end, self.kink = end, kink
        self.step = self.cutoff / (self.count - 1)
        at = torch.linspace(0.0, self.cutoff, self.count, dtype=torch.float64)
        self.register_buffer("at", at, persistent=False)

    def forward(self, lengths: Tensor, orders: int = ORDERS) -> tuple[Tensor, Tensor]:
        """Intervals ``[E]`` int64 of lengths ``[E]`` Angstrom, and coefficients ``[E, 4]`` of rows of a table.

        ``orders`` 1 is for a table of B-splines. ShapeError or DTypeError for others; negative lengths give NaN.
        """
        if check_floating("lengths", lengths, "[E]").ndim != 1:
            raise ShapeError(f"lengths must be [E], got {list(lengths.shape)}. Flatten them.")
        end = self.count - 1
        exact = lengths.double()
        position = (exact / self.step).clamp(max=end)  # beyond, slopes are 0, too
        number = position.detach().nan_to_num()
        factor = torch.where(exact.detach() < 0, math.nan, (number < end).to(lengths.dtype))  # nothing is extrapolated
        interval = number.floor().clamp(0, end - 1)
        offset = position - interval
        operands = (offset.to(lengths.dtype).unsqueeze(1), factor.unsqueeze(1))
        (coefficients,) = run_formula(_formula(orders), operands)
        return interval.long(), coefficients

    def ends(self) -> Tensor:
        """Lengths ``[6]`` at which functions are checked: from 0 to just before the cutoff, and the cutoff."""
        return torch.cat([self.cutoff * self.at.new_tensor([0.0, 0.25, 0.5, 0.75, 1 - 1e-4]), self.at[-1:]])

    def extra_repr(self) -> str:
        """Number of knots and cutoff."""
        return f"{self.count} knots from 0 to {self.cutoff:g} A"


@torch.compiler.assume_constant_result
def _formula(orders: int) -> Formula:  # compilers do not trace this call
    return coefficients_formula(orders)


def rows_of(knots: int) -> int:
    """The number of rows of a table, from its number of knots."""
    return ORDERS * (knots - 1) + len(POLYNOMIALS)


def whole(rows: Tensor, orders: int = ORDERS) -> Tensor:
    """The table ``[R, W]`` of rows ``[..., 3 * K, W]``, padded by a row that the last interval reads."""
    if orders == 1:
        return rows.flatten(0, -2)
    return torch.nn.functional.pad(rows.flatten(0, -2), (0, 0, 0, len(POLYNOMIALS) - ORDERS))


def spline_rows(values: Tensor, end: str, kink: int = 0, orders: int = ORDERS) -> Tensor:
    """Rows ``[..., 3 * K, W]`` of the table of a cubic spline that approximates ``[..., K, W]`` values at knots.

    No row depends on a value beyond a ``kink``; value and slope there are the means of both sides. With ``orders`` 1
    they are the coefficients of its B-splines, without a kink.
    """
    if orders == 1:
        return spline(values, end)
    if not kink:
        values, slopes = _at_knots(spline(values, end))
    else:
        left = _at_knots(spline(values[..., : kink + 1, :], "open"))
        right = _at_knots(spline(values[..., kink:, :], end))
        values, slopes = (
            torch.cat([a[..., :-1, :], (a[..., -1:, :] + b[..., :1, :]) / 2, b[..., 1:, :]], -2)
            for a, b in zip(left, right, strict=True)
        )
    steps = torch.cat([values[..., 1:, :] - values[..., :-1, :], torch.zeros_like(values[..., :1, :])], -2)
    return torch.stack([slopes, values, steps], -2).flatten(-3, -2)


def spline(values: Tensor, end: str) -> Tensor:
    """Coefficients ``[..., K + 2, W]`` of a cubic B-spline that approximates ``[..., K, W]`` values at the knots.

    With second differences d, the interpolating spline has the coefficients (1 + d / 6)^-1, of which three terms of the
    series are taken: they are exact for cubic polynomials, and each is a sum over five knots, so that a table that is
    made in every step solves nothing. Values are continued by a cubic before the first knot, and behind the last if the
    end is 'open'. 'level' and 'flat': value and slope are 0 there, and the curvature comes from the values or is 0.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapter XII: approximations that reproduce polynomials.
    """
    continued = factors_like(values, _CONTINUED)
    back = torch.zeros_like(values[..., :1, :])
    if end == "open":
        back = continued.flip(0, 1) @ values[..., -4:, :]
    values = torch.cat([continued @ values[..., :4, :], values, back], -2)
    near = [values.narrow(-2, n, values.shape[-2] - 4) for n in range(5)]
    coefficients = (near[1] + near[3]) * _SPLINE[1] + near[2] * _SPLINE[2]
    coefficients = coefficients.add(near[0] + near[4], alpha=_SPLINE[0])
    if end == "open":
        return coefficients
    if end == "flat":
        return torch.cat([coefficients[..., :-1, :], torch.zeros_like(coefficients[..., :3, :])], -2)
    v = [values.narrow(-2, values.shape[-2] - n, 1) for n in (3, 4, 5)]  # from the last knot but one backwards
    last = 2 * v[0] - 0.5 * v[1] + (2 / 27) * v[2]  # a third of the curvature at the end
    return torch.cat([coefficients[..., :-1, :], last, -0.5 * last, last], -2)


_constants = Constants()


def factors_like(like: Tensor, factors: tuple[tuple[float, ...], ...] = TO_COEFFICIENTS) -> Tensor:
    """Factors in the dtype and on the device of a tensor, for which a GPU need not wait, as for a copy of a list."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]  # see `splines`
        return like.new_tensor(factors)
    return _constants((factors, like.dtype), like.device, lambda: torch.tensor(factors, dtype=like.dtype))


def splines(values: Tensor, knots: int, end: str) -> Tensor:
    """Coefficients ``[P * (K + 2), W]`` of `spline` for values ``[P * K, W]`` at the same knots of P pairs of species.

    The map is linear: its factors are edges of a graph from knots to coefficients, so that the kernel of a convolution
    without weights is one call in place of fifty.
    """
    pairs, width = values.shape[0] // knots, values.shape[1]
    # torch's compilers cannot trace the making of constants, and fuse the operators of `spline`
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if traced or not width or chosen(values.device.type, values.dtype, None, "") not in WITH_KERNELS:
        return spline(values.unflatten(0, (-1, knots)), end).flatten(0, 1)
    key = pairs, knots, end
    factors = _constants((*key, values.dtype), values.device, lambda: _edges(*key)[1].to(values.dtype))
    plain = is_plain((values,))
    graph = _graphs.get((key, values.device)) if plain else None
    if graph is None:
        edge_index = _constants((*key, "edges"), values.device, lambda: _edges(*key)[0])
        graph = Graph(edge_index, pairs * knots, pairs * (knots + 2), copy=False)
        if plain:
            _graphs[key, values.device] = graph
    return run_program(_sums(width).calls[True, True], (values, factors, values.new_empty(0)), graph)


#: Graphs by numbers of pairs and knots, end and device: one or two for a model.
_graphs: dict[Any, Graph] = {}


def _edges(pairs: int, knots: int, end: str) -> tuple[Tensor, Tensor]:
    """Edges ``[2, E]`` from values to coefficients, and their factors ``[E, 1]``."""
    one = spline(torch.eye(knots, dtype=torch.float64, device="cpu"), end)
    dst, src = one.nonzero().unbind(1)
    pair = torch.arange(pairs)[:, None]
    ends = [(index + pair * count).flatten() for index, count in ((src, knots), (dst, knots + 2))]
    return torch.stack(ends), one[dst, src].repeat(pairs)[:, None]


@lru_cache
def _sums(width: int) -> Form:
    """The product of W scalars of a sender and the factor of an edge."""
    return Form(scale_program(Irreps([(width, "0e")]), Irreps("0e"), [1.0], "ir_mul"))


#: Factors, in a coefficient of a spline, of values two knots away, one knot away, and at the knot.
_SPLINE = (1 / 36, -10 / 36, 54 / 36)
#: ``[3, 4]``: values at three points before the first knot, from the first four values by a cubic.
_CONTINUED = ((20.0, -45.0, 36.0, -10.0), (10.0, -20.0, 15.0, -4.0), (4.0, -6.0, 4.0, -1.0))


def _at_knots(coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Values and slopes at the knots of a spline, from its coefficients."""
    before, at, behind = (coefficients.narrow(-2, n, coefficients.shape[-2] - 2) for n in range(3))
    return (before + 4 * at + behind) / 6, (behind - before) / 2


def cutoff_of(module: object, cutoff: float | None) -> Any:
    """``cutoff``, or for None the cutoff of a module's envelope or basis; None if they have none."""
    return _of_end(module, "cutoff", None) if cutoff is None else cutoff


def end_of(module: object) -> str:
    """The ``end`` of `Knots` for a module: 'flat' if its functions are 0 at the cutoff with two derivatives."""
    return "flat" if _of_end(module, "continuous", 0) >= 2 else "level"


def _of_end(module: object, name: str, default: Any) -> Any:
    """An attribute of the envelope of a module's basis, or of the basis if it has no envelope."""
    basis = getattr(module, "basis", module)
    envelope = getattr(basis, "envelope", None)
    return getattr(basis if envelope is None else envelope, name, default)


def check_end(values: Tensor, cutoff: float) -> None:
    """Raise ConfigError unless functions are 0 at the cutoff with their slopes; ``values`` are at `Knots.ends`."""
    every, near, last = (float(v.detach().abs().max()) if v.numel() else 0.0 for v in (values, values[-2], values[-1]))
    for what, value, limit in (("", last, 1e-6), (" with their slopes", near, 1e-5 * every)):
        if not value <= limit:
            raise ConfigError(
                f"functions of a table must be 0{what} at the cutoff, {cutoff:g} A, got {value:.3g}. Multiply them "
                "with an envelope such as PolynomialCutoff, and leave out biases."
            )
