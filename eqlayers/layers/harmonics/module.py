"""Spherical harmonics of vectors, with e3nn's signature and numbers, and the geometry of edges from positions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.checks import check_choice, check_flag
from ...core.graph import Graph, as_graph
from ...e3nn_compat.torchscript import described, is_tracing, operator
from ..base.module import FormulaModule
from .functions import check_positions, read_shifts, run_edges, run_harmonics
from .lower import NORMALIZATIONS, SHIFTS, edge_formula, harmonics_formula, read_degrees


@compile_mode("trace")  # for e3nn.util.jit
class SphericalHarmonics(FormulaModule):
    r"""Real spherical harmonics :math:`Y_l(r)` as polynomials; a drop-in for ``e3nn.o3.SphericalHarmonics``.

    Derivatives of every order are finite everywhere. With ``normalize`` the zero vector has no direction: its harmonics
    of l = 0 are the same as of any vector, the others and all derivatives are 0. Vectors shorter than 1e-9 in float32
    and 1e-50 in float64 count as zero, and so do vectors whose square overflows, beyond 1e19 in float32. Half precision
    is computed in float32.

    Args:
        irreps_out: Irreps, one degree, or a list of degrees in any order, also repeated, each up to 20.
        normalize: Whether harmonics of the direction, :math:`Y_l(r / |r|)`; else homogeneous polynomials of degree l.
        normalization: 'component': :math:`|Y_l|^2 = 2 l + 1` on the sphere. 'norm': 1. 'integral': the integral of
            each component's square over the sphere is 1.
        irreps_in: '1o' or '1e'; None for '1e' if irreps_out holds even irreps of odd l, else '1o'.
        backend: Name of a backend, or None for the best of the device.

    Attributes:
        irreps_in: Of the vector. irreps_out: Of the harmonics, simplified.

    Raises:
        IrrepsError, ConfigError: Invalid degrees, parities or options, or an unknown backend.

    Source:
        See :mod:`eqlayers.layers.harmonics.lower`.

    Example:
        >>> sh = SphericalHarmonics("0e + 1o", normalize=True, normalization="norm")
        >>> sh(torch.tensor([0.0, 3.0, 4.0]))
        tensor([1.0000, 0.0000, 0.6000, 0.8000])
    """

    _torchscript = (("forward", "layer_harmonics(self.spec, x)"),)

    def __init__(
        self,
        irreps_out: Any,
        normalize: bool,
        normalization: str = "integral",
        irreps_in: Any = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__(backend=backend)
        self.normalize = check_flag("normalize", normalize)
        self.normalization = check_choice("normalization", normalization, NORMALIZATIONS)
        degrees, self.irreps_in, self.irreps_out = read_degrees(irreps_out, irreps_in)
        self._ls_list, self._lmax = list(degrees), max(degrees)
        self._is_range_lmax = self._ls_list == list(range(max(degrees) + 1))
        self._prof_str = f"spherical_harmonics({self._ls_list})"
        self._formulas = (harmonics_formula(degrees, self.normalize, self.normalization),)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., 3]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError for other vectors."""
        if is_tracing():
            return _layer_harmonics(self._spec(), x)
        return run_harmonics(self._formulas[0], x, self.backend)

    def _spec(self) -> str:
        options = (self.normalize, self.normalization, str(self.irreps_in), self.backend)
        return json.dumps([self._ls_list, *options])

    def extra_repr(self) -> str:
        """Irreps, options and backend."""
        of = "directions" if self.normalize else "vectors"
        return (
            f"{self.irreps_in} -> {self.irreps_out} | of {of}, {self.normalization}, backend {self.backend or 'auto'}"
        )


@described
def _layer(spec: Any) -> SphericalHarmonics:
    """A layer from the description that `SphericalHarmonics._spec` writes."""
    *options, backend = spec
    return SphericalHarmonics(*options, backend=backend)


@operator("layer_harmonics(str spec, Tensor x) -> Tensor")
def _run(spec: str, x: Tensor) -> Tensor:
    layer = _layer(spec)
    return run_harmonics(layer._formulas[0], x, layer.backend)


_layer_harmonics = torch.ops.eqlayers.layer_harmonics.default


#: Directions of vectors, and their sign relative to receiver minus sender.
_SIGNS = {"src_to_dst": 1, "dst_to_src": -1}


class EdgeVectors(NamedTuple):
    """The result of :class:`EdgeGeometry`, in the unit of the positions.

    Attributes:
        vectors: ``[E, 3]``.
        lengths: ``[E]``.
        directions: ``[E, 3]``, of length 1; 0 of the zero vector.
        harmonics: ``[E, irreps_out.dim]``.

    Example:
        >>> geometry = EdgeGeometry("0e + 1o", "norm")
        >>> edges = geometry(torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]]), torch.tensor([[0], [1]]))
        >>> edges.lengths, edges.harmonics
        (tensor([5.]), tensor([[1.0000, 0.0000, 0.6000, 0.8000]]))
    """

    vectors: Tensor
    lengths: Tensor
    directions: Tensor
    harmonics: Tensor


