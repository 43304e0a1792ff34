"""Radial networks by interpolation in a table: what many edges would compute is computed at a few knots."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import check_choice, check_floating, check_function, check_integer, check_number
from ..errors import ConfigError, IndexRangeError, ShapeError
from ..functional.interpolation import interpolate
from ._common.base import KeepsFloat64

MOST_KNOTS = 1 << 14


class Interpolation(NamedTuple):
    """A way to interpolate between equally spaced knots.

    Attributes:
        orders: Derivatives at a knot that the table holds, one row each.
        reads: Rows that a length reads, one after the other.
        smooth: Continuous derivatives.
        coefficients: From ``[E]`` places between two knots, 0 to 1, and the distance of knots to ``[E, reads]``.
    """

    orders: int
    reads: int
    smooth: int
    coefficients: Callable[[Tensor, float], Tensor]


def _lagrange(u: Tensor, step: float) -> Tensor:
    below, above, beyond = u + 1, u - 1, u - 2
    parts = (u * above * beyond / -6, below * above * beyond / 2, below * u * beyond / -2, below * u * above / 6)
    return torch.stack(parts, -1)


def _spline(u: Tensor, step: float) -> Tensor:
    v = 1 - u
    parts = (v**3 / 6, u * u * (u - 2) / 2 + 2 / 3, v * v * (v - 2) / 2 + 2 / 3, u**3 / 6)
    return torch.stack(parts, -1)


def _hermite(u: Tensor, step: float) -> Tensor:
    v = 1 - u
    return torch.stack((v * v * (1 + 2 * u), step * u * v * v, u * u * (1 + 2 * v), -step * u * u * v), -1)


def _quintic(u: Tensor, step: float) -> Tensor:
    v, square = 1 - u, step * step / 2
    value = v**3 * (1 + 3 * u + 6 * u * u), u**3 * (1 + 3 * v + 6 * v * v)
    slope = step * u * v**3 * (1 + 3 * u), -step * v * u**3 * (1 + 3 * v)
    curve = square * u * u * v**3, square * v * v * u**3
    return torch.stack((value[0], slope[0], curve[0], value[1], slope[1], curve[1]), -1)


#: The ways to interpolate. Where two are equally exact, the first has the smallest table.
INTERPOLATIONS = {
    "spline": Interpolation(1, 4, 2, _spline),
    "hermite": Interpolation(2, 4, 1, _hermite),
    "quintic": Interpolation(3, 6, 2, _quintic),
    "lagrange": Interpolation(1, 4, 0, _lagrange),
}


class TabledWeights(NamedTuple):
    """Weights of edges that are not stored: each row is a combination of consecutive rows of a table.

    Attributes:
        table: ``[R, W]``.
        orders: Rows of the table from interval to interval.
        interval: ``[E]`` int64; an edge reads the rows from ``orders * interval`` on.
        coefficients: ``[E, reads]``.

    Example:
        >>> made = TabledWeights(torch.eye(3), 1, torch.tensor([0, 1]), torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        >>> made.weights()
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.2500, 0.7500]])
    """

    table: Tensor
    orders: int
    interval: Tensor
    coefficients: Tensor

    def weights(self, backend: str | None = None) -> Tensor:
        """``[E, W]``."""
        return interpolate(self.table, self.orders, self.interval, self.coefficients, backend)


class TableError(NamedTuple):
    """Largest errors of a table, relative to the largest weight and to the largest slope."""

    values: float
    slopes: float


class RadialTable(KeepsFloat64):
    r"""A radial network by interpolation: the network runs at K knots, not at E lengths.

    .. math:: W(r) \approx \sum_k c_k(u)\, T_{i + k}, \quad i + u = (r - r_0) / h

    The table is made in every call from the network as it is, and gradients reach the network through it, so it serves
    training: the network costs K rows in place of E. `freeze` makes it once, for inference. The place on the axis is
    computed in float64, so a length lies in the same interval in every dtype.

    Args:
        network: Any function of lengths ``[N]`` to weights ``[N, W]``, row by row, that is 0 at the cutoff with its
            slope, such as :class:`RadialNetwork`.
        cutoff: Angstrom; that of a :class:`RadialNetwork` if None. Weights of longer edges are 0.
        knots: Number of knots, at equal distances from ``start`` to the cutoff.
        tolerance: In place of ``knots``: the smallest power of two whose errors, see `error`, are at most this.
        interpolation: 'spline' (cubic, two continuous derivatives), 'hermite' (cubic, one; needs slopes of the
            network), 'quintic' (two; slopes and curvatures) or 'lagrange' (four points, none).
        start: Angstrom, the shortest length that the table has. Shorter ones are an error on the CPU, and NaN
            elsewhere, where a look would make the stream wait.
        backend: Name of a backend, or None for the best of the device.

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

    at: Tensor
    frozen: Tensor | None
    kept_in_float64 = ("at",)

    def __init__(
        self,
        network: Callable[[Tensor], Tensor],
        cutoff: float | None = None,
        knots: int = 256,
        *,
        tolerance: float | None = None,
        interpolation: str = "spline",
        start: float = 0.0,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.network = check_function("network", network)
        found = getattr(getattr(network, "basis", None), "envelope", None)
        given = getattr(found, "cutoff", None) if cutoff is None else cutoff
        self.cutoff = check_number("cutoff", given, above=0, unit=" of Angstrom")
        self.start = check_number("start", start, at_least=0, unit=" of Angstrom")
        if self.start >= self.cutoff:
            raise ConfigError(f"start must be below the cutoff, {self.cutoff:g}, got {start}. 0.5 is usual.")
        self.interpolation = check_choice("interpolation", interpolation, INTERPOLATIONS)
        self.backend = backend
        self.register_buffer("frozen", None)
        self._set_knots(check_integer("knots", knots, 5, MOST_KNOTS, fix="256 is usual."))
        self._check_ends()
        if tolerance is not None:
            self._refine(check_number("tolerance", tolerance, above=0, fix="1e-5 is usual."))

    # -- the table ----------------------------------------------------------------------------------------------------

    def _set_knots(self, knots: int) -> None:
        self.knots = knots
        self.step = (self.cutoff - self.start) / (knots - 1)
        at = torch.linspace(self.start, self.cutoff, knots, dtype=torch.float64)
        like = next(self.parameters(), at)
        self.register_buffer("at", at.to(like.device), persistent=False)

    def table(self) -> Tensor:
        """``[R, W]``: the frozen one, or that of the network as it is."""
        if self.frozen is not None:
            return self.frozen
        parameter = next(self.parameters(), None)
        at = self.at if parameter is None else self.at.to(parameter.dtype)
        rows = self._derivatives(at, INTERPOLATIONS[self.interpolation].orders)
        if self.interpolation == "spline":
            return spline_rows(rows[0])
        return torch.stack(rows, 1).flatten(0, 1)

    def _derivatives(self, at: Tensor, count: int) -> list[Tensor]:
        """Values of the network and its first derivatives at lengths, ``[N, W]`` each."""
        live = torch.is_grad_enabled()
        with torch.enable_grad():
            at = at.detach().requires_grad_(count > 1)
            found = [self.network(at)]
            for order in range(1, count):
                found.append(_slope(found[-1], at, live or order < count - 1))
        return found if live else [one.detach() for one in found]

    def forward(self, lengths: Tensor, basis: Tensor | None = None) -> TabledWeights:
        """Where edges read the table.

        Args:
            lengths: ``[E]`` Angstrom.
            basis: Not read; so that the table can stand where a :class:`RadialNetwork` stood.

        Raises:
            ShapeError, DTypeError: The lengths are no such tensor.
            IndexRangeError: A length is below the start (found on CPU only).
        """
        if check_floating("lengths", lengths, "[E]").ndim != 1:
            raise ShapeError(f"lengths must be [E], got {list(lengths.shape)}. Flatten them.")
        way = INTERPOLATIONS[self.interpolation]
        place = (lengths.double() - self.start) / self.step
        inside = place.detach().nan_to_num()
        if self.start and lengths.device.type == "cpu" and bool((inside < 0).any()):
            raise IndexRangeError(
                f"lengths must be at least {self.start:g} Angstrom, where the table begins, got "
                f"{float(lengths.detach().min()):.4g}. Lower start, or look at the structure."
            )
        interval = inside.floor().clamp(0, self.knots - 2)
        behind = (inside >= self.knots - 1).unsqueeze(1)
        u = torch.where(behind.squeeze(1), 0.0, place - interval)
        if self.interpolation == "lagrange":  # four knots around, or the last four
            first = (interval - 1).clamp(0, self.knots - 4)
            u, interval = u + (interval - first - 1), first
        coefficients = torch.where(behind, 0.0, way.coefficients(u, self.step))
        if self.start:
            coefficients = torch.where((inside < 0).unsqueeze(1), math.nan, coefficients)
        table = self.table()
        return TabledWeights(table, way.orders, interval.long(), coefficients.to(table.dtype))

    # -- frozen or live -----------------------------------------------------------------------------------------------

    def freeze(self) -> RadialTable:
        """Make the table once; the network is not asked again, and state dicts hold the table."""
        with torch.no_grad():
            self.frozen = None
            self.frozen = self.table()
        return self

    def thaw(self) -> RadialTable:
        """Make the table in every call again."""
        self.frozen = None
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.frozen = state_dict.get(f"{prefix}frozen")  # of which the shape is that of the file
        super()._load_from_state_dict(state_dict, prefix, *args)

    # -- errors -------------------------------------------------------------------------------------------------------

    def error(self, samples: int = 4) -> TableError:
        """Largest difference to the network and of its slope, at so many places within every interval, in float64.

        Args:
            samples: Places in each interval, at equal distances.
        """
        count = check_integer("samples", samples, 1) * (self.knots - 1)
        fine = torch.arange(count, dtype=torch.float64, device=self.at.device) + 0.5
        parameter = next(self.parameters(), None)
        dtype = torch.float64 if parameter is None else parameter.dtype
        at = (self.start + (self.cutoff - self.start) * fine / count).to(dtype)
        with torch.enable_grad():
            at.requires_grad_()
            both = [(self.network(at)), self(at).weights(self.backend)]
            slopes = [_slope(one, at, False).detach().double() for one in both]
        values = [one.detach().double() for one in both]
        return TableError(*(_relative(*pair) for pair in (values, slopes)))

    def _refine(self, tolerance: float) -> None:
        knots = 16
        while True:
            self._set_knots(knots)
            found = self.error()
            if max(found) <= tolerance:
                return
            if knots == MOST_KNOTS:
                raise ConfigError(
                    f"tolerance must be one that {MOST_KNOTS} knots keep, got {tolerance:g}: errors of values and "
                    f"slopes are {found.values:.1e} and {found.slopes:.1e}. Raise it, or use float64."
                )
            knots *= 2

    def _check_ends(self) -> None:
        rows = self._derivatives(self._ends(), 1)[0].detach().double()
        if rows.ndim != 2 or rows.shape[0] != 2:
            raise ShapeError(f"network must give [N, W] for lengths [N], got {list(rows.shape)} for 2. Correct it.")
        if not bool(torch.isfinite(rows).all()):
            raise ConfigError(f"network must be finite from {self.start:g} to {self.cutoff:g} A. Raise start.")
        if float(rows[1].abs().max() if rows.numel() else 0.0) > 1e-6:
            raise ConfigError(
                f"network must be 0 at the cutoff, {self.cutoff:g} A, got {float(rows[1].abs().max()):.3g}. Multiply "
                "it with an envelope such as PolynomialCutoff, and leave out biases."
            )

    def _ends(self) -> Tensor:
        parameter = next(self.parameters(), None)
        return self.at[[0, -1]] if parameter is None else self.at[[0, -1]].to(parameter.dtype)

    def extra_repr(self) -> str:
        """Knots and interpolation."""
        state = "live" if self.frozen is None else "frozen"
        return f"{self.knots} knots from {self.start:g} to {self.cutoff:g} A, {self.interpolation}, {state}"


def _slope(values: Tensor, at: Tensor, create_graph: bool) -> Tensor:
    """Derivative of every column ``[N, W]`` by the length of its row: that of a sum with factors, by the factors."""
    factors = torch.ones_like(values, requires_grad=True)
    (sums,) = torch.autograd.grad((values * factors).sum(), at, create_graph=True)
    (found,) = torch.autograd.grad(sums.sum(), factors, create_graph=create_graph)
    return found


def _relative(wanted: Tensor, found: Tensor) -> float:
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    return float((found - wanted).abs().max()) / scale if scale else 0.0


def spline_rows(values: Tensor) -> Tensor:
    """``[K + 2, W]``: coefficients of a cubic spline near values ``[K, W]`` at knots, 0 with its slope at the last one.

    With second differences d, the interpolating spline has the coefficients (1 + d / 6)^-1, of which three terms of the
    series are taken: they are exact for cubic polynomials. Values are continued by a cubic before the first knot, and
    by 0 behind the last.

    Example:
        >>> spline_rows(torch.ones(8, 1)).flatten()[:5]
        tensor([1., 1., 1., 1., 1.])
    """
    for _ in range(3):
        before = 4 * values[0] - 6 * values[1] + 4 * values[2] - values[3]
        values = torch.cat([before[None], values])
    values = torch.cat([values, values.new_zeros(1, values.shape[1])])
    first = values[1:-1] - (values[:-2] - 2 * values[1:-1] + values[2:]) / 6
    rest = (values[:-4] - 4 * values[1:-3] + 6 * values[2:-2] - 4 * values[3:-1] + values[4:]) / 36
    found = first[1:-1] + rest
    return torch.cat([found, -0.5 * found[-1:], found[-1:]])
