"""Any radial network by interpolation in a table, made in every call or once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.checks import check_flag, check_floating, check_function, check_integer, check_number
from ...core.errors import ConfigError, ShapeError
from ...core.torch_internals import outside_of_func, wrapped_by_func
from ..radial.knots import check_slopes, gradients, may_be_kept, slope
from ..radial.lower import INTERPOLATIONS
from ..radial.module import KeepsTable
from ..radial.tabled_basis import MOST_KNOTS, Knots, check_end, cutoff_of, end_of
from ..tensor_product.tabled_weights import TabledWeights

#: Numbers of float64 that are held at once while errors are looked for: 64 MB.
_AT_ONCE = 1 << 23
#: Places in every interval in a search: among them the middle, and one with 0.97 of the largest error of slopes.
SAMPLES = 4
#: Knots from which on errors have to fall as with cubics.
_SETTLED = 256
#: Equal parts of the axis; a knot may be put at the end of a part.
_PARTS = 32


class TableError(NamedTuple):
    """Largest errors of a table at sampled lengths; between them, rounding adds up to 8 units: 1e-6 in float32.

    Attributes:
        values: Relative to the largest weight.
        slopes: Relative to the largest slope.

    Example:
        >>> TableError(values=1e-6, slopes=4e-5).slopes
        4e-05
    """

    values: float
    slopes: float


class Off(NamedTuple):
    """Errors of the table of a network, and the length in Angstrom at which the slope has the largest error."""

    error: TableError
    at: float
    network: Callable[[Tensor], Tensor]


class RadialTable(KeepsTable):
    r"""A radial network by interpolation: the network runs at K knots instead of E lengths.

    .. math:: W(r) \approx \sum_k c_k(u)\, T_{i + k}, \quad i + u = (r - r_0) / h

    The table is made in every call from the network as it is, and gradients reach the network through it, so it serves
    training: the network costs K rows in place of E. The network runs in float64, and the table is rounded once:
    roundings between knots would be slopes. `freeze` makes it once, for inference. A
    :class:`eqlayers.TensorProductConv` that gets the result reads the table inside its kernel, so weights of edges are
    never stored.

    Args:
        network: Any function of lengths ``[N]`` to weights ``[N, W]``, row by row, that is 0 at the cutoff with its
            slope, such as :class:`RadialNetwork`.
        cutoff: Angstrom; None for the cutoff of a :class:`RadialNetwork`. Weights of longer edges are 0.
        knots: Number of knots, at equal distances from ``start`` to the cutoff.
        tolerance: In place of ``knots``: as few as keep errors, see `error`, at most at this.
        interpolation: 'spline' (cubic, two continuous derivatives), 'hermite' (cubic, one; needs slopes of the
            network), 'quintic' (two; slopes and curvatures) or 'lagrange' (four points, none). Tables that need slopes
            break the graph of ``torch.compile`` unless they are frozen.
        start: Angstrom, the shortest length that the table has. Shorter ones are an error on the CPU, and NaN
            elsewhere, where a look would make the stream wait.
        open_end: Whether the network need not be 0 at the cutoff, as an envelope comes after it.

    Raises:
        ConfigError: An argument out of range, a network that is not finite at the start or not 0 at the cutoff, or a
            tolerance that no table of 16,384 knots keeps.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapters IV, IX and XII: the interpolants and their errors. Splines
        are approximations in the sense of the last: their coefficients are sums over the nearest knots, so that a live
        table solves nothing.

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
        interpolation: str = "spline",
        start: float = 0.0,
        open_end: bool = False,
    ) -> None:
        super().__init__()
        self.network = check_function("network", network)
        self.knots = Knots(
            knots,
            cutoff_of(network, cutoff),
            start,
            interpolation,
            "open" if check_flag("open_end", open_end) else end_of(network),
        )
        like = next(self.parameters(), None)
        if like is not None:
            self.knots.to(like.device)
        self._check_ends()
        if tolerance is not None:
            wanted = check_number("tolerance", tolerance, above=0, fix="1e-4 is usual.")
            self.knots = fewest_knots(self.knots, self._dtype, Errors([in_float64(network)], wanted))

    def forward(self, lengths: Tensor, basis: Any = None) -> TabledWeights:
        """The weights of edges, by where they read the table; errors as of :class:`Knots`.

        Args:
            lengths: ``[E]`` Angstrom.
            basis: Not read; so that the table can stand where a :class:`RadialNetwork` stood.
        """
        knots = self.knots
        table = self._rows() if self.table is None else self._frozen(knots.count, knots.interpolation)
        interval, coefficients = knots(lengths)
        return TabledWeights(table, interval, coefficients.to(table.dtype), INTERPOLATIONS[knots.interpolation].orders)

    def _rows(self) -> Tensor:
        """The table of the weights of now; kept, as `freeze` would make it, except in training.

        A function that is no module may hold weights that nothing here knows of: its table is made in every call.
        """
        network = self.network
        of = [*network.parameters(), *network.buffers()] if isinstance(network, torch.nn.Module) else []
        kept = of and all(t.is_cpu for t in of) and may_be_kept(of, self.training)
        return self._kept(of, self.made_of) if kept else self._made()

    def _made(self) -> Tensor:
        network = through_float64(self.network)
        if not INTERPOLATIONS[self.knots.interpolation].derivatives:
            return self.knots.table(self.knots.at, network).to(self._dtype)
        if any(wrapped_by_func(parameter) for parameter in self.parameters()):
            raise ConfigError(
                f"a table that needs slopes, {self.knots.interpolation!r}, must not be made of weights that a "
                "transform of torch.func goes over. Use interpolation='spline', or freeze it before."
            )
        with outside_of_func():  # in which slopes cannot be had; no length has a part in a table
            return self.knots.table(self.knots.at, network).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        """Dtype of the table."""
        return next(self.parameters(), self.knots.at).dtype

    def freeze(self) -> RadialTable:
        """Make the table once, also for state dicts; ConfigError if the network is not finite, or 0 at the end."""
        self._check_ends()  # training may have moved them
        with gradients(), torch.no_grad():
            self.table = self._made().detach()
        return self

    def made_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The table ``[R, W]`` computed from given parameters and buffers instead of the network's."""
        return self.knots.table(self.knots.at, with_tensors(self.network, tensors)).to(self._dtype)

    def thaw(self) -> RadialTable:
        """Make the table in every call again."""
        self.table = None
        return self

    def error(self, samples: int = 8) -> TableError:
        """Largest difference to the network and of its slope, at so many places in every interval.

        The table keeps its dtype; the network runs in float64.

        Args:
            samples: Places in each interval, at equal distances.

        Example:
            >>> from eqlayers.nn import RadialNetwork
            >>> coarse, fine = (RadialTable(RadialNetwork(3, cutoff=5.0), knots=knots).error() for knots in (16, 512))
            >>> fine.values < coarse.values, fine.slopes < coarse.slopes
            (True, True)
        """
        return table_error(
            self.knots, in_float64(self.network), self._dtype, check_integer("samples", samples, 2)
        ).error

    def _check_ends(self) -> None:
        like = next(self.parameters(), self.knots.at)
        with torch.no_grad():
            rows = self.network(self.knots.ends().to(like.dtype))
        check_floating("weights of the network", rows, "[N, W]")
        if rows.ndim != 2 or rows.shape[0] != 6:
            raise ShapeError(f"network must give [N, W] for lengths [N], got {list(rows.shape)} for 6. Correct it.")
        if not bool(torch.isfinite(rows).all()):
            raise ConfigError(
                f"network must be finite from {self.knots.start:g} to {self.knots.cutoff:g} A, got NaN or infinity. "
                "Raise start."
            )
        if self.knots.end != "open":
            check_end(rows, self.knots.cutoff)
        if INTERPOLATIONS[self.knots.interpolation].derivatives and not wrapped_by_func(rows):
            with gradients():
                at = self.knots.ends().to(like.dtype).requires_grad_()
                values = self.network(at)
                check_slopes(values.detach(), slope(values, at))

    def extra_repr(self) -> str:
        """Whether the table is made in every call, or once."""
        weights = [*self.network.parameters()] if isinstance(self.network, torch.nn.Module) else []
        if self.table is None and weights and not (self.training and any(weight.requires_grad for weight in weights)):
            return "live, kept while its weights stay"
        return "live" if self.table is None else f"frozen, {list(self.table.shape)}"