class EdgeGeometry(FormulaModule):
    r"""Vectors, lengths, directions and spherical harmonics of edges, from positions, with periodic cells.

    .. math:: r_e = x_{dst(e)} - x_{src(e)} + s_e, \qquad s_e = \sum_i n_{ei}\, a_i

    This is the sign of NequIP and MACE. One formula computes all results, so no other array per edge is written,
    and all is differentiable to every order by positions, cell and shifts: forces are the gradient by positions, the
    stress is that by a strain which positions and cell are multiplied with. The zero vector has length 0 and
    derivatives 0; see :class:`SphericalHarmonics` for what counts as zero.

    Args:
        irreps_out: Harmonics of the directions, as in :class:`SphericalHarmonics`.
        normalization: 'component', 'norm' or 'integral'.
        irreps_in: '1o' or '1e', as there.
        direction: 'src_to_dst' as above, or 'dst_to_src' for the opposite vectors, :math:`-r_e`.
        backend: Name of a backend, or None for the best of the device.

    Attributes:
        irreps_out: Of the harmonics.

    Raises:
        IrrepsError, ConfigError: Invalid degrees, parities or options, or an unknown backend.

    Example:
        >>> geometry = EdgeGeometry("0e + 1o + 2e")
        >>> pos = torch.zeros(1, 3, requires_grad=True)  # an atom and its image along the first lattice vector
        >>> cell = (2.0 * torch.eye(3)).requires_grad_()
        >>> edges = geometry(pos, torch.tensor([[0], [0]]), torch.tensor([[1, 0, 0]]), cell)
        >>> edges.vectors.tolist(), edges.harmonics.shape
        ([[2.0, 0.0, 0.0]], torch.Size([1, 9]))
    """

    def __init__(
        self,
        irreps_out: Any,
        normalization: str = "component",
        irreps_in: Any = None,
        *,
        direction: str = "src_to_dst",
        backend: str | None = None,
    ) -> None:
        super().__init__(backend=backend)
        self.normalization = check_choice("normalization", normalization, NORMALIZATIONS)
        self.direction = check_choice("direction", direction, _SIGNS)
        self._degrees, self.irreps_in, self.irreps_out = read_degrees(irreps_out, irreps_in)
        sign = _SIGNS[self.direction]
        self._formulas = {shift: edge_formula(self._degrees, self.normalization, shift, sign) for shift in SHIFTS}

    def forward(
        self,
        pos: Tensor,
        edge_index: Tensor | Graph,
        shifts: Tensor | None = None,
        cell: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> EdgeVectors:
        """Vectors, lengths, directions and harmonics.

        Args:
            pos: ``[N, 3]``, Angstrom or another unit of length.
            edge_index: ``[2, E]`` int64 or int32 (src, dst), or a :class:`eqlayers.Graph` of N senders and receivers.
            shifts: ``[E, 3]``. With a cell: how many lattice vectors the receiver is moved by, as integers or
                numbers of the dtype of pos. Without: the vector itself, in the unit of pos. None for no shift.
            cell: ``[3, 3]``, a lattice vector in each row, or ``[B, 3, 3]``.
            batch: ``[N]`` integers, the cell of each node among B; both nodes of an edge have the same.

        Returns:
            :class:`EdgeVectors`.

        Raises:
            ShapeError, DTypeError, DeviceError, IndexRangeError: The inputs do not fit each other.
        """
        if is_tracing():
            edges = edge_index.edge_index if isinstance(edge_index, Graph) else edge_index
            return EdgeVectors(*_layer_edges(self._spec(), pos, edges, shifts, cell, batch))
        pos = check_positions(pos)
        graph = as_graph(edge_index, pos.shape[0], pos.shape[0])
        shift = read_shifts(pos, graph, shifts, cell, batch)
        return EdgeVectors(*run_edges(self._formulas[shift.form], pos, graph, shift, self.backend))

    def formulas(self) -> tuple[Formula, ...]:
        """The formulas for each of `SHIFTS`."""
        return tuple(self._formulas.values())

    def _spec(self) -> str:
        options = (self.normalization, str(self.irreps_in), self.direction, self.backend)
        return json.dumps([self._degrees, *options])

    def extra_repr(self) -> str:
        """Irreps, options and backend."""
        options = f"{self.direction}, {self.normalization}, backend {self.backend or 'auto'}"
        return f"{self.irreps_in} -> {self.irreps_out} | {options}"


@described
def _edge_layer(spec: Any) -> EdgeGeometry:
    """A layer from the description that `EdgeGeometry._spec` writes."""
    *options, direction, backend = spec
    return EdgeGeometry(*options, direction=direction, backend=backend)


@operator(
    "layer_edges(str spec, Tensor pos, Tensor edge_index, Tensor? shifts, Tensor? cell, Tensor? batch) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
def _run_edges(spec: str, *operands: Any) -> Any:
    return tuple(_edge_layer(spec).forward(*operands))


_layer_edges = torch.ops.eqlayers.layer_edges.default
