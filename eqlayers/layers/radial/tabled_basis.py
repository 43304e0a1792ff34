"""Radial functions by interpolation: they are computed at a few knots in place of many edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.checks import check_choice, check_floating, check_integer, check_module, check_number
from ...core.errors import ConfigError, IndexRangeError, ShapeError
from ..base.module import KeepsFloat64
from ..pointwise.run import run_formula
from ..tensor_product.tabled_weights import TabledWeights
from .knots import gradients, knot_rows, lagrange_rows, slope, spline, spline_rows
from .lower import INTERPOLATIONS, TO_COEFFICIENTS, coefficients_formula

MOST_KNOTS = 1 << 14
_FEW = 320


class Knots(KeepsFloat64):
    """Equally spaced lengths, and where other lengths lie among them; ConfigError for arguments out of range.

    The place on the axis is computed in float64, so a length lies in the same interval in every dtype. Lengths go from
    the start to the cutoff, in Angstrom. At the cutoff the function is 0 with its slope (end 'level'), with its
    curvature, too ('flat'), or anything ('open'); second derivatives may jump at one knot, the ``kink``.
    """

    at: Tensor
    kept_in_float64 = ("at",)

    def __init__(
        self,
        count: int,
        cutoff: float,
        start: float = 0.0,
        interpolation: str = "spline",
        end: str = "level",
        kink: int | None = None,
    ) -> None:
        super().__init__()
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        self.start = check_number("start", start, at_least=0, unit=" of Angstrom")
        if self.start >= self.cutoff:
            raise ConfigError(f"start must be below the cutoff, {self.cutoff:g}, got {start}. 0.5 is usual.")
        self.interpolation = check_choice("interpolation", interpolation, INTERPOLATIONS)
        self.count = check_integer("knots", count, 6, MOST_KNOTS, fix="256 is usual.")
        self.end, self.kink = end, kink
        self.step = (self.cutoff - self.start) / (self.count - 1)
        at = torch.linspace(self.start, self.cutoff, self.count, dtype=torch.float64)
        self.register_buffer("at", at, persistent=False)

    @property
    def rows(self) -> int:
        """Rows of a table."""
        return rows_of(self.count, self.interpolation)

    def forward(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The places where lengths ``[E]`` Angstrom read a table: intervals ``[E]`` int64, coefficients ``[E, reads]``.

        ShapeError or DTypeError for others; lengths below the start are an IndexRangeError on the CPU, and NaN
        elsewhere.
        """
        if check_floating("lengths", lengths, "[E]").ndim != 1:
            raise ShapeError(f"lengths must be [E], got {list(lengths.shape)}. Flatten them.")
        end = self.count - 1
        exact = lengths.double()
        place = ((exact - self.start) / self.step).clamp(max=end)  # beyond, slopes are 0, too
        position = place.detach().nan_to_num()
        below = exact.detach() < self.start * (1 - 2**-23)  # the start in float32 is none
        factor = torch.where(below, math.nan, (position < end).to(lengths.dtype))  # nothing is extrapolated
        looked = self.start and lengths.device.type == "cpu" and not torch.compiler.is_compiling()
        if looked and bool(below.any()):
            raise IndexRangeError(
                f"lengths must be at least {self.start:g} Angstrom, where the table begins, got "
                f"{float(lengths.detach().min()):.4g}. Lower start, or look at the structure."
            )
        first = position.floor().clamp(0, end - 1)
        u = place - first
        operands = (u.to(lengths.dtype).unsqueeze(1), factor.unsqueeze(1))
        (coefficients,) = run_formula(_formula(self.interpolation), operands)
        return first.long(), coefficients

    def table(self, at: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``[rows, W]``: the table of a function from the lengths ``[count]`` of the knots to ``[count, W]``."""
        way, live = INTERPOLATIONS[self.interpolation], torch.is_grad_enabled()
        if self.interpolation == "spline":
            return whole(spline_rows(function(at), self.end, self.kink))
        if self.interpolation == "lagrange":
            return whole(lagrange_rows(function(at)), self.interpolation)
        with gradients():
            at = at.clone().detach().requires_grad_()
            derivatives = [function(at)]
            for order in range(1, way.derivatives + 1):
                derivatives.append(self.step * slope(derivatives[-1], at, live or order < way.derivatives))
        rows = whole(knot_rows(derivatives[0], derivatives[1:]), self.interpolation)
        return rows if live else rows.detach()

    def ends(self) -> Tensor:
        """Lengths ``[6]`` by which functions are judged: from the start to just before the cutoff, and the cutoff."""
        parts = self.at.new_tensor([0.0, 0.25, 0.5, 0.75, 1 - 1e-4])
        return torch.cat([self.start + (self.cutoff - self.start) * parts, self.at[-1:]])

    def extra_repr(self) -> str:
        """Number, reach and interpolation."""
        return f"{self.count} knots from {self.start:g} to {self.cutoff:g} A, {self.interpolation}"


def rows_of(places: int, interpolation: str = "spline") -> int:
    """The number of rows of a table, from its number of knots."""
    way = INTERPOLATIONS[interpolation]
    return way.orders * (places - 1) + len(way.polynomials)


def whole(rows: Tensor, interpolation: str = "spline") -> Tensor:
    """A table ``[R, W]`` of rows ``[..., orders * K, W]``, padded by the rows that the last interval reads."""
    rows = rows.flatten(0, -2)
    way = INTERPOLATIONS[interpolation]
    return torch.nn.functional.pad(rows, (0, 0, 0, len(way.polynomials) - way.orders))


def by_coefficients(table: Tensor, interval: Tensor, coefficients: Tensor, knots: int, pairs: int = 1) -> TabledWeights:
    """Weights of edges from the coefficients ``[pairs * (K + 2), W]`` of splines, in place of a table of these.

    A table that is made in every call has a third of the rows then, and so has its gradient; slopes lose digits in
    float32, see `keeps_coefficients`. Intervals and coefficients are `Knots`' in a table of splines.
    """
    moved = coefficients @ coefficients.new_tensor(TO_COEFFICIENTS)
    if pairs > 1:
        interval = interval + 2 * torch.div(interval, knots, rounding_mode="floor")
    return TabledWeights(table, interval, moved.to(table.dtype))


def keeps_coefficients(knots: int, dtype: torch.dtype) -> bool:
    """Whether a table that is made in every call holds the coefficients of splines, see `by_coefficients`.

    Slopes are differences of coefficients over the distance of knots, so that their roundings grow with the number of
    knots: in float32 1e-5 of the largest slope with 256 knots, 1e-4 with 8,192. Half precision has too few digits.
    """
    return dtype is torch.float64 or (dtype is torch.float32 and knots <= _FEW)


def in_a_row(tables: Iterable[Tensor], pairs: int, knots: int, dtype: torch.dtype) -> Tensor:
    """Join tables of splines with equal numbers of knots into one, in a dtype; one table is read at a time."""
    rows, made = INTERPOLATIONS["spline"].orders * knots, torch.empty(0)
    for place, table in enumerate(tables):
        if not place:
            made = table.new_zeros(rows_of(pairs * knots), table.shape[1], dtype=dtype)
        made[place * rows : (place + 1) * rows] = table[:rows]
    return made


@torch.compiler.assume_constant_result
def _formula(interpolation: str) -> Formula:
    """A formula, made outside of the trace of a compiler, which may come first."""
    return coefficients_formula(interpolation)


class KnotBasis(NamedTuple):
    """Functions of edges by interpolation: where each edge reads, and the functions at the knots.

    Networks that get it in place of ``[E, num_basis]`` functions run at the knots; see `ScalarNetwork`.

    Attributes:
        interval: ``[E]`` int64.
        coefficients: ``[E, 4]``.
        functions: ``[N, num_basis]`` at the knots in float64, one after the other for each pair of species.
        knots: Their number, of each pair.
        end: Of the functions at the cutoff, see `Knots`.
        pairs: Of species.

    Example:
        >>> from eqlayers.nn import BesselBasis, RadialNetwork
        >>> made = TabledBasis(BesselBasis(8, 5.0), 128)(torch.tensor([1.0, 4.0]))
        >>> made.weights(made.table(torch.nn.Linear(8, 3))).weights().shape
        torch.Size([2, 3])
    """

    interval: Tensor
    coefficients: Tensor
    functions: Tensor
    knots: int
    end: str
    pairs: int = 1

    @property
    def basis(self) -> Tensor:
        """The functions in the dtype of the lengths."""
        return self.functions.to(self.coefficients.dtype)

    def weights(self, table: Tensor) -> TabledWeights:
        """The weights of edges from a table of their network."""
        return TabledWeights(table, self.interval, self.coefficients.to(table.dtype), INTERPOLATIONS["spline"].orders)

    def table(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The table of a function of ``basis``."""
        return whole(spline_rows(self._at_knots(function), self.end))

    def live_table(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The coefficients of splines in place of a table, see `by_coefficients`."""
        return spline(self._at_knots(function), self.end).flatten(0, 1)

    def _at_knots(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return function(self.basis).unflatten(0, (-1, self.knots))

    def live_weights(self, table: Tensor) -> TabledWeights:
        """The weights of edges from a live table of their network."""
        return by_coefficients(table, self.interval, self.coefficients, self.knots, self.pairs)


class TabledBasis(KeepsFloat64):
    """Radial functions that are taken at knots; the networks behind them then run at the knots, too.

    It stands where a :class:`eqlayers.nn.BesselBasis` stood. Networks run K rows in place of E, and convolutions read
    weights from their tables. Tables are made in every call, so gradients reach all weights.

    Args:
        basis: A module without parameters from ``[N]`` lengths in Angstrom to ``[N, num_basis]`` functions, 0 with
            their slopes at the cutoff, such as ``BesselBasis``.
        knots: Number of knots from 0 to the cutoff.
        cutoff: Angstrom; the cutoff of the basis if None.

    Raises:
        ConfigError: An argument out of range, or functions that are not 0 at the cutoff.

    Example:
        >>> from eqlayers.nn import BesselBasis
        >>> TabledBasis(BesselBasis(8, 5.0), 128)(torch.tensor([1.0, 4.0])).basis.shape
        torch.Size([128, 8])
    """

    functions: Tensor
    pairs: Tensor | None
    live: Tensor | None
    kept_in_float64 = ("functions",)

    def __init__(self, basis: torch.nn.Module, knots: int = 256, cutoff: float | None = None) -> None:
        super().__init__()
        self.basis = check_module("basis", basis)
        if any(True for _ in self.basis.parameters()):
            raise ConfigError(
                f"basis must be a module without parameters, as its functions are taken once, got "
                f"{type(basis).__name__} with some. Keep them as buffers."
            )
        self.knots = Knots(knots, cutoff_of(basis, cutoff), end=end_of(basis))
        with torch.no_grad():
            functions = self.basis(self.knots.at)
            check_end(self.basis(self.knots.ends()), self.knots.cutoff)
        self.register_buffer("functions", functions, persistent=False)
        self.register_buffer("pairs", None)  # of species with a table; None for tables of the pairs of each call
        self.register_buffer("live", None)  # knots of the tables that were made in every call before these were frozen

    @property
    def num_basis(self) -> int:
        """Number of functions."""
        return self.functions.shape[-1]

    def forward(self, lengths: Tensor) -> KnotBasis:
        """The functions at the knots, and where edges of lengths ``[E]`` Angstrom read them."""
        interval, coefficients = self.knots(lengths)
        knots = self.knots
        return KnotBasis(interval, coefficients, self.functions, knots.count, knots.end)

    def between(self, lengths: Tensor, transform: Transform, first: Tensor, second: Tensor) -> KnotBasis:
        """Knots for functions that depend on the species at both ends, for each pair of species.

        Args:
            lengths: ``[E]`` Angstrom.
            transform: Says by its method ``between`` where the functions are taken instead, of lengths and two species;
                the same with these exchanged.
            first, second: ``[E]`` int64, the species.

        Raises:
            IndexRangeError: The tables are made, and none is for such a pair (found on CPU only).
        """
        codes = pair_codes(first, second)
        basis = self.functions.new_empty(0, 0)
        if self.pairs is None:
            some = codes if codes.shape[0] else codes.new_zeros(1)  # no table has no rows
            known, pair = torch.unique(some, return_inverse=True)
            pair = pair[: codes.shape[0]]
            basis = self.at_pairs(transform, known)
        else:
            known = self.pairs
            pair = torch.searchsorted(known, codes).clamp(max=known.shape[0] - 1)
            looked = codes.device.type == "cpu" and not torch.compiler.is_compiling()
            if looked and bool((known[pair] != codes).any()):
                strange = pair_ends(codes[known[pair] != codes][:1])
                raise IndexRangeError(
                    f"pairs of species must be among those that the tables were made for, got places "
                    f"{[int(one) for one in strange]} of the species. Compress the model for these species, too."
                )
        interval, coefficients = self.knots(lengths)
        knots = self.knots.count
        return KnotBasis(interval + pair * knots, coefficients, basis, knots, self.knots.end, known.shape[0])

    def at_pairs(self, transform: Transform, codes: Tensor) -> Tensor:
        """``[pairs * K, num_basis]`` functions at the knots of each pair, in float64."""
        ends = [one.repeat_interleave(self.knots.count) for one in pair_ends(codes)]
        at = self.knots.at.repeat(codes.shape[0])
        return self.basis(at, transform.between(at, *ends))

    def make_room(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Take the shape of the tensors in a state dict."""
        for name in ("pairs", "live"):
            tensor = state.get(f"{prefix}{name}")
            setattr(self, name, None if tensor is None else torch.empty_like(tensor, device=self.functions.device))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.make_room(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


def pair_codes(first: Tensor, second: Tensor) -> Tensor:
    """One number for each pair of species, in any order."""
    larger = torch.maximum(first, second)
    return larger * (larger + 1) // 2 + torch.minimum(first, second)


def pair_ends(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The larger and the smaller species of pairs."""
    larger = ((8 * codes.double() + 1).sqrt() / 2 - 0.5).floor().long()
    return larger, codes - larger * (larger + 1) // 2


class Transform(Protocol):
    """See :class:`eqlayers.nn.AgnesiTransform`."""

    def between(self, lengths: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """``[E]`` lengths and two species of each to ``[E]`` numbers."""
        ...


def tabled(basis: torch.nn.Module, knots: int | None) -> torch.nn.Module:
    """Functions as they are, or by interpolation between so many knots."""
    return basis if knots is None else TabledBasis(basis, knots)


def cutoff_of(module: object, cutoff: float | None) -> Any:
    """The cutoff of a module, of its envelope or of its functions; None without."""
    return _of_end(module, "cutoff", None) if cutoff is None else cutoff


def end_of(module: object) -> str:
    """How the functions of a module end, see `Knots`: 'flat' if they are 0 at the cutoff with two derivatives."""
    return "flat" if _of_end(module, "continuous", 0) >= 2 else "level"


def _of_end(module: object, name: str, default: Any) -> Any:
    """The end according to the envelope of a module, or to the functions themselves, which need none."""
    basis = getattr(module, "basis", module)
    envelope = getattr(basis, "envelope", None)
    return getattr(basis if envelope is None else envelope, name, default)


def check_end(values: Tensor, cutoff: float) -> None:
    """Raise ConfigError unless functions, of `Knots.ends`, are 0 at the cutoff with their slopes."""
    every, near, last = (float(v.detach().abs().max()) if v.numel() else 0.0 for v in (values, values[-2], values[-1]))
    for what, value, limit in (("", last, 1e-6), (" with their slopes", near, 1e-5 * every)):
        if not value <= limit:
            raise ConfigError(
                f"functions of a table must be 0{what} at the cutoff, {cutoff:g} A, got {value:.3g}. Multiply them "
                "with an envelope such as PolynomialCutoff, and leave out biases."
            )
