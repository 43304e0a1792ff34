"""Equiformer: attention over neighbours, with messages computed in the frames of edges."""

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
from ..core.forms.description import Form
from ..core.graph import Graph
from ..irreps.algebra import as_irreps
from ..layers.attention.functions import check_heads, edge_softmax, heads_program
from ..layers.attention.module import smooth_leaky_relu
from ..layers.gate.activation import GatedNonlinearity
from ..layers.harmonics.module import EdgeVectors
from ..layers.linear.module import Linear
from ..layers.norm.module import RMSNorm
from ..layers.radial.cutoffs import SmoothCutoff
from ..layers.radial.module import BesselBasis, ScalarNetwork, hidden_widths
from ..layers.radial.tables import KnotBasis, tabled
from ..layers.rotation.module import EdgeFrame
from ..layers.so2.module import SO2Convolution
from ..layers.tensor_product.tabled_weights import TabledWeights
from .properties import even_scalars, plain_options, property_irreps, read_properties, readout_irreps


class Equiformer(torch.nn.Module):
    r"""Energies of atoms by a transformer with convolutions in the frames of edges, for :class:`Potential`.

    From :math:`x^0_i = a_{Z_i}`, every layer adds two terms. The first comes from the neighbours, over the edges
    :math:`e = (j \to i)`, with :math:`y = \mathrm{norm}(x)` and for each head h

    .. math:: s_{eh} = b_h \cdot \phi\big(q_h(y_i) + k_h(y_j) + t_h(r_e)\big), \qquad
              a_{eh} = \frac{f(r_e)\, e^{s_{eh}}}{e^{s_{0h}} + \sum_{e' \to i} f(r_{e'})\, e^{s_{e'h}}}

    .. math:: x'_i = x_i + W_2\, \mathrm{gate} \sum_e D_e^T\, W\, \big(a_{e h(u)} R(r_e) \odot D_e\, y_j\big), \qquad
              x''_i = x'_i + W_4\, \mathrm{gate}\big(W_3\, \mathrm{norm}(x'_i)\big)

    where q and k are linear in scalars, t and R are columns of one radial network, and :math:`\phi` is a smooth leaky
    ReLU. Head h(u) weights channel u: heads divide the copies of every irrep among them. W acts in the frame of the
    edge, see :class:`eqlayers.nn.SO2Convolution`, and mixes heads. It is equivariant under inversion, which leaves half
    the weights of the source. The energy is :math:`e_i = w \cdot x^T_i`.

    The envelope f ends with all its derivatives at the cutoff and is part of the softmax, so an atom that leaves adds
    no kink to any derivative of the energy. Features are divided by one root mean square over all degrees, which the
    features of the species keep away from zero. Weights of a node add up to less than 1, so there is no mean number of
    neighbours to set.

    Args:
        species: Symbols or atomic numbers that occur.
        hidden: Irreps of the features between the layers, up to degree 12; irreps that no path reaches are left out.
        heads: Number of attention heads, a divisor of every multiplicity.
        layers: Number of layers, at least 1.
        mmax: Largest order in the frames, None for all; features of high degree are cheaper with 2.
        num_basis: Number of Bessel functions of an edge's length.
        cutoff: Angstrom.
        cutoff_p: Power of the envelope of the Bessel functions.
        radial_hidden: Widths of the radial networks.
        attention_hidden: Number of invariants of an edge for each head.
        embedding: Number of scalars of an atom before the first layer; None for as many as hidden has.
        properties: Predicted properties, among 'energy', 'dipole' and 'polarizability'.
        knots: Number of knots of the tables that replace radial networks, see :class:`eqlayers.nn.TabledBasis`; None to
            evaluate the networks at every edge.
        backend: Name of a backend, or None for the first that supports the layer.

    Raises:
        IrrepsError, ConfigError: hidden without even scalars or not for so many heads, or a number out of range.

    Source:
        Liao et al. 2023, EquiformerV2, arXiv:2306.12059; Passaro and Zitnick 2023, eSCN, arXiv:2302.03655; Liao and
        Smidt 2022, Equiformer, arXiv:2206.11990. Logits here are computed from invariants of sender and receiver, in
        EquiformerV2 from messages.

    Example:
        >>> from eqlayers.models import Potential, Structures
        >>> potential = Potential(Equiformer([1, 8], hidden="8x0e + 8x1o", layers=2), species=[1, 8])
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> potential(Structures(torch.tensor([1, 8]), torch.randn(2, 3), pair))["forces"].shape
        torch.Size([2, 3])
    """

    irreps_sh = o3.Irreps("0e")  # the network uses frames of edges and no harmonics

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
            target = irreps if number < count - 1 else readout_irreps(irreps, self.properties)
            after = reachable_in_frames(current, target, mmax)
            sizes = (heads, invariants, mmax, self.frame.lmax, num_basis, widths)
            steps.append(EquiformerStep(current, after, *sizes, backend))
            current = after
        with torch.no_grad():
            for linear in (linear for step in steps for linear in (step.mix, step.narrow)):
                linear.weight.mul_((2 * count) ** -0.5)  # so that the sum of all terms has about unit variance
        self.steps = torch.nn.ModuleList(steps)
        self.read = Linear(current, property_irreps(self.properties), layout="ir_mul", backend=backend)
        read = {"hidden": irreps, "heads": heads, "layers": count, "radial_hidden": widths}
        self.options = plain_options(self, arguments, attention_hidden=invariants, **read)

    def forward(self, atom_types: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        """Outputs of atoms ``[A, columns]``; see the argument ``network`` of :class:`Potential`."""
        x = self.embedding(atom_types)
        frames, basis, envelope = self.frame(edges.vectors), self.basis(edges.lengths), self.envelope(edges.lengths)
        for step in self.steps:
            x = step(x, frames, basis, envelope, graph)
        return self.read(x)


class EquiformerStep(torch.nn.Module):
    """One layer: attention over neighbours, then a network on each atom, both added to the features.

    Every multiplicity of ``irreps_in`` is a multiple of ``heads``. Irreps that ``irreps_in`` lacks start from zero. The
    radial network computes the factors of the features and ``attention_hidden`` invariants of an edge for each head.

    Attributes:
        sink: ``[heads]`` parameter, logit of an additional term of the softmax that stands for no neighbour, 0 at
            first.
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
        options: dict[str, Any] = {"layout": "ir_mul", "backend": backend}
        self.heads, self.hidden, self.backend = heads, attention_hidden, backend
        self.norm = RMSNorm(irreps_in, "all", **options)
        invariants = o3.Irreps([(heads * attention_hidden, "0e")])
        self.ends = Linear(irreps_in, o3.Irreps([(2 * invariants.dim, "0e")]), **options)
        self.score = torch.nn.Parameter(torch.randn(heads, attention_hidden))
        self.sink = torch.nn.Parameter(torch.zeros(heads))
        self.gate, self.gate_alone = (GatedNonlinearity(irreps_out, **options) for _ in range(2))
        self.conv = SO2Convolution(irreps_in, self.gate.irreps_in, mmax, lmax=lmax, **options)
        self.radial = ScalarNetwork([num_basis, *radial_hidden, invariants.dim + self.conv.num_scales])
        lengths = [columns.stop - columns.start for _, _, columns in self.conv.scale_slices()]
        self._per_head = Form(heads_program(o3.Irreps([(mul, "0e") for mul in lengths]), heads, "ir_mul"))
        self.mix = Linear(irreps_out, irreps_out, **options)
        self.keep = None if irreps_in == irreps_out else Linear(irreps_in, irreps_out, **options)
        self.norm_alone = RMSNorm(irreps_out, "all", **options)
        self.widen = Linear(irreps_out, self.gate_alone.irreps_in, **options)
        self.narrow = Linear(irreps_out, irreps_out, **options)

    def forward(self, x: Tensor, frames: Tensor, basis: Tensor | KnotBasis, envelope: Tensor, graph: Graph) -> Tensor:
        """Features ``[A, irreps_in.dim]`` to features ``[A, irreps_out.dim]``."""
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
        return x + self.narrow(self.gate_alone(self.widen(self.norm_alone(x))))


def reachable_in_frames(irreps_in: o3.Irreps, irreps_out: o3.Irreps, mmax: int | None = None) -> o3.Irreps:
    r"""The irreps of ``irreps_out`` that :class:`eqlayers.nn.SO2Convolution` can compute from ``irreps_in``.

    Order m = 0 connects irreps of equal sign :math:`p (-1)^l`, every other order all irreps of degree at least m.
    """

    def connected(a: Any, b: Any) -> bool:
        return bool(a.p * (-1) ** a.l == b.p * (-1) ** b.l or (mmax != 0 and min(a.l, b.l) > 0))

    return o3.Irreps([(mul, ir) for mul, ir in irreps_out if any(connected(a, ir) for _, a in irreps_in)])
