"""Tensor products with e3nn's signature, numbers, weights and state dict, and the base that convolutions share."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_flag
from ...core.forms.request import Request
from ...e3nn_compat.state_dict import E3nnState, check_e3nn_layer, coefficient_signs, generated_buffers, share_tensors
from ...e3nn_compat.torchscript import check_stored, described, is_tracing, operator, refuse_torchscript
from ...irreps.algebra import as_irreps
from ...irreps.instructions import Instruction, normalise, read_instructions, variances
from ...sparse import ProgramInfos, infos_of
from ..base.module import EquivariantModule
from ..base.weights import Weights, output_mask, ownership, product_shapes
from ..reshape.module import Sort
from .lower import ProductPlan
from .mixed import splits
from .picture import draw_paths
from .run import BY_INFOS, run_product

if TYPE_CHECKING:
    from typing_extensions import Self


class ProductLayer(E3nnState, EquivariantModule):
    """A layer along the paths of a tensor product, with e3nn's signature, weights and state dict.

    Arguments, attributes and errors are the same as in :class:`eqlayers.TensorProduct`.
    """

    _owner = "TensorProduct"  # name of the layer in error messages
    _sorts = False  # whether the layer `sort` sorts and joins the groups of the result
    irreps_out: Irreps
    instructions: list[Instruction]
    weight: Tensor
    output_mask: Tensor

    def __init__(
        self,
        irreps_in1: Any,
        irreps_in2: Any,
        irreps_out: Any,
        instructions: Iterable[Sequence[Any]],
        in1_var: Any = None,
        in2_var: Any = None,
        out_var: Any = None,
        irrep_normalization: str | None = None,
        path_normalization: str | None = None,
        internal_weights: bool | None = None,
        shared_weights: bool | None = None,
        compile_left_right: bool = True,
        compile_right: bool = False,
        normalization: str | None = None,
        _specialized_code: bool | None = None,
        _optimize_einsums: bool | None = None,
        *,
        simplify: bool = False,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        if normalization is not None:
            warnings.warn("use irrep_normalization instead of normalization", DeprecationWarning, stacklevel=2)
            irrep_normalization = normalization
        first, second = as_irreps(irreps_in1, "irreps_in1"), as_irreps(irreps_in2, "irreps_in2")
        irreps = first, second, as_irreps(irreps_out, "irreps_out")
        names = ("in1_var", in1_var, first), ("in2_var", in2_var, second), ("out_var", out_var, irreps[2])
        one, other, out = (variances(*row) for row in names)
        read = read_instructions(*irreps, instructions)
        final = normalise(read, irreps, (one, other, out), irrep_normalization, path_normalization)
        owns = ownership(internal_weights, shared_weights, any(i.has_weight for i in final))
        self._assemble(irreps, final, final, owns, layout, backend)
        self._take_flags(_specialized_code=_specialized_code, _optimize_einsums=_optimize_einsums)
        compiled = {"compile_left_right": compile_left_right, "compile_right": compile_right}
        flags = {**compiled, "_specialized_code": self._specialized_code}
        self._state_options = {name: check_flag(name, value) for name, value in flags.items()}
        self._did_compile_right = self._state_options["compile_right"]
        if self.internal_weights and self.weight_numel > 0:
            self.weight = torch.nn.Parameter(torch.randn(self.weight_numel))
        else:
            self.register_buffer("weight", torch.empty(0))
        reached = {i.i_out for i in self.instructions if i.path_weight != 0 and 0 not in i.path_shape}
        self.register_buffer("output_mask", output_mask(self.irreps_out, reached))
        if check_flag("simplify", simplify):
            self._sorts, self.sort = True, Sort(self.irreps_out, layout=layout)
            self.irreps_out, self.output_mask = self.sort.irreps_out, self.sort(self.output_mask)

    def _assemble(
        self,
        irreps: tuple[Irreps, Irreps, Irreps],
        instructions: list[Instruction],
        signed: Sequence[Instruction],
        owns: tuple[bool, bool],
        layout: str,
        backend: str | None,
    ) -> None:
        """Set attributes except weights, masks and options; ``signed`` are instructions with signs of coefficients."""
        EquivariantModule.__init__(self, layout, backend)
        self.irreps_in1, self.irreps_in2, self.irreps_out = irreps
        self._in1_dim, self._in2_dim = self.irreps_in1.dim, self.irreps_in2.dim
        self.instructions = instructions
        self.plan = ProductPlan(irreps, signed, layout)
        self.num_paths = len(instructions)
        self._weights = Weights(self._owner, instructions)
        self.weight_numel = self._weights.numel
        self.internal_weights, self.shared_weights = owns

    @classmethod
    def from_e3nn(cls, module: torch.nn.Module, *, backend: str | None = None) -> Self:
        """Make the product of an e3nn layer, with the same weight objects: an optimizer step of one changes both.

        Args:
            module: An ``e3nn.o3.TensorProduct`` of any version, or one of its subclasses.
            backend: Name of a backend, or None for the first that accepts.

        Returns:
            A layer whose state dict has the keys of ``module``'s.

        Raises:
            ConfigError: Another layer, or its coefficients are not Wigner 3j symbols.

        Example:
            >>> from e3nn import o3
            >>> from eqlayers import TensorProduct
            >>> theirs = o3.FullyConnectedTensorProduct("2x0e", "1o", "3x1o")
            >>> ours = TensorProduct.from_e3nn(theirs)
            >>> ours.weight is theirs.weight
            True
        """
        theirs = check_e3nn_layer(module, "TensorProduct", "irreps_in1", "irreps_in2")
        self = cls.__new__(cls)
        irreps = (as_irreps(theirs.irreps_in1), as_irreps(theirs.irreps_in2), as_irreps(theirs.irreps_out))
        instructions = [Instruction(*tuple(ins)) for ins in theirs.instructions]
        signs = coefficient_signs(generated_buffers(theirs), irreps, instructions)
        pairs = zip(instructions, signs, strict=True)
        signed = [ins._replace(path_weight=ins.path_weight * (sign or 1.0)) for ins, sign in pairs]
        owns = (theirs.internal_weights, theirs.shared_weights)
        self._assemble(irreps, instructions, signed, owns, "mul_ir", backend)
        self._share_flags(theirs)
        self._state_options = {}
        self._keep_generated(theirs)
        share_tensors(self, theirs, "weight", "output_mask")
        return self.train(module.training)

    def weight_matrices(self) -> dict[str, list[tuple[int, ...]]]:
        """Shapes of the weights of paths: of 'uvw' a matrix (u v, w); see :func:`eqlayers.optim.matrices_of`."""
        return {"weight": product_shapes(self.instructions)}

    def weight_view_for_instruction(self, instruction: int, weight: Tensor | None = None) -> Tensor:
        """View ``[..., *path_shape]`` of the weights of one instruction."""
        w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
        return self._weights.view(w, instruction)

    def visualize(
        self, weight: Tensor | None = None, plot_weight: bool = True, aspect_ratio: float | str = 1, ax: Any = None
    ) -> tuple[Any, Any]:
        """Draw the paths between the groups of in1, in2 and out, with matplotlib: the figure and the axes.

        Args:
            weight: As in :meth:`forward`.
            plot_weight: Whether the shade of a path shows the mean square of its weights; else these paths are green.
            aspect_ratio: Width over height of the hexagon, or 'auto', which grows with the groups; or ConfigError.
            ax: Axes to draw on; None for the current ones. MissingPackageError if matplotlib is not installed.
        """
        shades = None
        if check_flag("plot_weight", plot_weight) and (weight is not None or self.internal_weights):
            views = self.weight_views(weight, yield_instruction=True)
            shades = {number: float(view.detach().double().square().mean()) for number, _, view in views}
        return draw_paths(self.plan.irreps, self.instructions, shades, aspect_ratio, ax)

    @property
    def _profiling_str(self) -> str:
        return str(self)

    @property
    def infos(self) -> ProgramInfos:
        """All paths as infos of sparse products: called with flat x, y and weights, they give the result of the layer.

        Groups of the result are as in the instructions, also with ``simplify``.

        Example:
            >>> from eqlayers import FullyConnectedTensorProduct
            >>> FullyConnectedTensorProduct("2x0e", "1o", "3x1o").infos
            infos of 1 path in 1 group
            group 0: x 'a', y '' -> 'a'; then weights 'ab' -> 'b'
              path 0: x[0:2], y[0:3], w[0:6] -> z[0:9]
                z0 = 0.707107 x0 y0
                z1 = 0.707107 x0 y1
                z2 = 0.707107 x0 y2
        """
        return infos_of(self.plan.form.program)

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request] | None:
        """All paths except matrix products as one call; None without any."""
        mixed = self.plan.mixed if self.shared_weights else None
        if mixed is not None and splits(device, self.backend):
            return f"all {self.num_paths} paths before matrices of weights", mixed.form.request(dtype, device)
        dense = self.dense_paths()
        plan = self.plan.rest if dense and self.plan.rest is not None else self.plan
        if not plan.paths:
            return None
        count = f"{self.num_paths - dense} paths" if dense else f"all {self.num_paths} paths"
        return count, plan.form.request(dtype, device)

    def dense_paths(self) -> int:
        """Paths with many scalars, where one set of weights serves all samples."""
        dense = self.plan.dense if self.shared_weights and self.backend not in BY_INFOS else None
        return 0 if dense is None else len(dense.program.paths)

    def extra_repr(self) -> str:
        """Irreps, paths and weights as in e3nn, then layout and backend."""
        paths = sum(math.prod(i.path_shape) for i in self.instructions)
        ins = f"{self.irreps_in1.simplify()} x {self.irreps_in2.simplify()} -> {self.irreps_out.simplify()}"
        return f"{ins} | {paths} paths | {self.weight_numel} weights | {self._kind()}"


@compile_mode("script")  # for e3nn.util.jit
class TensorProduct(ProductLayer):
    r"""Bilinear equivariant product of two sets of irreps, path by path; a drop-in for ``e3nn.o3.TensorProduct``.

    .. math:: z^{(k)}_{w m_3} = \sum_{\text{paths} \to k} c \sum_{u v} w_{uvw}
              \sum_{m_1 m_2} C_{m_1 m_2 m_3}\, x^{(i)}_{u m_1} y^{(j)}_{v m_2}

    Args:
        irreps_in1, irreps_in2, irreps_out: Irreps of the inputs and of the output.
        instructions: ``(i_in1, i_in2, i_out, mode, has_weight[, path_weight])`` per path; modes 'uvw', 'uvu', 'uvv',
            'uuw', 'uuu', 'uvuv', 'uvu<v', 'u<vw'.
        in1_var, in2_var, out_var: Variance of each irreps group; None means 1.
        irrep_normalization: 'component' (default), 'norm' or 'none'.
        path_normalization: 'element' (default), 'path' or 'none'.
        internal_weights: Whether the layer owns its weights; by default if they are shared and there are any.
        shared_weights: Whether one set of weights serves all samples; True by default.
        compile_left_right, compile_right: Accepted as in e3nn; nothing is compiled here, both calls always work. Like
            ``_specialized_code`` and ``_optimize_einsums`` they only say which generated buffers a state dict lists.
        normalization: Old name of irrep_normalization.
        simplify: Whether the groups of the result are sorted and joined, as by :class:`eqlayers.nn.Sort`. In 'ir_mul' a
            next layer can take simplified irreps only then.
        layout: 'mul_ir' (e3nn's) or 'ir_mul' (channels fastest), for both inputs and the output.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        weight: ``[weight_numel]`` parameter if internal, else an empty buffer; instruction order, row-major.
        output_mask: ``[irreps_out.dim]``, 1 where some path arrives.
        instructions: The argument, with the final coefficient in ``path_weight``.

    Raises:
        IrrepsError, ConfigError: Irreps, instructions or options that do not fit together.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453; Thomas et al. 2018, arXiv:1802.08219.

    Example:
        >>> tp = TensorProduct("8x0e + 8x1o", "1x1o", "8x0e + 8x1o", [(0, 0, 1, "uvu", True), (1, 0, 0, "uvu", True)])
        >>> tp(torch.randn(5, 32), torch.randn(5, 3)).shape
        torch.Size([5, 32])
    """

    _torchscript: tuple[tuple[str, str], ...] = (
        ("forward", "layer_product(self.spec, x, y, weight, self.weight)"),
        ("right", "layer_right(self.spec, y, weight, self.weight)"),
    )

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | list[Tensor] | None = None) -> Tensor:
        """Product of ``x`` and ``y``.

        Args:
            x: ``[..., irreps_in1.dim]``.
            y: ``[..., irreps_in2.dim]``; leading axes broadcast with the axes of x.
            weight: ``[weight_numel]`` if shared, ``[..., weight_numel]`` if per sample, or a list with one tensor
                per weighted instruction; None for the internal weights.

        Returns:
            ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
        """
        if is_tracing():
            joined = self._weights.joined(weight, self.shared_weights)
            return _layer_product(self._spec(), x, y, joined, self.weight)
        w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
        z = run_product(self.plan, x, y, w, self.shared_weights, self.backend)
        return self.sort(z) if self._sorts else z

    def right(self, y: Tensor, weight: Tensor | list[Tensor] | None = None) -> Tensor:
        """The matrix of the map ``x -> forward(x, y)``, ``[..., irreps_in1.dim, irreps_out.dim]``."""
        if is_tracing():
            return _layer_right(self._spec(), y, self._weights.joined(weight, self.shared_weights), self.weight)
        return self._right(y, weight, self.weight)

    def _right(self, y: Tensor, weight: Tensor | list[Tensor] | None, stored: Tensor) -> Tensor:
        self.plan.layouts[1].check("y", y)
        eye = torch.eye(self._in1_dim, dtype=y.dtype, device=y.device)
        w = self._weights.read(weight, stored, self.internal_weights, self.shared_weights)
        w = w if self.shared_weights else w.unsqueeze(-2)
        z = run_product(self.plan, eye, y.unsqueeze(-2), w, self.shared_weights, self.backend)
        return self.sort(z) if self._sorts else z

    def _spec(self) -> str:
        if self._sorts:
            refuse_torchscript(self)
        irreps = [str(self.irreps_in1), str(self.irreps_in2), str(self.irreps_out)]
        product = {"irreps": irreps, "instructions": self.plan.instructions}
        owns = [self.internal_weights, self.shared_weights]
        return json.dumps({**product, "owns": owns, "layout": self.layout, "backend": self.backend})


@described
def _layer(spec: Any) -> TensorProduct:
    """A layer, without weights, from the description that `TensorProduct._spec` writes."""
    layer = TensorProduct.__new__(TensorProduct)
    in1, in2, out = map(Irreps, spec["irreps"])
    instructions = [Instruction(*row)._replace(path_shape=tuple(row[6])) for row in spec["instructions"]]
    internal, shared = spec["owns"]
    layer._assemble((in1, in2, out), instructions, instructions, (internal, shared), spec["layout"], spec["backend"])
    return layer


@operator("layer_product(str spec, Tensor x, Tensor y, Tensor? weight, Tensor own) -> Tensor")
def _layer_product(spec: str, x: Tensor, y: Tensor, weight: Tensor | None, stored: Tensor) -> Tensor:
    layer = _layer(spec)
    check_stored(layer, "weight", weight, stored, (layer.weight_numel,))
    w = layer._weights.read(weight, stored, layer.internal_weights, layer.shared_weights)
    return run_product(layer.plan, x, y, w, layer.shared_weights, layer.backend)


@operator("layer_right(str spec, Tensor y, Tensor? weight, Tensor own) -> Tensor")
def _layer_right(spec: str, y: Tensor, weight: Tensor | None, stored: Tensor) -> Tensor:
    layer = _layer(spec)
    check_stored(layer, "weight", weight, stored, (layer.weight_numel,))
    return layer._right(y, weight, stored)
