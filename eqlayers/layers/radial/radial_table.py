"""Any radial network by interpolation in a table of splines; errors of tables, and the fewest knots for a tolerance."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.checks import check_flag, check_floating, check_function, check_integer, check_number
from ...core.errors import ConfigError, ShapeError
from ..base.module import named_tensors
from ..tensor_product.tabled_weights import TabledWeights
from .knots import MOST_KNOTS, ORDERS, Knots, check_end, cutoff_of, end_of, spline_rows, whole
from .tables import KnotBasis, SplineTable, may_be_kept

#: Largest number of lengths of one call of the network: all at once would take gigabytes for wide networks.
_AT_ONCE = 1 << 10
#: Offsets in every interval in a search: among them the middle, and one with 0.97 of the largest error of slopes.
SAMPLES = 4
#: Number of knots from which on errors must fall at the rate of cubic splines.
_SETTLED = 256
#: Largest denominator of the position of a kink as a fraction of the cutoff.
_PARTS = 32
#: A network, in float64: lengths ``[N]`` to weights ``[N, W]``.
Function = Callable[[Tensor], Tensor]


class TableError(NamedTuple):
    """Largest errors of a table at sampled lengths; rounding may add 8 units, 1e-6 in float32, at other lengths.

    Attributes:
        values: Relative to the largest weight.
        slopes: Relative to the largest slope.

    Example:
        >>> TableError(values=1e-6, slopes=4e-5).slopes
        4e-05
    """

    values: float
    slopes: float


class Deviation(NamedTuple):
    """Errors of the table of a network, and the length in Angstrom at which the slope has the largest error."""

    error: TableError
    at: float
    network: Function


def table_error(
    knots: Knots, network: Function, dtype: torch.dtype = torch.float64, samples: int = 8, orders: int = ORDERS
) -> Deviation:
    """Largest errors of the table of a network at ``samples`` offsets in every interval.

    The table is rounded to ``dtype`` and interpolated in it, as in a model. ``orders`` 1 is a table of B-splines.
    """
    count = samples * (knots.count - 1)
    sizes, errors, worst = [0.0, 0.0], [0.0, 0.0], 0.0
    with gradients():
        with torch.no_grad():
            table = whole(spline_rows(network(knots.at), knots.end, knots.kink, orders), orders).to(dtype)
        # not at knots and quarters of intervals, many of which are numbers of few digits that no dtype rounds
        fine = torch.arange(count, dtype=torch.float64, device=knots.at.device) + 0.01
        for part in fine.split(_AT_ONCE):
            lengths = (knots.cutoff * part / count).to(dtype)
            exact, rounded = (lengths.to(to, copy=True).requires_grad_() for to in (torch.float64, dtype))
            interval, coefficients = knots(rounded, orders)
            values = network(exact)
            pairs = [(values.detach(), coefficients), (slope(values, exact), slope(coefficients, rounded))]
            for n, (right, factors) in enumerate(pairs):
                if right.numel():
                    deviation = (TabledWeights(table, interval, factors, orders).weights() - right).detach().abs()
                    sizes[n] = max(sizes[n], float(right.abs().max()))
                    if not float(deviation.max()) < errors[n]:
                        errors[n] = float(deviation.max())
                        worst = float(lengths[deviation.amax(1).argmax()]) if n else worst
    error = TableError(*(e / size if size else 0 * e for e, size in zip(errors, sizes, strict=True)))
    if not all(map(math.isfinite, error)):
        raise ConfigError("a radial network must be finite up to its cutoff, got NaN or infinity. Look at its weights.")
    return Deviation(error, worst, network)


def largest(errors: Iterable[TableError]) -> TableError:
    """The largest errors of several tables."""
    return TableError(*map(max, zip(*errors, strict=True)))


class _Limit(NamedTuple):
    """The largest number of knots that was tried, its errors, and the reason why the search ended."""

    knots: Knots
    deviation: Deviation
    why: str


def fewest_knots(
    like: Knots, functions: Sequence[Function], dtype: torch.dtype, tolerance: float
) -> tuple[Knots, list[TableError]]:
    """The fewest knots, at least 16, that bound errors of values and slopes of all functions, and these errors.

    Their number is a power of two, or less by estimate. If a second derivative jumps, errors fall slowly. Splines get
    a knot at this length, if equal distances allow it, with another number of knots, and errors fall as usual.
    ConfigError, with the reason, if no number of knots suffices.
    """
    result = _search(like, None, functions, dtype, tolerance)
    if not isinstance(result, _Limit):
        return result
    why, network = result.why, result.deviation.network
    if max(table_error(result.knots, network, samples=SAMPLES).error) <= tolerance:
        why = f"{str(dtype).removeprefix('torch.')} has no more digits"
    elif (kink := _kink(result)) is not None:
        part = Fraction(kink / like.cutoff).limit_denominator(_PARTS)
        if abs(kink / like.cutoff - part) < 1e-9:
            result = _search(like, part, functions, dtype, tolerance)
            if not isinstance(result, _Limit):
                return result
        why = f"{result.why}, and the second derivative jumps at {kink:.6g} A"
    (values, slopes), at, _ = result.deviation
    raise ConfigError(
        f"tolerance must be one that a table can keep, got {tolerance:g}: with {result.knots.count} knots the errors "
        f"of values and slopes are {values:.1e} and {slopes:.1e}, the largest at {at:.3f} A; {why}. Raise the "
        "tolerance, or smooth the network there."
    )


def _search(
    like: Knots, kink: Fraction | None, functions: Sequence[Function], dtype: torch.dtype, tolerance: float
) -> tuple[Knots, list[TableError]] | _Limit:
    """The fewest knots for the tolerance, or the limit at which the search ends; ``kink``: a fraction of the cutoff.

    Numbers of knots are doubled until the errors of the function that was worst are small enough. Then fewer are tried,
    as errors of slopes fall with the third power, and some more, as functions differ.
    """
    count, slow, before, worst = 16, 0, math.inf, functions[0]
    if kink is not None:
        count = 8 * kink.denominator + 1  # some on either side
    while True:
        knots = _knots(like, count, kink)
        of, deviation = worst, table_error(knots, worst, dtype, SAMPLES)
        if max(deviation.error) <= tolerance:
            fewer = 16 * math.ceil(1.05 * count * (max(deviation.error) / tolerance) ** (1 / 3) / 16)
            some = [n for n in (fewer, 16 * math.ceil(1.2 * fewer / 16)) if kink is None and 16 <= n < count]
            for tried in (*(_knots(like, n, None) for n in some), knots):
                errors: dict[Function, TableError] = {}
                for function in sorted(functions, key=lambda one: one is not worst):
                    deviation = table_error(tried, function, dtype, SAMPLES)
                    errors[function] = deviation.error
                    if max(deviation.error) > tolerance:
                        worst = function
                        break
                else:
                    return tried, [errors[function] for function in functions]
        slow = slow + 1 if deviation.network is of and count > _SETTLED and 4 * max(deviation.error) > before else 0
        if slow == 2:
            return _Limit(knots, deviation, "errors no longer fall by a factor of 4 when knots are doubled")
        count, before = 2 * count - (kink is not None), max(deviation.error)
        if count > MOST_KNOTS:
            return _Limit(knots, deviation, f"no more than {MOST_KNOTS} are made")


def _knots(like: Knots, count: int, kink: Fraction | None) -> Knots:
    index = 0 if kink is None else int(kink * (count - 1))
    return Knots(count, like.cutoff, like.end, index).to(like.at.device)


def _kink(limit: _Limit) -> float | None:
    """The length near the largest error at which a second derivative jumps, or None."""
    knots, network = limit.knots, limit.deviation.network

    def curvatures(*lengths: float) -> Tensor:
        at = knots.at.new_tensor(lengths).requires_grad_()
        return slope(slope(network(at), at, True), at).detach()

    low, high = max(0.0, limit.deviation.at - 2 * knots.step), min(knots.cutoff, limit.deviation.at + 2 * knots.step)
    with gradients():
        while high - low > 1e-11 * knots.cutoff:  # into the half over which it changes by more
            middle = (low + high) / 2
            first, second, third = curvatures(low, middle, high)
            low, high = (low, middle) if (second - first).abs().max() > (third - second).abs().max() else (middle, high)
        before, behind = curvatures(low, high)
    return (low + high) / 2 if (behind - before).abs().max() > 1e-3 * before.abs().max() else None


def gradients() -> AbstractContextManager[object]:
    """A context with gradients enabled, and without `torch.inference_mode` unless torch compiles."""
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        return torch.inference_mode(False)
    return torch.enable_grad()


def slope(values: Tensor, at: Tensor, create_graph: bool = False) -> Tensor:
    """Derivative of every column ``[N, W]`` by the length of its row; two calls of autograd give all columns.

    ConfigError: values differ and autograd does not go through them twice.
    """
    factors, slopes = torch.ones_like(values, requires_grad=True), None
    (sums,) = torch.autograd.grad((values * factors).sum(), at, create_graph=True, allow_unused=True)
    if sums is not None and sums.requires_grad:
        (slopes,) = torch.autograd.grad(sums.sum(), factors, create_graph=create_graph, allow_unused=True)
    if slopes is None:
        if bool((values != values[:1]).any()):
            raise ConfigError(
                "a radial network must be one that autograd goes through twice to the lengths, got values that differ "
                "and have no slopes. Leave out detach, rounding and NumPy, or use knots= in place of a tolerance."
            )
        slopes = torch.zeros_like(values)
    return slopes


class RadialTable(torch.nn.Module):
    r"""A radial network by interpolation: the network runs at K knots instead of E lengths.

    .. math:: W(r) \approx \sum_k c_k(u)\, T_{i + k}, \quad i + u = r / h

    The table is computed in every call in training, and gradients reach the network through it: the
    network costs K rows in place of E. Otherwise the table is cached until weights of the network change. The network
    runs in float64, and the table is rounded once: rounding errors would be large in slopes. A
    :class:`eqlayers.TensorProductConv` that gets the result reads the table inside its kernel, so weights of edges are
    never stored.

    Args:
        network: Any function of lengths ``[N]`` to weights ``[N, W]``, row by row, that is 0 at the cutoff with its
            slope, such as :class:`RadialNetwork`. The table of a function that is no module is made in every call.
        cutoff: Angstrom; None for the cutoff of a :class:`RadialNetwork`. Weights of longer edges are 0.
        knots: Number of knots, at equal distances from 0 to the cutoff; between them are cubic splines.
        tolerance: Largest error, see `error`; in place of ``knots``, of which the fewest are chosen.
        open_end: Whether the network need not be 0 at the cutoff, because an envelope multiplies its results.

    Raises:
        ConfigError: An argument out of range, a network that is not finite at 0 or not 0 at the cutoff, or a tolerance
            that no table of 16,384 knots keeps.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapters IX and XII: splines and their errors. They are
        approximations in the sense of the last: their coefficients are sums over the nearest knots, so that a table
        that is made in every call solves nothing.

    Example:
        >>> from eqlayers.nn import RadialNetwork
        >>> table = RadialTable(RadialNetwork(16, cutoff=4.0), knots=256)
        >>> table(torch.tensor([1.0, 2.0, 4.5])).weights().shape
        torch.Size([3, 16])
        >>> table.error().values < 1e-5
        True
    """

    def __init__(
        self,
        network: Callable[[Tensor], Tensor],
        cutoff: float | None = None,
        knots: int = 256,
        *,
        tolerance: float | None = None,
        open_end: bool = False,
    ) -> None:
        super().__init__()
        self.network = check_function("network", network)
        end = "open" if check_flag("open_end", open_end) else end_of(network)
        self.knots = Knots(knots, cutoff_of(network, cutoff), end)
        self._splines = SplineTable(precise=True)
        like = next(self.parameters(), None)
        if like is not None:
            self.knots.to(like.device)
        self.width = self._check_ends()
        if tolerance is not None:
            tolerance = check_number("tolerance", tolerance, above=0, fix="1e-4 is usual.")
            self.knots, _ = fewest_knots(self.knots, [in_float64(network)], self.dtype, tolerance)

    def forward(self, lengths: Tensor, basis: Any = None) -> TabledWeights:
        """The weights of edges by interpolation in the table; ShapeError or DTypeError for other lengths.

        Args:
            lengths: ``[E]`` Angstrom.
            basis: Ignored; an argument of :class:`RadialNetwork`, which the table can replace.
        """
        knots = self.knots
        interval, coefficients = knots(lengths)
        at = KnotBasis(interval, coefficients, knots.at, knots.count, knots.end, kink=knots.kink)
        return self._splines(at, self.rows, self.tensors, self.training, self.dtype)

    def rows(
        self, splines: Callable[[Tensor], Tensor], functions: Tensor, tensors: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Rows of the table from lengths at the knots, with ``tensors`` as parameters and buffers if not None.

        A copy of the network gets these: the network itself is not changed, as threads may share it.
        """
        network = self.network
        if tensors is not None:
            network = _copied(network, {id(t): t for t in self.tensors})
        return splines(through_float64(network, tensors or ())(functions))

    @property
    def tensors(self) -> list[Tensor]:
        """Parameters and buffers of the network; [] for a function that is no module, whose tensors are unknown."""
        network = self.network
        return [*network.parameters(), *network.buffers()] if isinstance(network, torch.nn.Module) else []

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the table."""
        return next(self.parameters(), self.knots.at).dtype

    def error(self, samples: int = 8) -> TableError:
        """Largest differences to the network of values and of slopes, at ``samples`` offsets in every interval.

        The table keeps its dtype; the network runs in float64.

        Args:
            samples: Offsets in each interval, at equal distances.

        Example:
            >>> from eqlayers.nn import RadialNetwork
            >>> coarse, fine = (RadialTable(RadialNetwork(3, cutoff=5.0), knots=knots).error() for knots in (16, 512))
            >>> fine.values < coarse.values, fine.slopes < coarse.slopes
            (True, True)
        """
        samples = check_integer("samples", samples, 2)
        return table_error(self.knots, in_float64(self.network), self.dtype, samples).error

    def _check_ends(self) -> int:
        """The number of weights W; an error unless the network is finite and ends as a table needs."""
        like = next(self.parameters(), self.knots.at)
        with torch.no_grad():
            rows = self.network(self.knots.ends().to(like.dtype))
        check_floating("weights of the network", rows, "[N, W]")
        if rows.ndim != 2 or rows.shape[0] != 6:
            raise ShapeError(f"network must give [N, W] for lengths [N], got {list(rows.shape)} for 6. Correct it.")
        if not bool(torch.isfinite(rows).all()):
            raise ConfigError(
                f"network must be finite from 0 to {self.knots.cutoff:g} A, got NaN or infinity. Clamp its lengths to "
                "the shortest that occurs."
            )
        if self.knots.end != "open":
            check_end(rows, self.knots.cutoff)
        return rows.shape[1]

    def extra_repr(self) -> str:
        """Whether the table is computed in every call, or cached."""
        return "kept while its weights stay" if self.tensors and may_be_kept(self.tensors, self.training) else "live"


def in_float64(network: Any) -> Any:
    """A copy of a module in float64, without the graph of its weights, or ConfigError; functions are returned."""
    if not isinstance(network, torch.nn.Module):
        return network
    with torch.inference_mode(False):  # slopes need weights that autograd can save
        return _copied(network, {}).double()


def _copied(network: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(network, memo)
    except (TypeError, RuntimeError) as error:  # objects that cannot be pickled, or tensors with a graph
        raise ConfigError(
            f"network must be a module that can be copied, got {type(network).__name__}: {error}. Keep generators, "
            "files and tensors with a graph out of it, or pass a function."
        ) from error


def through_float64(network: Any, tensors: Sequence[Tensor] = ()) -> Callable[..., Tensor]:
    """A module as a function in float64, with gradients for its parameters and buffers, or for ``tensors``.

    Other functions are returned unchanged.
    """
    if not isinstance(network, torch.nn.Module):
        return network
    listed = [*network.parameters(), *network.buffers()]
    doubled = {
        id(one): t.double() if t.is_floating_point() else t for one, t in zip(listed, tensors or listed, strict=True)
    }
    state = {name: doubled[id(t)] for name, t in named_tensors(network)}
    return lambda *lengths: torch.func.functional_call(network, state, lengths, tie_weights=False)