def in_float64(network: Any) -> Any:
    """A copy of a module in float64, without the graph of its weights, or ConfigError; a function as it is."""
    return _copied(network, {}).double() if isinstance(network, torch.nn.Module) else network


def with_tensors(network: Any, tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
    """A module as a function in float64 with these parameters and buffers; the module is left alone, for threads."""
    shared = {id(t): t for t in (*network.parameters(), *network.buffers())}
    return through_float64(_copied(network, shared), tensors)


def _copied(network: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(network, memo)
    except (TypeError, RuntimeError) as error:  # objects that cannot be pickled, or tensors with a graph
        raise ConfigError(
            f"network must be a module that can be copied, got {type(network).__name__}: {error}. Keep generators, "
            "files and tensors with a graph out of it, or pass a function."
        ) from error


def through_float64(network: Any, tensors: Sequence[Tensor] = ()) -> Callable[..., Tensor]:
    """A module as a function in float64, whose gradients reach its parameters and buffers, or others in their order.

    A function as it is.
    """
    if not isinstance(network, torch.nn.Module):
        return network
    named = dict([*network.named_parameters(), *network.named_buffers()])
    state = {
        name: t.double() if t.is_floating_point() else t
        for name, t in zip(named, tensors or named.values(), strict=True)
    }
    return lambda *lengths: torch.func.functional_call(network, state, lengths)


def table_error(
    knots: Knots, network: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64, samples: int = 8
) -> Off:
    """Largest errors of the table of a network in float64, at so many places within every interval.

    The table is rounded to a dtype and read in it, as it will be. Places are taken some at a time: a network of many
    weights at all of them would take gigabytes.
    """
    count = samples * (knots.count - 1)
    sizes, errors = [0.0, 0.0], [0.0, 0.0]
    worst = knots.start
    with gradients():
        with torch.no_grad():
            table = knots.table(knots.at, network).to(dtype)
        orders = INTERPOLATIONS[knots.interpolation].orders
        # not at knots and quarters of intervals, many of which are numbers of few digits that no dtype rounds
        fine = torch.arange(count, dtype=torch.float64, device=knots.at.device) + 0.01
        for part in fine.split(max(1, _AT_ONCE // (8 * table.shape[1] + 4 * _kept_of_a_row(network, knots.at)))):
            lengths = (knots.start + (knots.cutoff - knots.start) * part / count).to(dtype)
            ats = [lengths.to(kind, copy=True).requires_grad_() for kind in (torch.float64, dtype)]
            interval, coefficients = knots(ats[1])
            values = network(ats[0])
            weights = (TabledWeights(table, interval, c, orders) for c in (coefficients, slope(coefficients, ats[1])))
            wanted_of = (values.detach(), slope(values, ats[0]))
            if len(part) > SAMPLES:
                check_slopes(*wanted_of)
            for n, (wanted, read) in enumerate(zip(wanted_of, weights, strict=True)):
                interpolated = read.weights()
                if wanted.numel():
                    off = (interpolated - wanted).detach().abs()
                    sizes[n] = max(sizes[n], *map(float, wanted.detach().abs().max()[None]))
                    if float(off.max()) >= errors[n] or not math.isfinite(float(off.max())):
                        errors[n] = float(off.max())
                        worst = float(lengths[off.amax(1).argmax()]) if n else worst
    error = TableError(*(e / size if size else 0 * e for e, size in zip(errors, sizes, strict=True)))
    if not all(map(math.isfinite, error)):
        raise ConfigError("a radial network must be finite up to its cutoff, got NaN or infinity. Look at its weights.")
    return Off(error, worst, network)


def _kept_of_a_row(network: Callable[[Tensor], Tensor], at: Tensor) -> int:
    """Numbers that autograd keeps of each length: wide layers would take gigabytes at all places."""
    rows, kept = 7, [1]

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape[:1] == (rows,):
            kept.append(tensor.numel() // rows)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(at[-rows:].clone().requires_grad_())
    return sum(kept)


def worst_of(errors: Iterable[Off]) -> Off:
    """The largest errors of several tables, and where a slope is off by most."""
    listed = list(errors)
    steepest = max(listed, key=lambda one: one.error.slopes)
    return steepest._replace(error=TableError(max(one.error.values for one in listed), steepest.error.slopes))


class Errors:
    """Errors of tables with the same knots, for `fewest_knots`: the largest, or the first above a tolerance.

    The function that was above it last comes first, so that a search looks at one function until its last step.

    Args:
        functions: From lengths to weights, in float64.
        tolerance: Of values and slopes.

    Attributes:
        by_function: Errors of each function with the knots that were tried last.
    """

    def __init__(self, functions: Iterable[Callable[[Tensor], Tensor]], tolerance: float) -> None:
        self.functions, self.tolerance = list(functions), tolerance
        self.by_function: dict[Callable[[Tensor], Tensor], Off] = {}

    def first(self, knots: Knots, dtype: torch.dtype) -> Off:
        """Errors of the first function."""
        return table_error(knots, self.functions[0], dtype, SAMPLES)

    def __call__(self, knots: Knots, dtype: torch.dtype) -> Off:
        """Errors of all functions, or of some if one is above the tolerance."""
        self.by_function = {}
        for place, function in enumerate(self.functions):
            self.by_function[function] = table_error(knots, function, dtype, SAMPLES)
            if max(self.by_function[function].error) > self.tolerance:
                self.functions.insert(0, self.functions.pop(place))
                break
        return worst_of(self.by_function.values())


class _Limit(NamedTuple):
    """The most knots that were tried, their errors, and why no more were."""

    knots: Knots
    off: Off
    why: str


def fewest_knots(knots: Knots, dtype: torch.dtype, error: Errors) -> Knots:
    """The fewest knots, at least 16, that bound errors of values and slopes: a power of two, or fewer by estimate.

    Where a second derivative jumps, errors fall slowly. Splines then get a knot there, if equal distances allow it: the
    number of knots is another one, and errors fall as elsewhere. ConfigError, with the reason, if no number does.
    """
    result, tolerance = _search(knots, None, dtype, error), error.tolerance
    kink = None if isinstance(result, Knots) or _digits(result, error) else _kink(result)
    if kink is not None and knots.interpolation == "spline":
        part = (kink - knots.start) / (knots.cutoff - knots.start)
        near = Fraction(part).limit_denominator(_PARTS)
        if abs(part - near) < 1e-9:
            result = _search(knots, near, dtype, error)
    if isinstance(result, Knots):
        return result
    said = result.why if kink is None else f"{result.why}, and the second derivative jumps at {kink:.6g} A"
    if _digits(result, error):
        said = f"{str(dtype).removeprefix('torch.')} has no more digits"
    (values, slopes), at, _ = result.off
    raise ConfigError(
        f"tolerance must be one that a table can keep, got {tolerance:g}: with {result.knots.count} knots the errors "
        f"of values and slopes are {values:.1e} and {slopes:.1e}, the largest at {at:.3f} A; {said}. Raise the "
        "tolerance, or smooth the network there."
    )


def _digits(limit: _Limit, error: Errors) -> bool:
    """Whether it is the dtype that keeps errors from falling."""
    return max(error(limit.knots, torch.float64).error) <= error.tolerance


def _search(knots: Knots, kink: Fraction | None, dtype: torch.dtype, error: Errors) -> Knots | _Limit:
    """The fewest knots that keep the tolerance, or the limit at which the search ends."""
    tolerance = error.tolerance
    count, slow, before, of = 16, 0, math.inf, None
    if kink is not None:
        count = 8 * kink.denominator + 1  # some on either side
    while True:
        tried = _knots(knots, count, kink)
        off = error.first(tried, dtype)
        if max(off.error) <= tolerance:
            foretold = 16 * math.ceil(1.05 * count * (max(off.error) / tolerance) ** (1 / 3) / 16)  # slopes of cubics
            counts = [n for n in (foretold, 16 * math.ceil(1.2 * foretold / 16)) if kink is None and 16 <= n < count]
            for candidate in (*(_knots(knots, n, None) for n in counts), tried):  # some more, as functions differ
                off = error(candidate, dtype)
                if max(off.error) <= tolerance:
                    return candidate
        largest, same = max(off.error), off.network is of
        slow, of = slow + 1 if same and count > _SETTLED and 4 * largest > before else 0, off.network
        if slow == 2:
            return _Limit(tried, off, "errors no longer fall by a factor of 4 when knots are doubled")
        count, before = 2 * count if kink is None else 2 * count - 1, largest
        if count > MOST_KNOTS:
            return _Limit(tried, off, f"no more than {MOST_KNOTS} are made")


def _knots(like: Knots, count: int, kink: Fraction | None) -> Knots:
    """Knots like others, ``count`` of them; with ``kink``, one knot is at that part of the axis."""
    place = None if kink is None else int(kink * (count - 1))
    return Knots(count, like.cutoff, like.start, like.interpolation, like.end, place).to(like.at.device)


def _kink(limit: _Limit) -> float | None:
    """The length near the largest error at which a second derivative jumps, or None."""
    knots, network = limit.knots, limit.off.network

    def curvatures(*lengths: float) -> Tensor:
        at = knots.at.new_tensor(lengths).requires_grad_()
        return slope(slope(network(at), at, True), at, False).detach()

    low, high = max(knots.start, limit.off.at - 2 * knots.step), min(knots.cutoff, limit.off.at + 2 * knots.step)
    with gradients():
        while high - low > 1e-11 * knots.cutoff:  # into the half over which it changes by more
            middle = (low + high) / 2
            first, second, third = curvatures(low, middle, high)
            low, high = (low, middle) if (second - first).abs().max() > (third - second).abs().max() else (middle, high)
        before, behind = curvatures(low, high)
    return (low + high) / 2 if (behind - before).abs().max() > 1e-3 * before.abs().max() else None
