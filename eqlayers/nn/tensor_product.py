"""Tensor products with e3nn's signature, numbers, weights and state dict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra import as_irreps
from ..autograd.tensor_product import run_product
from ..backends import select_form
from ..backends.registry import Call
from ..errors import ConfigError
from ..info.paths import Instruction, normalise, read_instructions, variances
from ..info.plan import ProductPlan
from ..ops.call import ProductCall
from ..ops.channels import parse
from ..ops.form import FormCall
from .base import EquivariantModule
from .e3nn_state import E3nnState
from .weights import Weights


class TensorProduct(E3nnState, EquivariantModule):
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
        compile_left_right, compile_right: Accepted as in e3nn; nothing is compiled here, both calls always work.
        normalization: Old name of irrep_normalization.
        layout: 'mul_ir' (e3nn's) or 'ir_mul' (channels fastest), for both inputs and the output.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        weight: ``[weight_numel]`` parameter if internal, else an empty buffer; instruction order, row-major.
        output_mask: ``[irreps_out.dim]``, 1 where some path arrives.
        instructions: As given, with the final coefficient in ``path_weight``.

    Raises:
        IrrepsError, ConfigError: Irreps, instructions or options that do not fit together.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453; Thomas et al. 2018, arXiv:1802.08219.

    Example:
        >>> tp = TensorProduct("8x0e + 8x1o", "1x1o", "8x0e + 8x1o", [(0, 0, 1, "uvu", True), (1, 0, 0, "uvu", True)])
        >>> tp(torch.randn(5, 32), torch.randn(5, 3)).shape
        torch.Size([5, 32])
    """

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
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        if normalization is not None:
            warnings.warn("use irrep_normalization instead of normalization", DeprecationWarning, stacklevel=2)
            irrep_normalization = normalization
        irreps = (
            as_irreps(irreps_in1, "irreps_in1"),
            as_irreps(irreps_in2, "irreps_in2"),
            as_irreps(irreps_out, "irreps_out"),
        )
        self.irreps_in1, self.irreps_in2, self.irreps_out = irreps
        self._in1_dim, self._in2_dim = self.irreps_in1.dim, self.irreps_in2.dim
        variance = (
            variances("in1_var", in1_var, irreps[0]),
            variances("in2_var", in2_var, irreps[1]),
            variances("out_var", out_var, irreps[2]),
        )
        read = read_instructions(*irreps, instructions)
        self.instructions = normalise(
            read, irreps, variance, irrep_normalization or "component", path_normalization or "element"
        )
        self.plan = ProductPlan(irreps, self.instructions, layout)
        self._did_compile_right = compile_right
        self._state_options = {
            "compile_left_right": compile_left_right,
            "compile_right": compile_right,
            "_specialized_code": _specialized_code,
        }
        self.num_paths = len(self.instructions)
        self._weights = Weights("TensorProduct", self.instructions)
        self.weight_numel = self._weights.numel
        has_weights = any(i.has_weight for i in self.instructions)
        self.internal_weights, self.shared_weights = ownership(internal_weights, shared_weights, has_weights)
        if self.internal_weights and self.weight_numel > 0:
            self.weight = torch.nn.Parameter(torch.randn(self.weight_numel))
        else:
            self.register_buffer("weight", torch.empty(0))
        reached = {i.i_out for i in self.instructions if i.path_weight != 0 and 0 not in i.path_shape}
        self.register_buffer("output_mask", output_mask(self.irreps_out, reached))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | list[Tensor] | None = None) -> Tensor:
        """Product of ``x`` and ``y``.

        Args:
            x: ``[..., irreps_in1.dim]``.
            y: ``[..., irreps_in2.dim]``; leading axes broadcast with those of x.
            weight: ``[weight_numel]`` if shared, ``[..., weight_numel]`` if per sample, or a list with one tensor
                per weighted instruction; None for the internal weights.

        Returns:
            ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
        """
        w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
        return run_product(self.plan, x, y, w, self.shared_weights, self.backend)

    def right(self, y: Tensor, weight: Tensor | list[Tensor] | None = None) -> Tensor:
        """The matrix of the map ``x -> forward(x, y)``, ``[..., irreps_in1.dim, irreps_out.dim]``."""
        eye = torch.eye(self.irreps_in1.dim, dtype=y.dtype, device=y.device)
        w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
        w = w if self.shared_weights else w.unsqueeze(-2)
        return run_product(self.plan, eye, y.unsqueeze(-2), w, self.shared_weights, self.backend)

    def weight_view_for_instruction(self, instruction: int, weight: Tensor | None = None) -> Tensor:
        """View ``[..., *path_shape]`` of the weights of one instruction."""
        w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
        return self._weights.view(w, instruction)

    def weight_views(self, weight: Tensor | None = None, yield_instruction: bool = False) -> Iterator[Any]:
        """Views of the weights of all weighted instructions; with numbers and instructions on request."""
        for number, ins in enumerate(self.instructions):
            if ins.has_weight:
                view = self.weight_view_for_instruction(number, weight)
                yield (number, ins, view) if yield_instruction else view

    def sample_calls(self, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Call]]:
        """The whole layer as one call where a backend runs it so, else one per sparse product, on an empty batch."""
        whole = FormCall(dtype, device.type)
        if select_form(whole, self.backend) is not None:
            yield f"all {self.num_paths} paths", whole
            return
        for group in self.plan.groups:
            layouts = self.plan.layouts
            sizes = (layouts[0].rows[group.muls[0]], layouts[1].rows[group.muls[1]])
            extents = dict(zip("uvw", group.muls, strict=True), q=group.muls[0] * (group.muls[0] - 1) // 2)
            steps = [("x . y", group.product, sizes, group.infos[0])]
            if group.weighting is not None and group.weight_infos is not None:
                paths = (group.infos[0].out_size or 0, len(group.weight_places))
                steps.append((". w", group.weighting, paths, group.weight_infos[0]))
            for label, spec, rows, info in steps:
                letters = parse(spec)
                a, b = (
                    torch.empty(0, r, *(extents[c] for c in part), dtype=dtype, device=device)
                    for r, part in zip(rows, letters, strict=False)
                )
                call = ProductCall(letters, a, b, info.on(device), (True, True, True), 0)
                yield f"{group.mode} {group.muls}, {label}, {spec!r}", call

    def extra_repr(self) -> str:
        """Irreps, paths and weights as in e3nn, then layout and backend."""
        paths = sum(math.prod(i.path_shape) for i in self.instructions)
        ins = f"{self.irreps_in1.simplify()} x {self.irreps_in2.simplify()} -> {self.irreps_out.simplify()}"
        return f"{ins} | {paths} paths | {self.weight_numel} weights | {self._kind()}"


def ownership(internal: bool | None, shared: bool | None, has_weights: bool) -> tuple[bool, bool]:
    """e3nn's defaults for internal and shared weights.

    Raises:
        ConfigError: Internal weights that are not shared.
    """
    if shared is False and internal is None:
        internal = False
    if shared is None:
        shared = True
    if internal is None:
        internal = shared and has_weights
    if internal and not shared:
        raise ConfigError(
            "internal_weights=True must come with shared_weights=True, got shared_weights=False. "
            "Pass weights per sample, or share them."
        )
    return internal, shared


def output_mask(irreps: Any, reached: set[int]) -> Tensor:
    """``[irreps.dim]``: 1 in the groups that are reached, else 0."""
    parts = [torch.full((mul * ir.dim,), float(i in reached)) for i, (mul, ir) in enumerate(irreps)]
    return torch.cat([torch.ones(0), *parts])
