"""Spherical harmonics of vectors, with e3nn's signature and numbers, and the geometry of edges, from positions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.backends import check_backend
from ...core.backends.rows import taken
from ...core.checks import check_choice, check_flag, check_floating, check_tensor, fixed
from ...core.dtypes import ACCUMULATE, check_same_dtype, device_error
from ...core.errors import DTypeError, IndexRangeError, ShapeError
from ...core.graph import Graph, as_graph, check_range
from ...core.torch_internals import is_plain
from ...e3nn_compat.torchscript import described, is_tracing, operator
from ..base.module import FormulaModule, run_formula
from .lower import NORMALIZATIONS, SHIFTS, edge_formula, harmonics_formula, read_degrees

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def run_harmonics(base: Formula, x: Tensor, backend: str | None) -> Tensor:
    """Evaluate a formula of spherical harmonics at vectors: ``[..., 3]`` to ``[..., dim]``."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.dtype not in ACCUMULATE:
        check_same_dtype(x=check_floating("x", x, "[..., 3]"))
    shape = x.shape
    if not shape or shape[-1] != 3:
        raise ShapeError(f"x must be [..., 3], vectors along the last axis, got {list(shape)}. Move the axis there.")
    if len(shape) == 2:
        return run_formula(base, (x,), None, backend)[0]
    (y,) = run_formula(base, (x.reshape(-1, 3),), None, backend)
    return y.reshape(*shape[:-1], y.shape[-1])


def read_shifts(pos: Tensor, graph: Graph, shifts: Any, cell: Any, batch: Any) -> tuple[str, tuple[Tensor, ...]]:
    """Check how receivers of edges are shifted to other cells: a name of `SHIFTS`, and the tensors that it needs.

    The tensors are operands of `edge_formula` after both positions: shifts ``[E, 3]``, and cells ``[9]`` or ``[N, 9]``.
    See ``nn.EdgeGeometry.forward`` for the arguments, and for the errors if they do not fit each other.
    """
    if shifts is None:
        if cell is not None:
            raise ShapeError(
                "shifts must be [E, 3], how many lattice vectors an edge crosses, where there is a cell, got None. "
                "Pass zeros for none, or no cell."
            )
        return "none", ()
    check_tensor("shifts", shifts, "[E, 3]")
    if shifts.shape != (graph.num_edges, 3):
        raise ShapeError(
            f"shifts must be [{graph.num_edges}, 3], a row for each edge, got {list(shifts.shape)}. Check edge_index."
        )
    if cell is None:
        if shifts.dtype in _INTEGERS:
            raise DTypeError(
                f"shifts must be vectors of {pos.dtype} without a cell, got {shifts.dtype}. Pass the cell as well."
            )
        check_same_dtype(pos=pos, shifts=shifts)
        return "vector", (shifts,)
    check_same_dtype(pos=pos, cell=check_floating("cell", cell, "[3, 3] or [B, 3, 3]"))
    if cell.ndim not in (2, 3) or cell.shape[-2:] != (3, 3):
        raise ShapeError(
            f"cell must be [3, 3] or [B, 3, 3], one lattice vector a row, got {list(cell.shape)}. Reshape it."
        )
    if shifts.dtype in _INTEGERS:
        _check_size(shifts, pos.dtype)
        shifts = shifts.to(pos.dtype)
    check_same_dtype(pos=pos, shifts=shifts)
    if cell.ndim == 2 or (batch is None and cell.shape[0] == 1):
        return "cell", (shifts, cell.reshape(9))
    return "cells", (shifts, _of_nodes(cell, batch, pos.shape[0]))


def _check_size(shifts: Tensor, dtype: torch.dtype) -> None:
    """Raise if a number of lattice vectors is not exact in ``dtype``; checked on the CPU only, and not in a trace."""
    most = int(2 / torch.finfo(dtype).eps)
    if shifts.is_cpu and shifts.numel() and is_plain((shifts,)):
        least, largest = (int(end) for end in shifts.aminmax())
        if least < -most or largest > most:
            raise IndexRangeError(
                f"shifts must be from {-most} to {most}, the integers that {dtype} holds, got {least} to {largest}. "
                "Fold the positions into the cell, or look for numbers that were never written."
            )


