"""Any radial network by interpolation in a table of splines."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_flag, check_floating, check_function, check_integer, check_number
from ...core.errors import ConfigError, ShapeError
from ..radial.knots import Knots, check_end, cutoff_of, end_of
from ..radial.spline_table import SplineTable, may_be_kept
from ..radial.tabled_basis import KnotBasis
from ..tensor_product.tabled_weights import TabledWeights
from .errors import TableError, fewest_knots, table_error


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
    return _copied(network, {}).double() if isinstance(network, torch.nn.Module) else network


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
    named = dict([*network.named_parameters(), *network.named_buffers()])
    state = {
        name: t.double() if t.is_floating_point() else t
        for name, t in zip(named, tensors or named.values(), strict=True)
    }
    return lambda *lengths: torch.func.functional_call(network, state, lengths)
