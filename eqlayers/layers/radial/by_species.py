"""Functions of lengths that depend on the species of both atoms: the repulsion of nuclei, and transforms of lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...atoms.elements import COVALENT_RADII, covalent_radius, read_species
from ...core.backends.rows import summed_rows
from ...core.checks import check_floating, check_number, check_type
from ...core.errors import IndexRangeError, ShapeError
from ...core.graph import Graph, check_graph, check_index, check_lengths
from ...core.torch_internals import being_traced
from ..base.module import KeepsFloat64
from ..harmonics.module import EdgeVectors
from .cutoffs import PolynomialCutoff

#: e^2 / (4 pi eps_0) in eV Angstrom, and the Bohr radius in Angstrom, rounded as in MACE.
_COULOMB, _BOHR = 14.3996, 0.529
_FACTORS, _DECAYS = (0.1818, 0.5099, 0.2802, 0.02817), (3.2, 0.9423, 0.4028, 0.2016)


class ZBL(KeepsFloat64):
    r"""Screened repulsion of nuclei, which goes to 0 smoothly at the sum of covalent radii.

    .. math:: E_i = \frac{s}{2} \sum_{j} \frac{14.3996\, Z_i Z_j}{r_{ij}}\, \phi\Big(\frac{r_{ij}}{a_{ij}}\Big)
              f\Big(\frac{r_{ij}}{R_i + R_j}\Big), \qquad a_{ij} = \frac{0.529\, b}{Z_i^\alpha + Z_j^\alpha}

    with the universal screening function :math:`\phi` and the envelope :math:`f` of :class:`PolynomialCutoff`. Pairs
    farther than the sum of their radii :math:`R` add nothing, and neighbour lists must reach as far: a
    :class:`eqlayers.models.Potential` refuses a network of a shorter cutoff.

    At r = 0 the energy of two atoms is infinite, its limit, and their force, which has no direction, is 0; derivatives
    by all other lengths are as without that pair. An edge of length 0 from an atom to itself, as in padding,
    adds nothing.

    Args:
        p: Power of the envelope, from 2 to 100.
        factor: :math:`s`; MACE scales the repulsion with the rest of the energy.
        exponent, prefactor: :math:`\alpha` and :math:`b`.

    Attributes:
        radii: ``[119]`` Angstrom by atomic number, 0 where none is known.
        options: The arguments, as plain values.

    Raises:
        ConfigError: A number out of range.

    Source:
        Ziegler, Biersack, Littmark, The Stopping and Range of Ions in Matter, 1985, with MACE's constants; radii of
        Cordero et al. 2008, doi:10.1039/b801115j.

    Example:
        >>> edges = EdgeVectors(None, torch.tensor([0.5, 0.5], dtype=torch.float64), None, None)
        >>> ZBL()(torch.tensor([1, 1]), edges, Graph(torch.tensor([[0, 1], [1, 0]]), 2))
        tensor([0.2034, 0.2034], dtype=torch.float64)
    """

    radii: Tensor
    factor: Tensor
    screening: Tensor
    kept_in_float64 = ("radii", "factor", "screening")

    def __init__(self, p: int = 6, factor: float = 1.0, exponent: float = 0.3, prefactor: float = 0.4543) -> None:
        super().__init__()
        self.envelope = PolynomialCutoff(1.0, p)
        constants = [check_number("exponent", exponent, above=0), check_number("prefactor", prefactor, above=0)]
        radii = torch.zeros(119, dtype=torch.float64)
        radii[1 : len(COVALENT_RADII) + 1] = torch.tensor(COVALENT_RADII, dtype=torch.float64)
        self.register_buffer("radii", radii)
        self.register_buffer("screening", torch.tensor(constants, dtype=torch.float64))
        self.register_buffer("factor", torch.tensor(check_number("factor", factor, above=0), dtype=torch.float64))
        names = ("exponent", "prefactor")
        self.options = {"p": self.envelope.p, "factor": float(factor), **dict(zip(names, constants, strict=True))}

    def reach(self, species: Sequence[int | str]) -> float:
        """Largest distance in Angstrom at which a pair of these elements, symbols or atomic numbers, has an energy.

        Example:
            >>> round(ZBL().reach([1, 19]), 2)
            4.06
        """
        return 2 * max(covalent_radius(z) for z in read_species(species))

    def forward(self, z: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        """Half of the energy of each pair at each of its atoms.

        Args:
            z: ``[A]`` int64 atomic numbers.
            edges: Of which the lengths are read, ``[E]`` Angstrom.
            graph: The edges, in both directions.

        Returns:
            ``[A]`` eV, of the dtype of the lengths.

        Raises:
            ShapeError: One length for each edge is missing. IndexRangeError: An element without a radius.
        """
        src, dst = check_graph(graph).ends
        fix = "Take them from eqlayers.nn.EdgeGeometry."
        lengths = check_lengths(check_type("edges", edges, EdgeVectors, "EdgeVectors", fix).lengths, graph)
        check_index("z", z, graph.num_dst, len(self.radii), "elements")
        readable = z.is_cpu and not being_traced()  # elsewhere reading would wait for the device
        radius = self.radii[z.clamp(0, len(self.radii) - 1) if readable else z]
        if readable and not bool(radius.all()):  # both ends are 0, too
            raise IndexRangeError(
                f"z must hold elements with a covalent radius, 1 to {len(COVALENT_RADII)}, got also "
                f"{sorted(set(z[radius == 0].tolist()))}. Leave out the repulsion, or these elements."
            )
        charge, radius = z.to(lengths.dtype), radius.to(lengths.dtype)
        exponent, prefactor = self.screening.to(lengths.dtype)
        root = charge**exponent
        coincide = lengths == 0
        r = torch.where(coincide, 1.0, lengths)  # the branch not taken must be finite, or its gradient is NaN
        scaled = r * (root[src] + root[dst]) / (_BOHR * prefactor)
        screened = sum(c * torch.exp(-d * scaled) for c, d in zip(_FACTORS, _DECAYS, strict=True))
        pairs = 0.5 * _COULOMB * charge[src] * charge[dst] / r * screened
        pairs = pairs * self.envelope(r / (radius[src] + radius[dst]))
        pairs = torch.where(coincide, torch.where(src == dst, 0.0, math.inf).to(pairs.dtype), pairs)
        return summed_rows(pairs, dst, z.shape[0]) * self.factor.to(lengths.dtype)

    def extra_repr(self) -> str:
        """Power and factor."""
        return f"p={self.envelope.p}, factor {float(self.factor):g}"


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

    @property
    def num_species(self) -> int:
        """Number of species."""
        return self.radii.shape[0]

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