def _of_nodes(cell: Tensor, batch: Any, nodes: int) -> Tensor:
    """``[N, 9]``: the cell of every node."""
    if batch is None or check_tensor("batch", batch, f"[{nodes}]").shape != (nodes,):
        shown = "None" if batch is None else str(list(batch.shape))
        raise ShapeError(
            f"batch must be [{nodes}], the number of each node's cell among {cell.shape[0]}, got {shown}. "
            f"Pass it, or one cell [3, 3]."
        )
    if batch.dtype not in (torch.int32, torch.int64):
        raise DTypeError(f"batch must be an int64 or int32 tensor [{nodes}], got {batch.dtype}. Use `.long()`.")
    if batch.device != cell.device:
        raise device_error("batch", batch, "cell", cell)
    check_range("batch", batch, cell.shape[0], "cells")
    return taken(cell.reshape(-1, 9), batch)


def spherical_harmonics(
    l: Any, x: Tensor, normalize: bool, normalization: str = "integral", *, backend: str | None = None
) -> Tensor:
    """:class:`eqlayers.nn.SphericalHarmonics` as a function, ``[..., 3]`` to ``[..., sum(2 l + 1)]``; errors as there.

    Args:
        l: Irreps, one degree or a list of degrees, in any order, each up to 20.
        x: ``[..., 3]``.
        normalize, normalization, backend: See the layer.

    Example:
        >>> import torch
        >>> spherical_harmonics([0, 1], torch.tensor([0.0, 2.0, 0.0]), True, "component")
        tensor([1.0000, 0.0000, 1.7321, 0.0000])
    """
    check_backend(backend)
    norm = check_choice("normalization", normalization, NORMALIZATIONS)
    base = _harmonics(fixed(l), check_flag("normalize", normalize), norm)
    return run_harmonics(base, x, backend)


@torch.compiler.assume_constant_result
def _harmonics(l: Any, normalize: bool, normalization: str) -> Formula:
    """The cached formula of harmonics; compilers do not trace this."""
    return harmonics_formula(read_degrees(l)[0], normalize, normalization)


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


#: A layer from the description that `SphericalHarmonics._spec` writes.
_layer = described(lambda spec: SphericalHarmonics(*spec[:-1], backend=spec[-1]))


@operator("layer_harmonics(str spec, Tensor x) -> Tensor")
def _layer_harmonics(spec: str, x: Tensor) -> Tensor:
    layer = _layer(spec)
    return run_harmonics(layer._formulas[0], x, layer.backend)


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
        irreps_out, normalization, irreps_in, backend: Of the harmonics of the directions; see
            :class:`SphericalHarmonics`, also for errors.
        direction: 'src_to_dst' as above, or 'dst_to_src' for the opposite vectors, :math:`-r_e`.

    Attributes:
        irreps_out: Of the harmonics.

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
        self._formulas = [edge_formula(self._degrees, self.normalization, shift, sign) for shift in SHIFTS]

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
        check_same_dtype(pos=check_floating("pos", pos, "[N, 3]"))
        if pos.ndim != 2 or pos.shape[1] != 3:
            raise ShapeError(
                f"pos must be [N, 3], a row for each node, got {list(pos.shape)}. Flatten batch axes into N."
            )
        graph = as_graph(edge_index, pos.shape[0], pos.shape[0])
        shift, moved = read_shifts(pos, graph, shifts, cell, batch)
        if graph.edge_index.device != pos.device:
            raise device_error("edge_index", graph.edge_index, "pos", pos)
        results = run_formula(self._formulas[SHIFTS.index(shift)], [pos, pos, *moved], graph, self.backend)
        vectors, lengths, directions, harmonics = results
        return EdgeVectors(vectors, lengths.squeeze(1), directions, harmonics)

    def _spec(self) -> str:
        options = (self.normalization, str(self.irreps_in), self.direction, self.backend)
        return json.dumps([self._degrees, *options])

    def extra_repr(self) -> str:
        """Irreps, options and backend."""
        options = f"{self.direction}, {self.normalization}, backend {self.backend or 'auto'}"
        return f"{self.irreps_in} -> {self.irreps_out} | {options}"


#: A layer from the description that `EdgeGeometry._spec` writes.
_edge_layer = described(lambda spec: EdgeGeometry(*spec[:-2], direction=spec[-2], backend=spec[-1]))


@operator(
    "layer_edges(str spec, Tensor pos, Tensor edge_index, Tensor? shifts, Tensor? cell, Tensor? batch) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
def _layer_edges(spec: str, *operands: Any) -> Any:
    return tuple(_edge_layer(spec).forward(*operands))
