"""Equiformer: attention over neighbours, whose messages are made in the frames of edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ..atoms.elements import read_species
from ..core.apply import run_program
from ..core.backends.rows import taken
from ..core.checks import check_integer, check_number
from ..core.dtypes import widest_under_autocast
from ..core.forms.program import Form
from ..core.graph import Graph
from ..irreps.algebra import as_irreps
from ..layers.attention.functions import edge_softmax
from ..layers.attention.lower import check_heads, heads_program
from ..layers.attention.module import smooth_leaky_relu
from ..layers.gate.activation import GatedNonlinearity
from ..layers.harmonics.edge_geometry import EdgeVectors
from ..layers.linear.module import Linear
from ..layers.norm.module import RMSNorm
from ..layers.radial.cutoffs import SmoothCutoff
from ..layers.radial.module import BesselBasis, ScalarNetwork, hidden_widths
from ..layers.radial.tabled_basis import KnotBasis, tabled
from ..layers.rotation.module import EdgeFrame
from ..layers.so2.module import SO2Convolution
from ..layers.tensor_product.tabled_weights import TabledWeights
from .properties import even_scalars, kept_irreps, plain_options, property_irreps, read_properties


class Equiformer(torch.nn.Module):
    r"""Energies of atoms by a transformer with convolutions in the frames of edges, for :class:`Potential`.

    From :math:`x^0_i = a_{Z_i}`, every layer adds two terms. The first comes from the neighbours, over the edges
    :math:`e = (j \to i)`, with :math:`y = \mathrm{norm}(x)` and for each head h

    .. math:: s_{eh} = b_h \cdot \phi\big(q_h(y_i) + k_h(y_j) + t_h(r_e)\big), \qquad
              a_{eh} = \frac{f(r_e)\, e^{s_{eh}}}{e^{s_{0h}} + \sum_{e' \to i} f(r_{e'})\, e^{s_{e'h}}}

    .. math:: x'_i = x_i + W_2\, \mathrm{gate} \sum_e D_e^T\, W\, \big(a_{e h(u)} R(r_e) \odot D_e\, y_j\big), \qquad
              x''_i = x'_i + W_4\, \mathrm{gate}\big(W_3\, \mathrm{norm}(x'_i)\big)

    where q and k are linear in scalars, t and R are columns of one radial network, and :math:`\phi` is a smooth leaky
    ReLU. Head h(u) owns channel u: each has a share of the copies of every irrep. W acts in the frame of the edge, see
    :class:`eqlayers.nn.SO2Convolution`, and mixes heads. It respects inversion, at half the weights of the source. The
    energy is :math:`e_i = w \cdot x^T_i`.

    The envelope f ends with all its derivatives at the cutoff and is part of the softmax, so an atom that leaves adds
    no kink to any derivative of the energy. One root mean square for all degrees norms the features: the features of
    the species keep it from vanishing, and it magnifies no small vectors. Weights of a node add up to less than 1, so
    there is no mean number of neighbours to set.

    Args:
        species: Symbols or atomic numbers that occur.
        hidden: Irreps of the features between the layers, up to degree 12; irreps that cannot arise are left out.
        heads: Heads of the attention; they divide every multiplicity.
        layers: Number of layers, at least 1.
        mmax: Largest order in the frames, None for all; features of high degree are cheaper with 2.
        num_basis: Bessel functions of an edge's length.
        cutoff: Angstrom.
        cutoff_p: Power of the envelope of the Bessel functions.
        radial_hidden: Widths of the radial networks.
        attention_hidden: Invariants of an edge for each head.
        embedding: Scalars of an atom before the first layer; None for as many as hidden has.
        properties: What is read out, among 'energy', 'dipole' and 'polarizability'.
        knots: Of tables that radial networks are read from, see :class:`eqlayers.nn.TabledBasis`; None for networks
            that run at every edge.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        IrrepsError, ConfigError: hidden without even scalars or not for so many heads, or a number out of range.

    Source:
        Liao et al. 2023, EquiformerV2, arXiv:2306.12059; Passaro and Zitnick 2023, eSCN, arXiv:2302.03655; Liao and
        Smidt 2022, Equiformer, arXiv:2206.11990. Logits here are of invariants of both ends, where EquiformerV2 takes
        them from messages.

    Example:
        >>> from eqlayers.models import Potential, Structures
        >>> potential = Potential(Equiformer([1, 8], hidden="8x0e + 8x1o", layers=2), species=[1, 8])
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> potential(Structures(torch.tensor([1, 8]), torch.randn(2, 3), pair))["forces"].shape
        torch.Size([2, 3])
    """

    irreps_sh = o3.Irreps("0e")  # frames of edges are in place of harmonics

    def __init__(
        self,
        species: Sequence[int | str],
        hidden: str = "32x0e + 32x1o + 32x2e",
        heads: int = 4,
        layers: int = 3,
        mmax: int | None = None,
        num_basis: int = 8,
        cutoff: float = 5.0,
        cutoff_p: int = 6,
        radial_hidden: Sequence[int] = (64,),
        attention_hidden: int = 16,
        embedding: int | None = None,
        properties: Sequence[str] = ("energy",),
        knots: int | None = None,
        backend: str | None = None,
    ) -> None:
        arguments = dict(locals())
        super().__init__()
        self.species, irreps = read_species(species), as_irreps(hidden, "hidden")
        self.properties = read_properties(properties)
        heads = check_integer("heads", heads, 1, fix="4 is usual.")
        count = check_integer("layers", layers, 1, fix="3 are usual.")
        invariants = check_integer("attention_hidden", attention_hidden, 1, fix="16 is usual.")
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        widths = hidden_widths("radial_hidden", radial_hidden)
        scalars = even_scalars(check_heads("hidden", irreps, heads))
        width = scalars.dim if embedding is None else check_integer("embedding", embedding, 1, fix="32 is usual.")
        current = check_heads("embedding", o3.Irreps([(width, "0e")]), heads)
        self.embedding = torch.nn.Embedding(len(self.species), width)
        self.basis = tabled(BesselBasis(num_basis, cutoff, cutoff_p), knots)
        self.envelope = SmoothCutoff(cutoff)
        self.frame = EdgeFrame(max(ir.l for _, ir in irreps), backend=backend)
        steps = []
        for number in range(count):
            wanted = irreps if number < count - 1 else kept_irreps(irreps, self.properties)
            after = reachable_in_frames(current, wanted, mmax)
            sizes = (heads, invariants, mmax, self.frame.lmax, num_basis, widths)
            steps.append(EquiformerStep(current, after, *sizes, backend))
            steps[-1].damp((2 * count) ** -0.5)  # then the sum of all terms has about unit variance
            current = after
        self.steps = torch.nn.ModuleList(steps)
        self.read = Linear(current, property_irreps(self.properties), layout="ir_mul", backend=backend)
        read = {"hidden": irreps, "heads": heads, "layers": count, "radial_hidden": widths}
        self.options = plain_options(self, arguments, attention_hidden=invariants, **read)

    def forward(self, kind: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        """Properties of atoms ``[A, columns]``; see :class:`Potential`."""
        x = self.embedding(kind)
        frames, basis, envelope = self.frame(edges.vectors), self.basis(edges.lengths), self.envelope(edges.lengths)
        for step in self.steps:
            x = step(x, frames, basis, envelope, graph)
        columns: Tensor = self.read(x)
        return columns


class EquiformerStep(torch.nn.Module):
    """One layer: attention over neighbours, then a network on each atom, both added to the features.

    Heads divide every multiplicity of ``irreps_in``. Features that stay are kept, and others begin at zero. The radial
    network gives the factors of the features and ``attention_hidden`` invariants of an edge for each head.

    Attributes:
        sink: ``[heads]`` parameter, the logit of no neighbour, 0 at first.
    """

    def __init__(
        self,
        irreps_in: o3.Irreps,
        irreps_out: o3.Irreps,
        heads: int,
        attention_hidden: int,
        mmax: int | None,
        lmax: int,
        num_basis: int,
        radial_hidden: Sequence[int],
        backend: str | None = None,
    ) -> None:
        super().__init__()
        kind: dict[str, Any] = {"layout": "ir_mul", "backend": backend}
        self.heads, self.hidden, self.backend = heads, attention_hidden, backend
        self.norm = RMSNorm(irreps_in, "all", **kind)
        invariants = o3.Irreps([(heads * attention_hidden, "0e")])
        self.ends = Linear(irreps_in, o3.Irreps([(2 * invariants.dim, "0e")]), **kind)
        self.score = torch.nn.Parameter(torch.randn(heads, attention_hidden))
        self.sink = torch.nn.Parameter(torch.zeros(heads))
        self.gate, self.gate_alone = (GatedNonlinearity(irreps_out, **kind) for _ in range(2))
        self.conv = SO2Convolution(irreps_in, self.gate.irreps_in, mmax, lmax=lmax, **kind)
        self.radial = ScalarNetwork([num_basis, *radial_hidden, invariants.dim + self.conv.num_scales])
        pieces = [columns.stop - columns.start for _, _, columns in self.conv.scale_slices()]
        self._per_head = Form(heads_program(o3.Irreps([(mul, "0e") for mul in pieces]), heads, "ir_mul"))
        self.mix = Linear(irreps_out, irreps_out, **kind)
        self.keep = None if irreps_in == irreps_out else Linear(irreps_in, irreps_out, **kind)
        self.norm_alone = RMSNorm(irreps_out, "all", **kind)
        self.widen, self.narrow = (
            Linear(irreps_out, self.gate_alone.irreps_in, **kind),
            Linear(irreps_out, irreps_out, **kind),
        )

    @torch.no_grad()
    def damp(self, factor: float) -> None:
        """Scale the initial weights of both terms, as sums over many layers need it."""
        self.mix.weight.mul_(factor)
        self.narrow.weight.mul_(factor)

    def forward(self, x: Tensor, frames: Tensor, basis: Tensor | KnotBasis, envelope: Tensor, graph: Graph) -> Tensor:
        """``[A, irreps_in.dim]`` to ``[A, irreps_out.dim]``."""
        y = self.norm(x)
        radial = self.radial(basis)
        radial = radial.weights() if isinstance(radial, TabledWeights) else radial
        invariants, factors = radial.split([self.heads * self.hidden, self.conv.num_scales], -1)
        src, dst = graph.ends
        query, key = self.ends(y).chunk(2, -1)
        invariants = invariants + taken(query, dst) + taken(key, src)
        active = smooth_leaky_relu(invariants).unflatten(-1, (self.heads, self.hidden))
        logits = (active * (self.score * self.hidden**-0.5)).sum(-1)
        shares = edge_softmax(logits, graph, envelope=envelope, sink=self.sink)
        factors, shares = widest_under_autocast(factors, shares)
        operands = factors, shares, factors.new_empty(0)
        scales = run_program(self._per_head.calls[False, True], operands, None, self.backend)
        received = self.mix(self.gate(self.conv(y, frames, graph, scales)))
        x = received + (x if self.keep is None else self.keep(x))
        result: Tensor = x + self.narrow(self.gate_alone(self.widen(self.norm_alone(x))))
        return result


def reachable_in_frames(irreps_in: o3.Irreps, wanted: o3.Irreps, mmax: int | None = None) -> o3.Irreps:
    r"""The irreps of ``wanted`` that a convolution in frames makes of irreps_in.

    Order m = 0 joins irreps of one sign :math:`p (-1)^l`, every other order all that have it.

    Example:
        >>> reachable_in_frames(o3.Irreps("4x0e"), o3.Irreps("4x0e + 4x1e + 4x1o"))
        4x0e+4x1o
    """

    def joined(a: Any, b: Any) -> bool:
        return bool(a.p * (-1) ** a.l == b.p * (-1) ** b.l or (mmax != 0 and min(a.l, b.l) > 0))

    return o3.Irreps([(mul, ir) for mul, ir in wanted if any(joined(one, ir) for _, one in irreps_in)])
