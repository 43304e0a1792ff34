"""Any radial network by interpolation in a table, made in every call or once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import check_function, check_integer, check_number
from ..errors import ConfigError, ShapeError
from ..functional.tabled import TabledWeights
from ..lowering.interpolation import INTERPOLATIONS
from ..torch_internals import outside_of_func, wrapped_by_func
from ._common.interpolation import gradients, slope
from .radial import KeepsTable
from .tabled_basis import MOST_KNOTS, Knots, check_end, cutoff_of, is_flat


class TableError(NamedTuple):
    """Largest errors of a table; an example: :func:`eqlayers.nn.RadialTable.error`.

    Attributes:
        values: Relative to the largest weight.
        slopes: Relative to the largest slope.
    """

    values: float
    slopes: float


class RadialTable(KeepsTable):
    r"""A radial network by interpolation: the network runs at K knots, not at E lengths.

    .. math:: W(r) \approx \sum_k c_k(u)\, T_{i + k}, \quad i + u = (r - r_0) / h

    The table is made in every call from the network as it is, and gradients reach the network through it, so it serves
    training: the network costs K rows in place of E. `freeze` makes it once, for inference. A
    :class:`eqlayers.TensorProductConv` that gets the result reads the table inside its kernel, so weights of edges are
    never stored.

    Args:
        network: Any function of lengths ``[N]`` to weights ``[N, W]``, row by row, that is 0 at the cutoff with its
            slope, such as :class:`RadialNetwork`.
        cutoff: Angstrom; that of a :class:`RadialNetwork` if None. Weights of longer edges are 0.
        knots: Number of knots, at equal distances from ``start`` to the cutoff.
        tolerance: In place of ``knots``: the smallest power of two whose errors, see `error`, are at most this.
        interpolation: 'spline' (cubic, two continuous derivatives), 'hermite' (cubic, one; needs slopes of the
            network), 'quintic' (two; slopes and curvatures) or 'lagrange' (four points, none). Tables that need slopes
            break the graph of ``torch.compile`` unless they are frozen.
        start: Angstrom, the shortest length that the table has. Shorter ones are an error on the CPU, and NaN
            elsewhere, where a look would make the stream wait.

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
    ) -> None:
        super().__init__()
        self.network = check_function("network", network)
        self.knots = Knots(knots, cutoff_of(network, cutoff), start, interpolation, is_flat(network))
        like = next(self.parameters(), None)
        if like is not None:
            self.knots.to(like.device)
        self._check_ends()
        if tolerance is not None:
            wanted = check_number("tolerance", tolerance, above=0, fix="1e-4 is usual.")
            self.knots = fewest_knots(self.knots, wanted, lambda knots: self._error(knots, 8))

    def forward(self, lengths: Tensor, basis: Any = None) -> TabledWeights:
        """The weights of edges, by where they read the table.

        Args:
            lengths: ``[E]`` Angstrom.
            basis: Not read; so that the table can stand where a :class:`RadialNetwork` stood.

        Raises:
            ShapeError, DTypeError: The lengths are no such tensor.
            IndexRangeError: A length is below the start (found on CPU only).
        """
        table = self._made() if self.table is None else self.table
        if table.shape[0] != self.knots.rows:
            raise ShapeError(
                f"the table must have {self.knots.rows} rows, for {self.knots.count} knots, got {table.shape[0]}. "
                "Build the RadialTable with knots= and interpolation= of the one whose state dict it was."
            )
        interval, coefficients = self.knots(lengths)
        orders = INTERPOLATIONS[self.knots.interpolation].orders
        return TabledWeights(table, interval, coefficients.to(table.dtype), orders)

    def _made(self) -> Tensor:
        like = next(self.parameters(), self.knots.at)
        if INTERPOLATIONS[self.knots.interpolation].orders == 1:
            return made_at_knots(self.knots, self.network, like.dtype)
        if any(wrapped_by_func(parameter) for parameter in self.parameters()):
            raise ConfigError(
                f"a table that needs slopes, {self.knots.interpolation!r}, must not be made of weights that a "
                "transform of torch.func goes over. Use interpolation='spline', or freeze it before."
            )
        with outside_of_func():  # in which slopes cannot be had; no length has a part in a table
            return made_at_knots(self.knots, self.network, like.dtype)

    def freeze(self) -> RadialTable:
        """Make the table once; the network is not asked again, nor trained, and state dicts hold the table.

        Raises:
            ConfigError: The network is no longer finite, or 0 with its slope at the cutoff.
        """
        self._check_ends()  # training may have moved them
        self.table = self.made_once()
        return self

    def made_once(self) -> Tensor:
        """The table ``[R, W]`` of the weights of now, without their graph.

        It is made in float64 and rounded once: roundings of the network itself, between knots, would be slopes.
        """
        like = next(self.parameters(), self.knots.at)
        with gradients(), torch.no_grad():
            made = made_at_knots(self.knots, in_float64(self.network), torch.float64)
        return made.detach().to(like.dtype)

    def thaw(self) -> RadialTable:
        """Make the table in every call again."""
        self.table = None
        return self

    def error(self, samples: int = 8) -> TableError:
        """Largest difference to the network and of its slope, at so many places in every interval, in float64.

        Args:
            samples: Places in each interval, at equal distances.

        Example:
            >>> from eqlayers.nn import RadialNetwork
            >>> coarse, fine = (RadialTable(RadialNetwork(3, cutoff=5.0), knots=knots).error() for knots in (16, 512))
            >>> fine.values < coarse.values, fine.slopes < coarse.slopes
            (True, True)
        """
        return self._error(self.knots, check_integer("samples", samples, 2))

    def _error(self, knots: Knots, samples: int) -> TableError:
        with gradients():
            return table_error(knots, in_float64(self.network), samples)

    def _check_ends(self) -> None:
        like = next(self.parameters(), self.knots.at)
        with torch.no_grad():
            rows = self.network(self.knots.ends().to(like.dtype))
        if rows.ndim != 2 or rows.shape[0] != 6:
            raise ShapeError(f"network must give [N, W] for lengths [N], got {list(rows.shape)} for 6. Correct it.")
        if not bool(torch.isfinite(rows).all()):
            raise ConfigError(
                f"network must be finite from {self.knots.start:g} to {self.knots.cutoff:g} A, got NaN or infinity. "
                "Raise start."
            )
        check_end(rows, self.knots.cutoff)

    def extra_repr(self) -> str:
        """Whether the table is made in every call."""
        return "live" if self.table is None else f"frozen, {list(self.table.shape)}"


