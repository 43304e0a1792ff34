"""Linear maps and convolutions in the frames of edges, where products with harmonics are matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_integer, check_optional
from ...core.errors import ConfigError, ShapeError
from ...core.forms.request import Request
from ...core.graph import as_graph
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS
from ...sparse import ProgramInfos, infos_of
from ..base.module import EquivariantModule
from ..linear.module import Linear
from ..rotation.module import EdgeFrame
from ..tensor_product.module import ProductLayer, TensorProduct
from .functions import SO2Plan, check_weight, run_convolution, run_linear
from .lower import HARMONICS_AT_Y, PARITIES, check_convertible, so2_weights

if TYPE_CHECKING:
    from typing_extensions import Self


class SO2Layer(EquivariantModule):
    """Base of layers that sort features by order m, multiply each order by a matrix, and sort back."""

    _before = "sorting by order m"  # the first step, in the words of explain(); the last step undoes it
    weight: Tensor

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        mmax: int | None,
        parity: str,
        internal_weights: bool,
        layout: str,
        backend: str | None,
        lmax: int | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in, self.irreps_out = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        check_choice("layout", layout, LAYOUTS)
        self.mmax = check_optional(lambda name, value: check_integer(name, value, 0), "mmax", mmax)
        self.parity = check_choice("parity", parity, PARITIES)
        self._plan = SO2Plan(self.irreps_in, self.irreps_out, self.mmax, parity, layout, lmax)
        self.num_paths, self.num_scales = len(self._plan.orders), self._plan.num_scales
        self.weight_numel = self._plan.weight_numel
        self.internal_weights = check_flag("internal_weights", internal_weights)
        if self.internal_weights:
            self.weight = torch.nn.Parameter(torch.randn(self.weight_numel))
        else:
            self.register_buffer("weight", torch.empty(0))

    def _weights(self, weight: Tensor | None) -> Tensor:
        """The checked weights of a call: the argument, or the layer's own."""
        if weight is None:
            if self.weight_numel and not self.internal_weights:
                raise ShapeError(
                    f"weight must be [{self.weight_numel}], the layer has no internal weights, got None. Pass weight=, "
                    f"or build it with internal_weights=True."
                )
            return self.weight
        return check_weight(self._plan, weight)

    def weight_views(self, weight: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
        """The order m of each matrix product, and a view ``[matrices, in, out]`` of its weights.

        Two matrices multiply the identity and J, without parity and for m > 0. There are two products for m = 0
        where there are irreps of both signs p (-1)^l, which do not mix.
        """
        parts = self._weights(weight).split([math.prod(shape) for shape in self._plan.shapes])
        for m, part, shape in zip(self._plan.orders, parts, self._plan.shapes, strict=True):
            yield m, part.view(shape)

    def weight_matrices(self) -> dict[str, list[tuple[int, ...]]]:
        """Shapes of the matrices of all orders; see :func:`eqlayers.optim.matrices_of`."""
        return {"weight": [shape[1:] for shape in self._plan.shapes for _ in range(shape[0])]}

    def scale_slices(self) -> list[tuple[int, int, slice]]:
        """Triples: order m, index of the group in irreps_in, and its columns of the scales for this order."""
        slices, start = [], 0
        for block in self._plan.map.blocks_in:
            slices += [(block.m, p.group, slice(start + p.start, start + p.start + p.mul)) for p in block.groups]
            start += block.width
        return slices

    @property
    def infos(self) -> tuple[ProgramInfos, ProgramInfos]:
        """The programs before and after the matrix products, as infos of sparse products.

        The first sorts the components of the features by order m, the second sorts them back. The second operand of
        both is 1 for features in the frame of the edge, else the rotation to it.
        """
        return infos_of(self._plan.plain.program), infos_of(self._plan.back.program)

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request] | None:
        """The program before the matrix products; None without any matrix product."""
        if not self.num_paths:
            return None
        return self._before, self._plan.plain.request(dtype, device)

    def dense_paths(self) -> int:
        """All matrix products."""
        return self.num_paths

    def extra_repr(self) -> str:
        """Irreps, orders, parity, weights."""
        options = self.parity if self.mmax is None else f"mmax {self.mmax}, {self.parity}"
        return f"{self.irreps_in} -> {self.irreps_out} | {options} | {self.weight_numel} weights | {self._kind()}"


