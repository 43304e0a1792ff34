"""Radial functions of edge lengths: Bessel basis, smooth cutoff, and the network that turns them into weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.jit import is_scripting  # type: ignore[attr-defined]

from ..checks import check_floating, check_integer, check_items, check_number
from ..errors import ConfigError, ShapeError
from ..functional.tabled import TabledWeights
from ..graph import Graph
from ._common.base import KeepsFloat64
from ._common.elements import covalent_radius
from .activation import NormalizedActivation
from .tabled_basis import KnotBasis


class PolynomialCutoff(torch.nn.Module):
    r"""Smooth envelope with p - 1 continuous derivatives: 1 at r = 0, 0 beyond the cutoff.

    .. math:: f(u) = 1 - \tfrac{(p+1)(p+2)}{2} u^p + p(p+2) u^{p+1} - \tfrac{p(p+1)}{2} u^{p+2}, \quad u = r / r_c

    Args:
        cutoff: :math:`r_c` in Angstrom.
        p: Power, a number from 2 to 100; 6 is usual.

    Raises:
        ConfigError: cutoff or p out of range.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 8.

    Example:
        >>> PolynomialCutoff(5.0)(torch.tensor([0.0, 5.0, 7.0])).tolist()
        [1.0, 0.0, 0.0]
    """

    continuous = 2  # derivatives at the cutoff

    def __init__(self, cutoff: float = 5.0, p: int = 6) -> None:
        super().__init__()
        self.cutoff = check_number("cutoff", cutoff, above=0, at_most=1e6, unit=" of Angstrom")
        fix = "The derivative must be continuous; 6 is usual."
        power = check_number("p", p, at_least=2, at_most=100, fix=fix)
        self.p = int(power) if power == int(power) else power  # an integer is a constant for every compiler

    def forward(self, lengths: Tensor) -> Tensor:
        """``[...]`` Angstrom to ``[...]``; NaN stays NaN."""
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
        p, u = self.p, lengths / self.cutoff
        inner = (p + 1) * (p + 2) / 2 - p * (p + 2) * u + p * (p + 1) / 2 * u * u
        return torch.where(
            u >= 1, torch.zeros_like(u), 1 - u ** float(p) * inner
        )  # torch 2.6 has no gradient of a power that may change

    def extra_repr(self) -> str:
        """Cutoff and power."""
        return f"{self.cutoff} A, p={self.p}"


def _sin_over(t: Tensor) -> Tensor:
    """``sin(t) / t`` with finite derivatives of every order at 0, where those of torch.sinc are NaN from the second."""
    small, s = t.abs() < 0.2, t * t  # the series leaves 0.2**12 / 13! = 7e-19
    series = 1 - s / 6 * (1 - s / 20 * (1 - s / 42 * (1 - s / 72 * (1 - s / 110))))
    away = torch.where(small, 1.0, t)  # the branch not taken must be finite, or its gradient is NaN
    return torch.where(small, series, away.sin() / away)


class BesselBasis(torch.nn.Module):
    r"""Bessel functions with an envelope: :math:`b_n(r) = \sqrt{2/r_c}\,\sin(n \pi r / r_c) / r \cdot f(r)`.

    At r = 0 the limit :math:`\sqrt{2/r_c}\, n\pi/r_c` is taken, so the basis is finite and smooth everywhere.

    Args:
        num_basis: Number of functions.
        cutoff: :math:`r_c` in Angstrom.
        p: Power of the envelope, see :class:`PolynomialCutoff`.

    Raises:
        ConfigError: num_basis or cutoff out of range.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 7.

    Example:
        >>> BesselBasis(8, 5.0)(torch.rand(10)).shape
        torch.Size([10, 8])
    """

    def __init__(self, num_basis: int = 8, cutoff: float = 5.0, p: int = 6) -> None:
        super().__init__()
        self.num_basis = check_integer("num_basis", num_basis, 1, fix="8 is usual.")
        self.envelope = PolynomialCutoff(cutoff, p)

    def forward(self, lengths: Tensor, transformed: Tensor | None = None) -> Tensor:
        """``[...]`` Angstrom to ``[..., num_basis]``.

        Args:
            lengths: Where the envelope is taken, and the functions unless ``transformed`` is given.
            transformed: ``[...]`` where the functions are taken, such as by :class:`AgnesiTransform`.
        """
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
        at = lengths if transformed is None else transformed
        cutoff = self.envelope.cutoff
        n = torch.arange(1, self.num_basis + 1, dtype=lengths.dtype, device=lengths.device)
        k = math.pi / cutoff * n
        bessel = (2 / cutoff) ** 0.5 * k * _sin_over(at[..., None] * k)
        return bessel * self.envelope(lengths)[..., None]

    def extra_repr(self) -> str:
        """Number of functions."""
        return f"{self.num_basis} functions"


class AgnesiTransform(KeepsFloat64):
    r"""Lengths as a fraction of covalent radii: 1 where atoms meet, towards 0 far away.

    .. math:: t(r) = \Big(1 + \frac{a\, u^q}{1 + u^{q - p}}\Big)^{-1}, \quad u = \frac{2 r}{R_{Z_i} + R_{Z_j}}

    Args:
        species: Atomic numbers, in the order in which ``forward`` names them.
        q, p, a: Powers and factor.

    Raises:
        ConfigError: A species without a covalent radius, or a number out of range.

    Source:
        Witt et al. 2023, doi:10.1063/5.0158783, section II C.

    Example:
        >>> transform = AgnesiTransform([1, 8])
        >>> transform(torch.tensor([0.0, 0.97, 9.0]), torch.tensor([0, 1]), Graph(torch.tensor([[0] * 3, [1] * 3]), 2))
        tensor([1.0000, 0.3457, 0.0595])
    """

    radii: Tensor
    constants: Tensor
    kept_in_float64 = ("radii", "constants")

    def __init__(self, species: Sequence[int], q: float = 0.9183, p: float = 4.5791, a: float = 1.0805) -> None:
        super().__init__()
        numbers = [check_number(name, value, above=0) for name, value in (("q", q), ("p", p), ("a", a))]
        listed = check_items("species", species, "a list of atomic numbers", "List each element of the data once.")
        self.register_buffer("radii", torch.tensor([covalent_radius(z) for z in listed], dtype=torch.float64))
        self.register_buffer("constants", torch.tensor(numbers, dtype=torch.float64))

    def forward(self, lengths: Tensor, kind: Tensor, graph: Graph) -> Tensor:
        """``[E]`` Angstrom to ``[E]``.

        Args:
            lengths: Of the edges.
            kind: ``[A]`` int64, place of the species of each atom.
            graph: The edges.
        """
        src, dst = graph.edge_index.long()
        return self.between(lengths, kind[src], kind[dst])

    def between(self, lengths: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """``[E]`` Angstrom to ``[E]``, between species ``[E]`` by their places."""
        u = lengths / (0.5 * (self.radii[first] + self.radii[second])).to(lengths.dtype)
        q, p, a = self.constants.to(lengths.dtype)
        return 1 / (1 + a * u**p / (u ** (p - q) + 1))  # finite at u = 0, where u^(q - p) is not

    def extra_repr(self) -> str:
        """Powers and factor."""
        return "q={:g}, p={:g}, a={:g}".format(*self.constants.tolist())


class KeepsTable(torch.nn.Module):
    """A network whose results may be held in a table, ``[R, W]``, which state dicts then hold, too."""

    table: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None)

    def make_room(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Take the shape of what a state dict holds."""
        given = state.get(f"{prefix}table")
        like = next(self.parameters(), given)
        self.table = None if given is None or like is None else torch.empty_like(given, device=like.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.make_room(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)


class ScalarNetwork(KeepsTable):
    r"""Layers :math:`\phi(x W / \sqrt{n})` without biases, the last one linear: zero where the input is zero.

    Args:
        widths: Of the input, of each hidden layer, and of the result.
        activation: See :class:`NormalizedActivation`.

    Raises:
        ConfigError: An unknown activation.

    Example:
        >>> ScalarNetwork([8, 64, 16])(torch.zeros(3, 8)).abs().max().item()
        0.0
    """

    def __init__(self, widths: Sequence[int], activation: str = "silu") -> None:
        super().__init__()
        self.activation = NormalizedActivation(activation)
        self.weights = torch.nn.ParameterList(torch.randn(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor | KnotBasis) -> Tensor | TabledWeights:
        """``[..., widths[0]]`` to ``[..., widths[-1]]``; functions by interpolation to weights by interpolation."""
        if isinstance(x, KnotBasis):
            if self.table is None:
                return x.weights(self.make_table(x))
            if self.training and torch.is_grad_enabled() and any(weight.requires_grad for weight in self.weights):
                raise ConfigError(
                    "a network whose table is frozen must not be trained, got a call in training mode. Call eval(), or "
                    "decompress(model) and train with knots=."
                )
            if self.table.shape[0] != x.rows:
                raise ShapeError(
                    f"the table of a network must have {x.rows} rows, for {x.knots} knots of its basis, got "
                    f"{self.table.shape[0]}. Compress the model with as many knots as that of the state dict."
                )
            return x.weights(self.table)
        return self._last(self._hidden(x))

    def make_table(self, x: KnotBasis) -> Tensor:
        """``[R, widths[-1]]``; the last layer is linear, so it follows the interpolation, which has less to do then."""
        return self._last(x.table(self._hidden))

    def _hidden(self, x: Tensor) -> Tensor:
        for weight in list(self.weights)[:-1]:
            x = self.activation(x @ (weight * weight.shape[0] ** -0.5))
        return x

    def _last(self, x: Tensor) -> Tensor:
        weight = self.weights[-1]
        return x @ (weight * weight.shape[0] ** -0.5)

    def extra_repr(self) -> str:
        """Widths of the layers."""
        return " -> ".join(str(w.shape[0]) for w in self.weights) + f" -> {self.weights[-1].shape[1]}"


def hidden_widths(name: str, hidden: Any) -> list[int]:
    """Widths of hidden layers.

    Raises:
        ConfigError: No list of counts.
    """
    fix = "64 is usual; () is no hidden layer."
    listed = check_items(name, hidden, "a list of widths", fix)
    return [check_integer(f"{name}[{i}]", w, 1, what="a width", fix=fix) for i, w in enumerate(listed)]


class RadialNetwork(ScalarNetwork):
    r"""From edge lengths to the weights of a tensor product: Bessel basis, then layers :math:`\phi(x W / \sqrt{n})`.

    No layer has a bias, so weights go smoothly to zero at the cutoff with the basis.

    Args:
        num_weights: Weights per edge.
        num_basis, cutoff, p: See :class:`BesselBasis`.
        hidden: Widths of the hidden layers.

    Raises:
        ConfigError: A width, a number of functions or the cutoff out of range.

    Example:
        >>> RadialNetwork(16, hidden=(32,))(torch.tensor([1.0, 5.0]))[1].abs().max().item()
        0.0
    """

    def __init__(
        self, num_weights: int, num_basis: int = 8, cutoff: float = 5.0, hidden: Sequence[int] = (64,), p: int = 6
    ) -> None:
        basis = BesselBasis(num_basis, cutoff, p)
        fix = "Take the weight_numel of the product that gets them."
        last = check_integer("num_weights", num_weights, 0, fix=fix)
        super().__init__([basis.num_basis, *hidden_widths("hidden", hidden), last])
        self.basis = basis

    def forward(self, lengths: Tensor | KnotBasis, basis: Tensor | KnotBasis | None = None) -> Tensor | TabledWeights:
        """``[...]`` Angstrom to ``[..., num_weights]``.

        Args:
            lengths: ``[...]`` Angstrom; or the functions by interpolation, see :class:`TabledBasis`.
            basis: ``[..., num_basis]``, what ``self.basis(lengths)`` gives, where several networks share it; or by
                interpolation, then the weights are so, too.

        Raises:
            DTypeError: The lengths are no tensor of floating-point numbers.
        """
        if basis is None:
            basis = lengths if isinstance(lengths, KnotBasis) else self.basis(lengths)
        return super().forward(basis)
