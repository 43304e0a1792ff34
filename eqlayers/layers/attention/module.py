"""Attention over neighbours: invariant weights of edges, equivariant messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ...core.apply import run_program
from ...core.backends.rows import taken
from ...core.checks import check_choice, check_flag, check_floating, check_integer
from ...core.dtypes import of_one_dtype, widest_under_autocast
from ...core.errors import IrrepsError
from ...core.forms.description import Form
from ...core.graph import Graph, as_graph
from ...irreps.algebra import as_irreps
from ...irreps.instructions import paths
from ...irreps.layout import FlatLayout
from ..base.module import EquivariantModule, FormModule
from ..convolution.module import TensorProductConv
from ..linear.module import Linear
from ..radial.module import ScalarNetwork, hidden_widths
from ..tensor_product.module import TensorProduct
from .functions import check_heads, check_rows, dots_program, edge_softmax, heads_program, receivers, run_aggregate


class AttentionAggregate(FormModule):
    r"""Sum of messages over the edges into each node, weighted by an attention of several heads.

    .. math:: z_{i, u m} = \sum_{e = (j \to i)} a_{e, h(u)}\, v_{e, u m}, \qquad
              a_e = \frac{f_e\, e^{s_e}}{e^{s_0} + \sum_{k \to i} f_k\, e^{s_k}}

    Head h has the h-th share of the copies of every irrep. The weights are :func:`eqlayers.functional.edge_softmax`,
    with an envelope: the weight of an edge goes to 0 at the cutoff, with as many continuous derivatives
    as the envelope, even if it is the only edge. The sum over neighbours is part of the kernel, so that weighted
    messages are never stored, except on GPUs if a head has several copies of an irrep.

    Args:
        irreps: Of the messages and of the result.
        heads: Number of heads, which divides every multiplicity.
        deterministic: Whether a GPU must add in a fixed order.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        sink: ``[heads]`` parameter, the logit :math:`s_0` of each head, 0 at first.

    Raises:
        IrrepsError: The heads do not divide a multiplicity. ConfigError: An option out of range.

    Source:
        Fuchs et al. 2020, arXiv:2006.10503, eq. 10; Xiao et al. 2024, arXiv:2309.17453, for sinks.

    Example:
        >>> layer = AttentionAggregate("4x0e + 2x1o", heads=2)
        >>> edge_index = torch.tensor([[0, 1, 2], [2, 2, 0]])
        >>> layer(torch.ones(3, 10), torch.zeros(3, 2), edge_index, 3)[:, 0]
        tensor([0.5000, 0.0000, 0.6667], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        irreps: Any,
        heads: int = 1,
        *,
        deterministic: bool = True,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.heads = check_integer("heads", heads, 1, fix="4 is usual.")
        self.irreps_in = self.irreps_out = check_heads("irreps", as_irreps(irreps), self.heads)
        self.deterministic = check_flag("deterministic", deterministic)
        self.num_paths = len(self.irreps_in)
        self._flat = FlatLayout(self.irreps_in, layout)
        self._form = Form(heads_program(self.irreps_in, self.heads, layout))
        self.sink = torch.nn.Parameter(torch.zeros(self.heads))

    def forward(
        self,
        values: Tensor,
        logits: Tensor,
        edge_index: Tensor | Graph,
        num_nodes: int | None = None,
        envelope: Tensor | None = None,
    ) -> Tensor:
        """Weight messages by attention, and sum them at receivers.

        Args:
            values: ``[E, irreps.dim]``, the messages.
            logits: ``[E, heads]``.
            edge_index: ``[2, E]`` (src, dst); dst receives; or a :class:`eqlayers.Graph`.
            num_nodes: Number of receivers; may be left out for a graph.
            envelope: ``[E]``, 0 at the cutoff; 1 if None, and then messages do not vanish there.

        Returns:
            ``[num_nodes, irreps.dim]``; zero for nodes without edges.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
            IndexRangeError: An index of an edge is out of range (checked on the CPU only).
        """
        sink = self.sink.to(check_floating("logits", logits, "[E, heads]").dtype)
        operands = values, logits, receivers(edge_index, num_nodes), self.heads, envelope, sink
        return run_aggregate(self._form, *operands, self.deterministic, self.backend)

    def extra_repr(self) -> str:
        """Irreps, heads, layout and backend."""
        return f"{self.irreps_in} | {self.heads} heads | {self._kind()}"


class EquivariantAttention(EquivariantModule):
    r"""Message passing with attention: invariants weight the message of each neighbour.

    .. math:: z_i = W_2 \sum_{e = (j \to i)} a_e \big((W_1 x_j) \otimes_{R(t_e)} Y_e\big), \qquad
              a_e = \frac{f_e\, e^{s_e}}{e^{s_0} + \sum_{k \to i} f_k\, e^{s_k}}

    The weights :math:`a_e` belong to heads, each with a share of the channels. They multiply the weights of the tensor
    product, R, so gather, product, attention and sum are one convolution, and no messages are stored. Logits are, with
    queries q and keys k linear in the features of receiver and sender:

    * ``'dot'``: :math:`s_e = \sum_u r_u(t_e)\, q_{i u} \cdot k_{j u} / \sqrt{d}` over the copies of a head, of d
      components in all, with r linear in the scalars of the edge.
    * ``'mlp'``: :math:`s_e = b^T \phi\big(q_i + \sum_l r_l(t_e)\, k_{j}^{(l)} \cdot Y_e^{(l)}\big)`, of ``hidden``
      invariants of the message for each head, with a smooth leaky ReLU :math:`\phi`.

    Both are smooth, and messages vanish at the cutoff; see :func:`eqlayers.functional.edge_softmax`.

    Args:
        irreps_in, irreps_out: Of the node features before and after; heads divide every multiplicity before.
        irreps_sh: Of the edge attributes, multiplicity 1.
        num_scalars: Scalars of an edge, t, such as the functions of a :class:`BesselBasis`.
        heads: Number of heads.
        logits: 'mlp' or 'dot'.
        hidden: Invariants for each head, for 'mlp'.
        radial_hidden: Widths of the hidden layers of R.
        layout: 'ir_mul' (the fast one) or 'mul_ir'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        sink: ``[heads]`` parameter, the logit :math:`s_0` of each head, 0 at first.

    Raises:
        IrrepsError: The heads do not divide a multiplicity, or no path arrives. ConfigError: An option out of range.

    Source:
        'dot': Fuchs et al. 2020, arXiv:2006.10503, eqs. 10 to 13. 'mlp': Liao and Smidt 2022, arXiv:2206.11990,
        section 4.3 and eq. 4.

    Example:
        >>> layer = EquivariantAttention("4x0e + 4x1o", "0e + 1o", "4x0e + 4x1o", num_scalars=8, heads=2)
        >>> graph = Graph(torch.tensor([[0, 1, 2], [2, 2, 0]]), 3)
        >>> layer(torch.randn(3, 16), torch.randn(3, 4), torch.randn(3, 8), graph, torch.ones(3)).shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        irreps_in: Any,
        irreps_sh: Any,
        irreps_out: Any,
        num_scalars: int = 8,
        heads: int = 4,
        logits: str = "mlp",
        hidden: int = 16,
        radial_hidden: Sequence[int] = (64,),
        *,
        layout: str = "ir_mul",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        kwargs: dict[str, Any] = {"layout": layout, "backend": backend}
        self.heads = check_integer("heads", heads, 1, fix="4 is usual.")
        self.num_scalars = check_integer("num_scalars", num_scalars, 1, fix="Take the num_basis of a basis.")
        self.logits = check_choice("logits", logits, ("mlp", "dot"))
        self.hidden = check_integer("hidden", hidden, 1, fix="16 is usual.")
        widths = hidden_widths("radial_hidden", radial_hidden)
        self.irreps_in = check_heads("irreps_in", as_irreps(irreps_in, "irreps_in"), self.heads)
        self.irreps_sh, self.irreps_out = as_irreps(irreps_sh, "irreps_sh"), as_irreps(irreps_out, "irreps_out")
        middle, instructions = paths(self.irreps_in, self.irreps_sh, self.irreps_out)
        self.num_paths = len(instructions)
        self.up = Linear(self.irreps_in, self.irreps_in, **kwargs)
        self.product = TensorProductConv(
            self.irreps_in, self.irreps_sh, middle, instructions, internal_weights=False, shared_weights=False, **kwargs
        )
        self.radial = ScalarNetwork([self.num_scalars, *widths, self.product.weight_numel])
        self.down = Linear(middle, self.irreps_out, **kwargs)
        weights = o3.Irreps([(self.irreps_in[i].mul * self.irreps_sh[j].mul, "0e") for i, j, *_ in instructions])
        self._per_head = Form(heads_program(weights, self.heads, layout))
        if self.logits == "dot":
            self.query, self.key = (Linear(self.irreps_in, self.irreps_in, **kwargs) for _ in range(2))
            self._compare = Form(dots_program(self.irreps_in, self.heads, layout))
        else:
            self._make_mlp(kwargs)
        count = self._compare.program.widths[2]
        self.compare = torch.nn.Parameter(torch.randn(self.num_scalars, count))
        self.sink = torch.nn.Parameter(torch.zeros(self.heads))

    def _make_mlp(self, kwargs: dict[str, Any]) -> None:
        count = self.heads * self.hidden
        common = [ir for _, ir in self.irreps_sh if any(ir == other for _, other in self.irreps_in)]
        if not common:
            raise IrrepsError(
                f"some irrep of irreps_sh must be among irreps_in, for invariants of both, got {self.irreps_sh} and "
                f"{self.irreps_in}. Add 0e to both."
            )
        keys = o3.Irreps([(count, ir) for ir in dict.fromkeys(common)])
        index = {ir: number for number, (_, ir) in enumerate(self.irreps_sh)}
        invariants = o3.Irreps([(count, "0e")])
        self.query, self.key = Linear(self.irreps_in, invariants, **kwargs), Linear(self.irreps_in, keys, **kwargs)
        paths = [(i, index[ir], 0, "uvu", True) for i, (_, ir) in enumerate(keys)]
        product = TensorProduct(keys, self.irreps_sh, invariants, paths, shared_weights=False, **kwargs)
        self._compare = product.plan.form
        self.read = torch.nn.Parameter(torch.randn(self.heads, self.hidden))

    def forward(
        self,
        x: Tensor,
        edge_attr: Tensor,
        edge_scalars: Tensor,
        edge_index: Tensor | Graph,
        envelope: Tensor | None = None,
    ) -> Tensor:
        """Run one step of attention.

        Args:
            x: ``[N, irreps_in.dim]`` node features.
            edge_attr: ``[E, irreps_sh.dim]`` spherical harmonics of the edges.
            edge_scalars: ``[E, num_scalars]``.
            edge_index: ``[2, E]`` (src, dst); dst receives; or a :class:`eqlayers.Graph` of N nodes.
            envelope: ``[E]``, 0 at the cutoff, such as of :class:`PolynomialCutoff`; 1 if None, and then weights do not
                vanish there.

        Returns:
            ``[N, irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError, IndexRangeError: The inputs do not fit the layer or each other.
        """
        self.product.plan.layouts[0].check("x", x)
        graph = as_graph(edge_index, x.shape[0], x.shape[0])
        check_rows("edge_attr", edge_attr, graph.num_edges, self.product.plan.layouts[1].dim)
        check_rows("edge_scalars", edge_scalars, graph.num_edges, self.num_scalars)
        x, edge_attr, edge_scalars = of_one_dtype(x=x, edge_attr=edge_attr, edge_scalars=edge_scalars)
        logits = self._logits(x, edge_attr, edge_scalars, graph)
        sink = self.sink.to(logits.dtype)
        shares = edge_softmax(logits, graph, envelope=envelope, sink=sink)
        weights, shares = widest_under_autocast(self.radial(edge_scalars), shares)
        operands = weights, shares, weights.new_empty(0)
        weights = run_program(self._per_head.calls[False, True], operands, None, self.backend)
        return self.down(self.product(self.up(x), edge_attr, weights, graph))

    def _logits(self, x: Tensor, edge_attr: Tensor, edge_scalars: Tensor, graph: Graph) -> Tensor:
        """The attention logits of the edges, ``[E, heads]``."""
        weights = edge_scalars @ (self.compare * self.num_scalars**-0.5)
        query, key = self.query(x), self.key(x)
        if self.logits == "dot":
            operands = widest_under_autocast(key, query, weights)
            return run_program(self._compare.calls["src", "dst"], operands, graph, self.backend)
        operands = widest_under_autocast(key, edge_attr, weights)
        invariants = run_program(self._compare.calls["src", "each"], operands, graph, self.backend)
        invariants = invariants + taken(query, graph.ends[1])
        active = smooth_leaky_relu(invariants).unflatten(-1, (self.heads, self.hidden))
        return (active * (self.read * self.hidden**-0.5)).sum(-1)

    def extra_repr(self) -> str:
        """Irreps, heads, logits, layout and backend."""
        irreps = f"{self.irreps_in} x {self.irreps_sh} -> {self.irreps_out}"
        return f"{irreps} | {self.num_paths} paths | {self.heads} heads, {self.logits} | {self._kind()}"


def smooth_leaky_relu(x: Tensor, slope: float = 0.2) -> Tensor:
    r"""A leaky ReLU without its kink: :math:`x\,(\alpha + (1 - \alpha)\, \sigma(x))`, of any shape."""
    return slope * x + (1 - slope) * torch.nn.functional.silu(x)
