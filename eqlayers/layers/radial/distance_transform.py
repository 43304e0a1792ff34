"""Transforms of the lengths of edges, by the species of both atoms, before radial functions are evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...atoms.elements import covalent_radius, read_species
from ...core.checks import check_floating, check_number
from ...core.errors import ShapeError
from ...core.graph import Graph, check_graph, check_index, check_lengths
from ..base.module import KeepsFloat64


class AgnesiTransform(KeepsFloat64):
    r"""Lengths as a fraction of covalent radii: 1 where atoms meet, towards 0 far away.

    .. math:: t(r) = \Big(1 + \frac{a\, u^q}{1 + u^{q - p}}\Big)^{-1}, \quad u = \frac{2 r}{R_{Z_i} + R_{Z_j}}

    Args:
        species: Elements, as symbols or atomic numbers; ``forward`` takes indices into this list.
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

    def __init__(self, species: Sequence[int | str], q: float = 0.9183, p: float = 4.5791, a: float = 1.0805) -> None:
        super().__init__()
        numbers = [check_number(name, value, above=0) for name, value in (("q", q), ("p", p), ("a", a))]
        listed = read_species(species)
        self.register_buffer("radii", torch.tensor([covalent_radius(z) for z in listed], dtype=torch.float64))
        self.register_buffer("constants", torch.tensor(numbers, dtype=torch.float64))

    def forward(self, lengths: Tensor, kind: Tensor, graph: Graph) -> Tensor:
        """``[E]`` Angstrom to ``[E]``.

        Args:
            lengths: Of the edges.
            kind: ``[A]`` int64, index of the species of each atom.
            graph: The edges.

        Raises:
            ConfigError, ShapeError, DTypeError: No graph, or tensors that do not fit it.
            IndexRangeError: An index outside the list of species (checked on the CPU only).
        """
        src, dst = check_graph(graph).ends
        check_index("kind", kind, graph.num_src, len(self.radii), "species")
        return self._between(check_lengths(lengths, graph), kind[src], kind[dst])

    def between(self, lengths: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """``[E]`` Angstrom to ``[E]``, between species of index ``[E]`` int64; errors as of ``forward``."""
        if check_floating("lengths", lengths, "[E]").ndim != 1:
            raise ShapeError(f"lengths must be [E], got {list(lengths.shape)}. Flatten them.")
        for name, indices in (("first", first), ("second", second)):
            check_index(name, indices, lengths.shape[0], len(self.radii), "species")
        return self._between(lengths, first, second)

    def _between(self, lengths: Tensor, first: Tensor, second: Tensor) -> Tensor:
        u = lengths / (0.5 * (self.radii[first] + self.radii[second])).to(lengths.dtype)
        q, p, a = self.constants.to(lengths.dtype)
        return 1 / (1 + a * u**p / (u ** (p - q) + 1))  # finite at u = 0, where u^(q - p) is not

    def extra_repr(self) -> str:
        """Powers and factor."""
        return "q={:g}, p={:g}, a={:g}".format(*self.constants.tolist())