class SO2Linear(SO2Layer):
    r"""A linear map of features in the frame of an edge along y: it commutes with rotations about the edge.

    For every pair of irreps and every order :math:`0 \le m \le \min(l_{in}, l_{out}, m_{max})` there is a matrix W
    over the channels. With :math:`\eta = p (-1)^l`, the components (m, -m) of a copy as one vector, and
    :math:`J = ((0, -1), (1, 0))`,

    .. math:: z_m = \sum_{\eta_{in} = \eta_{out}} W_m x_m
              + \sum_{\eta_{in} = -1,\, \eta_{out} = 1} W_m J x_m - \sum_{\eta_{in} = 1,\, \eta_{out} = -1} W_m J x_m

    where pairs with J have no m = 0. This is all that reflections at planes through the edge leave of the two matrices
    for each m > 0 of ``parity='so3'``, :math:`W_m + W'_m J`, which ignores parities: half the weights, half the work.

    Args:
        irreps_in, irreps_out: Irreps before and after.
        mmax: Largest order; None for all. Components of larger order are not read, and zero.
        parity: 'o3' or 'so3'.
        internal_weights: Whether the layer owns its weights.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        weight: ``[weight_numel]``, normal numbers at first, which keep the variance of features. See
            :meth:`weight_views`.
        num_scales: Factors of the input for a row; see :meth:`scale_slices`.

    Raises:
        IrrepsError, ConfigError: Irreps or an option that there cannot be.

    Source:
        Passaro and Zitnick 2023, arXiv:2302.03655, without parity; the matrices that parity leaves follow from the
        symmetry of Clebsch-Gordan coefficients under a change of the signs of all m.

    Example:
        >>> layer = SO2Linear("4x0e + 4x1o", "3x0e + 2x1o")
        >>> layer(torch.randn(5, 16)).shape, layer.weight_numel  # (4 + 4) (3 + 2) for m = 0 and 4 2 for m = 1
        (torch.Size([5, 9]), 48)
    """

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        mmax: int | None = None,
        *,
        parity: str = "o3",
        internal_weights: bool = True,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(irreps_in, irreps_out, mmax, parity, internal_weights, layout, backend)

    def forward(self, x: Tensor, scales: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Map the features.

        Args:
            x: ``[..., irreps_in.dim]`` in the frame.
            scales: ``[..., num_scales]`` factors of the input, for each order and channel; leading axes broadcast.
            weight: ``[weight_numel]``; None for the internal weights.

        Returns:
            ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
        """
        return run_linear(self._plan, x, self._weights(weight), scales, self.backend)


class SO2Convolution(SO2Layer):
    r"""A graph convolution in the frames of its edges: rotate, :class:`SO2Linear`, rotate back, sum at the receivers.

    .. math:: z_i = \sum_{e = (j \to i)} c_e\, D_e^T\, W\, (s_e \odot D_e x_j)

    Here D_e turns edge e to y; another rotation about y changes nothing. It has the numbers of a tensor product with
    spherical harmonics of all degrees (:meth:`from_tensor_product`), at work that grows as :math:`l^3` where the work
    of the product grows as :math:`l^6`, or :math:`l^5` without the coefficients that are zero. With ``parity='o3'``
    (the default) features keep their parity, at half the weights of ``'so3'``.

    Args:
        irreps_in, irreps_out, mmax, parity, internal_weights, layout, backend: See :class:`SO2Linear`, also for errors.
            Weights give results of unit variance for an edge, for limited orders in the mean of the components.
        lmax: Degree of the frames that it is called with; None for the largest in irreps_in and irreps_out.

    Attributes:
        weight: ``[weight_numel]``; see :meth:`weight_views`.
        num_scales: Factors of the input for an edge; see :meth:`scale_slices`.
        frame: The :class:`EdgeFrame` for calls with vectors.

    Source:
        Passaro and Zitnick 2023, arXiv:2302.03655.

    Example:
        >>> conv = SO2Convolution("8x0e + 8x1o + 8x2e", "8x0e + 8x1o + 8x2e")
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
        >>> conv(torch.randn(3, 72), torch.randn(3, 3), edge_index).shape
        torch.Size([3, 72])
        >>> frames = conv.frame(torch.randn(3, 3))  # once for all layers
        >>> conv(torch.randn(3, 72), frames, edge_index, scales=torch.rand(3, conv.num_scales)).shape
        torch.Size([3, 72])
    """

    _before = "rotation to the edges"

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        mmax: int | None = None,
        *,
        lmax: int | None = None,
        parity: str = "o3",
        internal_weights: bool = True,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        irreps = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        least = max([ir.l for part in irreps for _, ir in part], default=0)
        fix = f"The irreps have degrees to {least}."
        degree = least if lmax is None else check_integer("lmax", lmax, least, fix=fix)
        super().__init__(*irreps, mmax, parity, internal_weights, layout, backend, degree)
        self.lmax, self.frame = degree, EdgeFrame(degree)

    @classmethod
    def from_tensor_product(
        cls,
        tp: torch.nn.Module,
        linear: torch.nn.Module | None = None,
        *,
        normalization: str = "component",
        backend: str | None = None,
    ) -> Self:
        """The convolution equal to a tensor product with spherical harmonics, summed at the receivers.

        Args:
            tp: A product of features with harmonics, by paths 'uvw' or 'uvu', that stores its weights or has none: of
                eqlayers or of e3nn, for example a ``FullyConnectedTensorProduct`` or a :class:`TensorProductConv`.
            linear: The linear layer behind it, if there is one, without biases.
            normalization: Of the harmonics: 'component', 'norm' or 'integral'.
            backend: Name of a backend, or None for the first that accepts.

        Returns:
            A layer that stores its weights, of the dtype and device of the product's. Its parity is 'so3' where the
            harmonics have other parities than (-1)^l.

        Raises:
            ConfigError, ShapeError: Other layers.

        Example:
            >>> tp = TensorProduct("2x1o", "0e + 1o + 2e", "2x1o", [(0, 0, 0, "uvw", True), (0, 2, 0, "uvw", True)])
            >>> SO2Convolution.from_tensor_product(tp).weight_numel  # two for m, two channels by two
            8
        """
        check_choice("normalization", normalization, HARMONICS_AT_Y)
        product = tp if isinstance(tp, ProductLayer) else TensorProduct.from_e3nn(tp)
        mixing = linear if linear is None or isinstance(linear, Linear) else Linear.from_e3nn(linear)
        if mixing is not None and mixing.layout != product.layout:
            raise ConfigError(
                f"linear must have the layout of the product, {product.layout!r}, got {mixing.layout!r}. Build both "
                f"alike."
            )
        parity = check_convertible(product, mixing)
        out = product.irreps_out if mixing is None else mixing.irreps_out
        kind: dict[str, Any] = {"parity": parity, "layout": product.layout, "backend": backend}
        like = product.weight if product.weight_numel or mixing is None else mixing.weight
        with torch.device(like.device):
            self = cls(product.irreps_in1, out, **kind)
        weight = so2_weights(self._plan.map, product, mixing, normalization)
        self.to(like.device, like.dtype)
        with torch.no_grad():
            self.weight.copy_(weight)
        return self.train(tp.training)

    def forward(
        self,
        x: Tensor,
        frames: Tensor,
        edge_index: Any,
        scales: Tensor | None = None,
        envelope: Tensor | None = None,
        num_nodes: int | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Rotate, map, rotate back and sum at receivers.

        Args:
            x: ``[num_src, irreps_in.dim]`` features of the senders.
            frames: ``[E, sum of (2 l + 1)^2]``, blocks D^l for l to lmax of a :class:`EdgeFrame`, which layers of a
                network share; or ``[E, 3]`` vectors of the edges.
            edge_index: ``[2, E]`` int64 or int32, rows (src, dst); or a :class:`eqlayers.Graph`.
            scales: ``[E, num_scales]`` factors of the input in the frame, as a radial network gives them.
            envelope: ``[E]`` factors of the messages.
            num_nodes: Number of receivers; as many as senders if None.
            weight: ``[weight_numel]``; None for the internal weights.

        Returns:
            ``[num_nodes, irreps_out.dim]``; zero for receivers without edges.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
            IndexRangeError: An edge has an end outside its nodes (found on CPU only).
        """
        self._plan.flat.check("x", x)
        graph = as_graph(edge_index, x.shape[0], num_nodes)
        w = self._weights(weight)
        if isinstance(frames, Tensor) and frames.shape == (graph.num_edges, 3):
            frames = self.frame(frames)
        return run_convolution(self._plan, x, frames, graph, scales, envelope, w, self.frame.dim, self.backend)
