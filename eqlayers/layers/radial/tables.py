"""Spline tables: radial networks are evaluated at knots, whose number does not depend on the number of edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...core.checks import check_module
from ...core.errors import ConfigError, IndexRangeError
from ...core.torch_internals import being_traced, is_plain
from ..base.module import KeepsFloat64
from ..tensor_product.tabled_weights import TabledWeights
from .knots import ORDERS, Knots, check_end, cutoff_of, end_of, factors_like, rows_of, spline_rows, splines, whole


class KnotBasis(NamedTuple):
    """Radial functions by interpolation: the interval of each edge, and the functions at the knots.

    Networks run at the knots if this is their input in place of ``[E, num_basis]``; see `ScalarNetwork`.

    Attributes:
        interval: ``[E]`` int64.
        coefficients: ``[E, 4]``.
        functions: ``[N, num_basis]`` at the knots in float64, for each pair of species in turn.
        knots: Number of knots of each pair.
        end: Conditions at the cutoff, see `Knots`.
        pairs: Number of pairs of species.
        kink: Index of the knot at which second derivatives jump, or 0.
        orders: Rows of a table from knot to knot; 1 for coefficients of B-splines.

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
    kink: int = 0
    orders: int = ORDERS

    @property
    def num_rows(self) -> int:
        """Rows of a table."""
        return self.pairs * (self.knots + 2) if self.orders == 1 else rows_of(self.pairs * self.knots)

    @property
    def basis(self) -> Tensor:
        """The functions in the dtype of the lengths."""
        return self.functions.to(self.coefficients.dtype)

    def weights(self, table: Tensor) -> TabledWeights:
        """The weights of edges from a table of their network."""
        return TabledWeights(table, self.interval, self.coefficients.to(table.dtype), self.orders)

    def table(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The table of a function ``[N, num_basis]`` to ``[N, W]``, evaluated on ``basis``."""
        return self.rows(function(self.basis))

    def rows(self, values: Tensor) -> Tensor:
        """The table ``[R, W]`` of splines through values ``[N, W]`` at the knots."""
        values = values.unflatten(0, (-1, self.knots))
        return whole(spline_rows(values, self.end, self.kink, self.orders), self.orders)


class HoldsTables(torch.nn.Module):
    """A module whose buffers ``of_tables`` are None without tables; loading a state dict gives them its shapes."""

    of_tables: tuple[str, ...]

    def allocate_tables(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Allocate buffers with the shapes of the tensors in a state dict."""
        like = next(iter([*self.parameters(), *self.buffers()]))
        for name in self.of_tables:
            tensor = state.get(f"{prefix}{name}")
            setattr(self, name, None if tensor is None else torch.empty_like(tensor, device=like.device))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.allocate_tables(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


class TabledBasis(HoldsTables, KeepsFloat64):
    """Radial functions evaluated at knots, so that the networks that follow run at the knots, too.

    It replaces a :class:`eqlayers.nn.BesselBasis`. Networks run K rows in place of E, and convolutions read
    weights from their tables. Gradients reach all weights of the networks.

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
    of_splines: Tensor | None
    kept_in_float64 = ("functions",)
    of_tables = ("pairs", "live", "of_splines")

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
        self.register_buffer("pairs", None)  # codes of pairs with a table; None: of pairs in each call
        self.register_buffer("live", None)  # number of knots before tables were frozen
        self.register_buffer("of_splines", None)  # there, if frozen tables have coefficients of B-splines

    @property
    def num_basis(self) -> int:
        """Number of functions."""
        return self.functions.shape[-1]

    def forward(self, lengths: Tensor) -> KnotBasis:
        """The functions at the knots, and intervals and coefficients of lengths ``[E]`` Angstrom."""
        knots, orders = self.knots, ORDERS if self.of_splines is None else 1
        interval, coefficients = knots(lengths, orders)
        return KnotBasis(interval, coefficients, self.functions, knots.count, knots.end, orders=orders)

    def between(self, lengths: Tensor, transform: Transform, first: Tensor, second: Tensor) -> KnotBasis:
        """Radial functions that depend on the species of both atoms, at knots for each pair of species.

        Args:
            lengths: ``[E]`` Angstrom.
            transform: Its method ``between`` maps lengths and two species to arguments of the functions, and is
                symmetric in the species.
            first, second: ``[E]`` int64, the species.

        Raises:
            IndexRangeError: Tables are frozen, and none is for a pair (checked on the CPU only).
        """
        codes = pair_codes(first, second)
        basis = self.functions.new_empty(0, 0)
        if self.pairs is None and being_traced():  # the number of pairs that occur would be fixed
            count = transform.num_species
            if count > TRACED_SPECIES:
                raise ConfigError(
                    f"tables of all pairs must be of at most {TRACED_SPECIES} species in a trace, got {count}. "
                    "Freeze the tables of pairs that occur with compress, or do not compile."
                )
            known, pair = torch.arange(count * (count + 1) // 2, device=codes.device), codes
            basis = self.at_pairs(transform, known)
        elif self.pairs is None:
            occurring = codes if codes.shape[0] else codes.new_zeros(1)  # a table must have rows
            known, pair = torch.unique(occurring, return_inverse=True)
            pair = pair[: codes.shape[0]]
            basis = self.at_pairs(transform, known)
        else:
            known = self.pairs
            pair = torch.searchsorted(known, codes).clamp(max=known.shape[0] - 1)
            readable = codes.device.type == "cpu" and not torch.compiler.is_compiling()
            if readable and bool((known[pair] != codes).any()):
                species = pair_ends(codes[known[pair] != codes][:1])
                raise IndexRangeError(
                    f"pairs of species must be among those that the tables were made for, got the "
                    f"species of index {[int(index) for index in species]}. Compress the model for these species, too."
                )
        at, count = self.forward(lengths), self.knots.count
        interval = at.interval + pair * (count + 2 if at.orders == 1 else count)
        return at._replace(interval=interval, functions=basis, pairs=known.shape[0])

    def at_pairs(self, transform: Transform, codes: Tensor) -> Tensor:
        """``[pairs * K, num_basis]`` functions at the knots of each pair, in float64."""
        species = [index.repeat_interleave(self.knots.count) for index in pair_ends(codes)]
        at = self.knots.at.repeat(codes.shape[0])
        return self.basis(at, transform.between(at, *species))


def pair_codes(first: Tensor, second: Tensor) -> Tensor:
    """A code of each unordered pair of species."""
    larger = torch.maximum(first, second)
    return larger * (larger + 1) // 2 + torch.minimum(first, second)


def pair_ends(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The larger and the smaller species of each code of `pair_codes`."""
    larger = ((8 * codes.double() + 1).sqrt() / 2 - 0.5).floor().long()
    return larger, codes - larger * (larger + 1) // 2


class Transform(Protocol):
    """Interface of transforms of lengths, such as :class:`eqlayers.nn.AgnesiTransform`."""

    @property
    def num_species(self) -> int:
        """Number of species."""
        ...

    def between(self, lengths: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """``[E]`` lengths and two species of each to ``[E]`` numbers."""
        ...


def tabled(basis: torch.nn.Module, knots: int | None) -> torch.nn.Module:
    """The basis, or with ``knots`` its `TabledBasis`."""
    return basis if knots is None else TabledBasis(basis, knots)


#: Most species for whose pairs a trace has tables.
TRACED_SPECIES = 12
#: A network that runs at knots, and computes splines of its features: from a function that makes rows of splines
#: of values, functions at the knots, and tensors in place of the network's own (None: its own) to rows of a table.
Rows = Callable[[Callable[[Tensor], Tensor], Tensor, Sequence[Tensor] | None], Tensor]
_FEW = 320


class SplineTable:
    """The spline coefficients of a network over knot intervals.

    The table is computed in every call in training, in a trace, and under a transform of torch.func.
    Otherwise it is cached until a tensor has other values. Values are compared, not versions: averages of
    weights are swapped in and out without a new version. Gradients reach the tensors of a cached table: a backward pass
    that needs them computes the table again, with its graph. Copies have no cached table.

    A table computed in every call holds coefficients of B-splines, up to 320 knots: a third of the rows, and so
    has its gradient. Their slopes are differences of coefficients over the distance of knots: in float32 1e-5 of the
    largest slope is rounding with 256 knots, 1e-4 with 8,192. Half precision has too few digits.

    Args:
        precise: Whether slopes have full precision in training, too.
        on_gpus: Whether tables are cached on GPUs, where each comparison waits for the device.
    """

    def __init__(self, precise: bool = False, on_gpus: bool = False) -> None:
        self.precise, self.on_gpus = precise, on_gpus
        self.last: tuple[list[Tensor], Tensor] | None = None  # set at once, as threads may share a model

    def __call__(
        self, at: KnotBasis, rows: Rows, tensors: Sequence[Tensor], training: bool, dtype: torch.dtype
    ) -> TabledWeights:
        """The weights of edges, from the table, in ``dtype``, of a network with these tensors."""
        if tensors and (self.on_gpus or all(t.is_cpu for t in tensors)) and may_be_kept(tensors, training):
            return at.weights(self._cached(at, rows, tensors, dtype))
        few = dtype is torch.float64 or (dtype is torch.float32 and at.knots <= _FEW)
        if few and not at.kink and not self.precise:
            table = rows(partial(splines, knots=at.knots, end=at.end), at.functions, None)
            return _of_coefficients(at, table.to(dtype))
        return at.weights(rows(at.rows, at.functions, None).to(dtype))

    def _cached(self, at: KnotBasis, rows: Rows, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        def make(of: Sequence[Tensor]) -> Tensor:
            return tabulate(at._replace(functions=of[0]), rows, of[1:], dtype)

        tensors = [at.functions, *tensors]
        values, last = [t.detach() for t in tensors], self.last
        if last is None or last[1].dtype != dtype or not _same(last[0], values):
            with torch.inference_mode(False), torch.no_grad():
                last = self.last = [t.clone() for t in values], make(values)
        graph = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        return _Connected.apply(last[1], make, *tensors) if graph else last[1]

    def __reduce__(self) -> Any:  # of copies and pickles, which have no table
        return SplineTable, (self.precise, self.on_gpus)


class _Connected(torch.autograd.Function):
    """A cached table as a differentiable function of the tensors that it was computed from."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, make: Callable[[Sequence[Tensor]], Tensor], *tensors: Tensor) -> Tensor:
        ctx.make = make
        ctx.save_for_backward(*tensors)
        return table.view_as(table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            tensors = [t.view_as(t) for t in ctx.saved_tensors]  # hooks of the tensors run once, after this backward
            table = ctx.make(tensors)
        inputs = [t for t, need in zip(tensors, needed, strict=True) if need]
        live = torch.is_grad_enabled()
        results = iter(torch.autograd.grad(table, inputs, gradient, create_graph=live, allow_unused=True))
        return None, None, *(next(results) if need else None for need in needed)


def tabulate(at: KnotBasis, rows: Rows, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The table ``[R, W]`` of a network with these tensors, computed in float64 and rounded to ``dtype``.

    Pairs of species are computed one by one, as all of them might take gigabytes in float64.
    """
    exact = [t.double() if t.is_floating_point() else t for t in tensors]
    splines = partial(spline_rows, end=at.end, kink=at.kink, orders=at.orders)
    parts = [rows(splines, one, exact).to(dtype) for one in at.functions.split(at.knots)]
    return whole(torch.cat(parts), at.orders)


def may_be_kept(tensors: Sequence[Tensor], training: bool) -> bool:
    """Whether a table of ``tensors`` may be cached: no training, no trace, no transform of torch.func."""
    trained = training and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return not trained and is_plain(tensors, observed=True)


def _same(known: list[Tensor], values: list[Tensor]) -> bool:
    """Whether tensors have the same numbers, of one dtype and device."""
    return len(known) == len(values) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(known, values, strict=True)
    )


def _of_coefficients(at: KnotBasis, table: Tensor) -> TabledWeights:
    """Weights of edges from a table of coefficients of B-splines, four of which overlap in an interval."""
    if at.orders == 1:
        return at.weights(table)
    coefficients, interval = at.coefficients @ factors_like(at.coefficients), at.interval
    if at.pairs > 1:  # each has two more than knots
        interval = interval + 2 * (interval // at.knots)
    return TabledWeights(table, interval, coefficients.to(table.dtype))
