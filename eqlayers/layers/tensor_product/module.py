"""Tensor products with e3nn's signature, numbers, weights and state dict."""

from __future__ import annotations

import json
from typing import Any

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...e3nn_compat.torchscript import check_stored, described, is_tracing, operator, refuse_torchscript
from ...irreps.instructions import Instruction
from .base import ProductLayer
from .run import run_product


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
        return json.dumps(
            {
                "irreps": [str(self.irreps_in1), str(self.irreps_in2), str(self.irreps_out)],
                "instructions": self.plan.instructions,
                "owns": [self.internal_weights, self.shared_weights],
                "layout": self.layout,
                "backend": self.backend,
            }
        )


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
def _run_product(spec: str, x: Tensor, y: Tensor, weight: Tensor | None, stored: Tensor) -> Tensor:
    layer = _layer(spec)
    check_stored(layer, "weight", weight, stored, (layer.weight_numel,))
    w = layer._weights.read(weight, stored, layer.internal_weights, layer.shared_weights)
    return run_product(layer.plan, x, y, w, layer.shared_weights, layer.backend)


@operator("layer_right(str spec, Tensor y, Tensor? weight, Tensor own) -> Tensor")
def _run_right(spec: str, y: Tensor, weight: Tensor | None, stored: Tensor) -> Tensor:
    layer = _layer(spec)
    check_stored(layer, "weight", weight, stored, (layer.weight_numel,))
    return layer._right(y, weight, stored)


_layer_product, _layer_right = (getattr(torch.ops.eqlayers, name).default for name in ("layer_product", "layer_right"))