def made_at_knots(knots: Knots, network: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    """The table of a network of lengths."""
    return knots.table(knots.at.to(dtype), network)


def in_float64(network: Any) -> Any:
    """A copy of a module in float64, without the graph that made its weights; a function as it is."""
    return copy.deepcopy(network).double() if isinstance(network, torch.nn.Module) else network


def through_float64(network: Any) -> Callable[[Tensor], Tensor]:
    """A module as a function in float64, whose gradients reach the module's own weights."""
    own = [*network.named_parameters(), *network.named_buffers()]
    state = {name: t.double() if t.is_floating_point() else t for name, t in own}
    return lambda lengths: torch.func.functional_call(network, state, (lengths,))


def table_error(knots: Knots, network: Callable[[Tensor], Tensor], samples: int = 8) -> TableError:
    """Largest errors of the table of a network in float64, at so many places within every interval."""
    count = samples * (knots.count - 1)
    with gradients():
        fine = torch.arange(count, dtype=torch.float64, device=knots.at.device)  # on knots as well
        fine[0] = 0.01  # not at 0, where lengths have no slope
        at = (knots.start + (knots.cutoff - knots.start) * fine / count).requires_grad_()
        table = made_at_knots(knots, network, torch.float64).detach()
        interval, coefficients = knots(at)
        orders = INTERPOLATIONS[knots.interpolation].orders
        found = TabledWeights(table, interval, coefficients, orders).weights()
        both = [network(at), found]
        slopes = [slope(one, at, False) for one in both]
    error = TableError(_relative(*(one.detach() for one in both)), _relative(*slopes))
    if not all(map(math.isfinite, error)):
        raise ConfigError("a radial network must be finite up to its cutoff, got NaN or infinity. Look at its weights.")
    return error


def _relative(wanted: Tensor, found: Tensor) -> float:
    scale = float(wanted.abs().max()) if wanted.numel() else 0.0
    return float((found - wanted).abs().max()) / scale if scale else 0.0


def fewest_knots(knots: Knots, tolerance: float, error: Callable[[Knots], TableError]) -> Knots:
    """The smallest power of two of knots, 16 at least, that keeps errors of values and slopes.

    Raises:
        ConfigError: None does.
    """
    count = 16
    while True:
        tried = Knots(count, knots.cutoff, knots.start, knots.interpolation, knots.flat).to(knots.at.device)
        found = error(tried)
        if max(found) <= tolerance:
            return tried
        if count == MOST_KNOTS:
            raise ConfigError(
                f"tolerance must be one that {MOST_KNOTS} knots keep, got {tolerance:g}: errors of values and "
                f"slopes are {found.values:.1e} and {found.slopes:.1e}. Raise it."
            )
        count *= 2
