"""Linear maps between irreps, with e3nn's signature, numbers, weights and state dict."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_choice, check_tensor
from ...core.dtypes import broadcast_lead, of_one_dtype
from ...core.errors import ShapeError
from ...core.forms.description import Form
from ...core.forms.request import Request
from ...e3nn_compat.state_dict import E3nnFlags, check_e3nn_layer, e3nn_channels, share_tensors
from ...e3nn_compat.torchscript import check_stored, described, is_tracing, operator
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ...sparse import ProgramInfos, infos_of
from ..base.module import EquivariantModule, check_dense, run_map
from ..base.weights import Weights, output_mask, ownership
from ..tensor_product.lower import linear_program
from .instructions import (
    LinearInstruction,
    check_channels,
    mixed,
    read_biases,
    read_linear,
    weight_slices,
    with_bias,
)

if TYPE_CHECKING:
    from typing_extensions import Self


@compile_mode("script")  # for e3nn.util.jit
class Linear(E3nnFlags, EquivariantModule):
    r"""Equivariant linear map: mixes the copies of equal irreps; a drop-in for ``e3nn.o3.Linear``.

    .. math:: y^{(k)}_{w m} = \sum_{i \to k} c \sum_u w^{(ik)}_{uw}\, x^{(i)}_{u m} \; (+\, b^{(k)}_w)

    Args:
        irreps_in, irreps_out: Irreps of input and output.
        f_in, f_out: Lengths of a further channel axis before the features, mixed along; None for no such axis.
        internal_weights: Whether the layer owns weight and bias; True by default where weights are shared.
        shared_weights: Whether one set of weights serves all samples; True by default.
        instructions: Pairs ``(i_in, i_out)`` of groups to connect; by default all that have equal irreps.
        biases: True for a bias on all 0e groups of the output, or one flag per group.
        path_normalization: 'element' or 'path'.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: See :class:`eqlayers.TensorProduct`; BackendError if it does not take the tensors. On GPUs
            every backend runs ``torch.matmul``.

    Attributes:
        weight: ``[weight_numel]``, or ``[f_in, f_out, weight_numel]``; instruction order, row-major.
        bias: ``[bias_numel]``, or ``[f_out, bias_numel]``.

    Raises:
        IrrepsError, ConfigError: Irreps, instructions or options that do not fit together.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453.

    Example:
        >>> Linear("8x0e + 4x1o", "2x0e + 3x1o", biases=True)
        Linear(8x0e+4x1o -> 2x0e+3x1o | 2 paths | 28 weights | 2 biases | mul_ir, backend ...)
    """

    _torchscript = (("forward", "layer_linear(self.spec, features, weight, bias, self.weight, self.bias)"),)
    weight: Tensor
    bias: Tensor
    output_mask: Tensor

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        *,
        f_in: int | None = None,
        f_out: int | None = None,
        internal_weights: bool | None = None,
        shared_weights: bool | None = None,
        instructions: Sequence[tuple[int, int]] | None = None,
        biases: bool | Sequence[bool] | None = False,
        path_normalization: str = "element",
        _optimize_einsums: bool | None = None,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        check_choice("path_normalization", path_normalization, ("element", "path"))
        irreps = (as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out"))
        check_channels(f_in, f_out)
        paths = read_linear(*irreps, instructions, path_normalization, f_in or 1)
        flags = read_biases(irreps[1], biases)
        owns = ownership(internal_weights, shared_weights, True)
        self._assemble(irreps, (f_in, f_out), paths, flags, owns, layout, backend)
        self._make_weights()
        self._take_flags(_optimize_einsums=_optimize_einsums)

    def _assemble(
        self,
        irreps: tuple[Irreps, Irreps],
        channels: tuple[int | None, int | None],
        paths: list[LinearInstruction],
        flags: list[bool],
        owns: tuple[bool, bool],
        layout: str,
        backend: str | None,
    ) -> None:
        """Set all attributes except weight, bias and mask."""
        EquivariantModule.__init__(self, layout, backend)
        self.irreps_in, self.irreps_out = irreps
        self.f_in, self.f_out = channels
        self._lead_w = tuple(c for c in channels if c is not None)  # weights mix these axes too
        self._in, self._out = FlatLayout(self.irreps_in, layout), FlatLayout(self.irreps_out, layout)
        bias_paths = [
            LinearInstruction(-1, i, (group.mul * group.ir.dim,), 1.0)
            for i, (flag, group) in enumerate(zip(flags, self.irreps_out, strict=True))
            if flag
        ]
        self.instructions = paths + bias_paths
        self._paths = paths
        read = [(number, path) for number, path in enumerate(paths) if 0 not in path.path_shape]
        self._arriving = [[pair for pair in read if pair[1].i_out == i] for i in range(len(self.irreps_out))]
        self._biased = flags
        factors = {path.path_weight for path in paths}
        self._factor = factors.pop() if len(factors) == 1 else None
        self.num_paths = len(paths)
        self.weight_index_slices = weight_slices(self.instructions)
        self._weights = Weights("Linear", paths)
        self.weight_numel = self._weights.numel
        self._form = None
        if self.weight_numel and channels[0] is None and owns[1]:
            self._form = Form(linear_program(irreps, [(p.i_in, p.i_out, p.path_weight) for p in paths], layout))
        self.bias_numel = sum(math.prod(i.path_shape) for i in bias_paths)
        self._reads = any(self._arriving) or self.bias_numel > 0
        self.internal_weights, self.shared_weights = owns

    @classmethod
    def from_e3nn(cls, module: torch.nn.Module, *, backend: str | None = None) -> Self:
        """Make the map of an ``e3nn.o3.Linear``, with the same weight and bias objects; see :class:`TensorProduct`.

        Raises:
            ConfigError: Another module; or a layer with ``f_in`` and ``f_out`` without weights, whose shape has them.

        Example:
            >>> from e3nn import o3
            >>> theirs = o3.Linear("2x0e", "3x0e", biases=True)
            >>> Linear.from_e3nn(theirs).bias is theirs.bias
            True
        """
        theirs = check_e3nn_layer(module, "Linear", "irreps_in", "bias")
        self = cls.__new__(cls)
        irreps = (as_irreps(theirs.irreps_in), as_irreps(theirs.irreps_out))
        instructions = [LinearInstruction(*tuple(ins)) for ins in theirs.instructions]
        biased = {ins.i_out for ins in instructions if ins.i_in == -1}
        channels = e3nn_channels(theirs)
        owns = (theirs.internal_weights, theirs.shared_weights)
        flags = [i in biased for i in range(len(irreps[1]))]
        self._assemble(irreps, channels, [i for i in instructions if i.i_in >= 0], flags, owns, "mul_ir", backend)
        share_tensors(self, theirs, "weight", "bias", "output_mask")
        self._share_flags(theirs)
        return self.train(module.training)

    def _make_weights(self) -> None:
        """Draw internal weights, set biases to zero, and mark the columns that a path or a bias reaches."""
        for name, numel in (("weight", self.weight_numel), ("bias", self.bias_numel)):
            if not self.internal_weights or not numel:
                self.register_buffer(name, torch.empty(0))
                continue
            value = torch.randn(*self._lead_w, numel) if name == "weight" else torch.zeros(*self._lead_w[1:], numel)
            self.register_parameter(name, torch.nn.Parameter(value))
        reached = {i.i_out for i in self.instructions if 0 not in i.path_shape}
        self.register_buffer("output_mask", output_mask(self.irreps_out, reached))

    def forward(self, features: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Map the features.

        Args:
            features: ``[..., irreps_in.dim]``, or ``[..., f_in, irreps_in.dim]``; of any width without a path or bias.
            weight: ``[weight_numel]`` (after ``f_in, f_out`` if there are), with leading axes if not shared.
            bias: ``[bias_numel]`` (after ``f_out``), with leading axes if not shared.

        Returns:
            ``[..., irreps_out.dim]``, or ``[..., f_out, irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
        """
        if is_tracing():
            return _layer_linear(self._spec(), features, weight, bias, self.weight, self.bias)
        return self._run(features, weight, bias, self.weight, self.bias)

    def _run(
        self, features: Tensor, weight: Tensor | None, bias: Tensor | None, own_weight: Tensor, own_bias: Tensor
    ) -> Tensor:
        lead_w = self._lead_w
        if not self._reads:  # as in e3nn, only the leading axes of the features count, and their width may be any
            for name, value in {"features": features, "weight": weight, "bias": bias}.items():
                if value is not None or name == "features":
                    check_tensor(name, value, "of any width")
            tail = (*lead_w[1:], self._out.dim)
            return features.new_zeros(*features.shape[: -len(tail)], *tail)
        self._in.check("features", features)
        if self.backend is not None:
            check_dense(self.backend, features.dtype, features.device)
        w, b = own_weight, own_bias
        if weight is not None or not self.internal_weights:
            w = self._checked("weight", weight, own_weight, (*lead_w, self.weight_numel))
        if bias is not None or not self.internal_weights:
            b = self._checked("bias", bias, own_bias, (*lead_w[1:], self.bias_numel))
        if self.bias_numel:
            used = {"weight": w} if self.weight_numel else {}
            features, *rest, b = of_one_dtype(features=features, **used, bias=b)
            w = rest[0] if rest else w
        elif self.weight_numel:
            features, w = of_one_dtype(features=features, weight=w)
        else:
            (features,) = of_one_dtype(features=features)
        axis = () if self.f_in is None else (self.f_in,)
        if axis and (features.ndim < 2 or features.shape[-2] != self.f_in):
            raise ShapeError(
                f"features must be [..., {self.f_in}, {self.irreps_in.dim}], got {list(features.shape)}. "
                f"Put the f_in axis before the features."
            )
        lead = lead_x = tuple(features.shape[: features.ndim - 1 - len(axis)])
        if not self.shared_weights:
            leads = {"features": lead_x, "weight": w.shape[: w.ndim - 1 - len(lead_w)]}
            if self.bias_numel:
                leads["bias"] = b.shape[: b.ndim - len(lead_w[1:]) - 1]
            lead = broadcast_lead(**leads)
        batch = math.prod(lead)
        x = features
        if len(lead) != 1 or lead != lead_x:
            x = x.expand(*lead, *axis, self._in.dim).reshape(batch, *axis, self._in.dim)
        if not self.shared_weights:
            w = w.expand(*lead, *lead_w, self.weight_numel).reshape(batch, *lead_w, self.weight_numel)
        y = self._map(x, w)
        y = y if len(lead) == 1 else y.reshape(*lead, *y.shape[1:])
        return with_bias(y, b, self._biased, self._out.slots) if self.bias_numel else y

    def _by_row(self, x: Tensor, w: Tensor) -> Tensor:
        """Map checked ``[n, irreps_in.dim]`` by weights ``[n, weight_numel]`` of each row, also in a shared layer."""
        x, w = of_one_dtype(features=x, weight=w)
        return self._map(x, w)

    def _map(self, x: Tensor, w: Tensor) -> Tensor:
        shared = w.ndim == len(self._lead_w) + 1
        y = run_map(self._form, x, w, backend=self.backend) if shared else None
        if y is not None:
            return y
        # one factor for all paths: one multiplication instead of one per path
        matrices = self._weights.parts(w if self._factor is None else w * self._factor)
        if self._factor is None:
            matrices = [m * path.path_weight for m, path in zip(matrices, self._paths, strict=True)]
        parts = self._columns(x, w, matrices)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _columns(self, x: Tensor, w: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
        """The columns of the result as a tensor ``[n(, f_out), mul * dim]`` for each group."""
        shared = w.ndim == len(self._lead_w) + 1
        slots, lead = self._in.slots, x.shape[:1] if self.f_out is None else (x.shape[0], self.f_out)
        blocks = (x,) if len(slots) == 1 else x.split_with_sizes(self._in.sizes, -1)
        flat: list[Tensor | tuple[int, ...]] = []
        like = None
        for target, paths_in in zip(self._out.slots, self._arriving, strict=True):
            total, shape = None, (*lead, target.mul * target.dim)
            for number, path in paths_in:
                of = blocks[path.i_in], matrices[number], slots[path.i_in]
                product = mixed(*of, shared, self.f_in is not None, self.layout).reshape(shape)
                total = product if total is None else total + product
            like = total if like is None else like
            flat.append(shape if total is None else total)
        if all(self._arriving):
            return flat  # type: ignore[return-value]  # each group has a sum
        like = x if like is None else like  # autocast gives products another dtype
        return [one if isinstance(one, Tensor) else like.new_zeros(one) for one in flat]

    def _checked(self, name: str, value: Tensor | None, stored: Tensor, shape: tuple[int, ...]) -> Tensor:
        if value is None:
            if shape[-1] > 0 and not self.internal_weights:
                raise ShapeError(
                    f"{name} of Linear must be given as [..., {shape[-1]}], it has no internal weights, got None. "
                    f"Pass {name}=, or build it with internal_weights=True."
                )
            return stored
        check_tensor(f"{name} of Linear", value, f"[..., {', '.join(map(str, shape))}]")
        tail = value.shape[value.ndim - len(shape) :] if value.ndim >= len(shape) else None
        if tail != shape or (self.shared_weights and value.numel() != math.prod(shape)):
            expected = list(shape) if self.shared_weights else f"[..., {', '.join(map(str, shape))}]"
            raise ShapeError(
                f"{name} of Linear must be {expected}, got {list(value.shape)}. "
                f"Build it with shared_weights={not self.shared_weights} for the other kind, or reshape."
            )
        # e3nn takes leading axes of length 1
        return value.reshape(shape) if self.shared_weights and value.ndim > len(shape) else value

    @property
    def infos(self) -> ProgramInfos:
        """All paths as infos of sparse products of features, 1 and weights, for one index of ``f_in`` and ``f_out``.

        Biases are not included.

        Example:
            >>> Linear("2x0e", "3x0e").infos
            infos of 1 path in 1 group
            group 0: x 'a', y '' -> 'a'; then weights 'ab' -> 'b'
              path 0: x[0:2], y[0:1], w[0:6] -> z[0:3]
                z0 = 0.707107 x0 y0
        """
        paths = [(path.i_in, path.i_out, path.path_weight) for path in self._paths]
        return infos_of(linear_program((self.irreps_in, self.irreps_out), paths, self.layout))

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request] | None:
        """The request for all groups; None for maps that only use matrix products."""
        if self._form is None or self.backend not in (None, "cpu"):
            return None
        return "all groups", self._form.calls["map", "one"].request(dtype, device)

    def weight_matrices(self) -> dict[str, list[tuple[int, ...]]]:
        """Shapes of the matrices that the weights are, one per path; see :func:`eqlayers.optim.matrices_of`."""
        return {"weight": [path.path_shape for path in self._paths] * math.prod(self._lead_w)}

    def weight_view_for_instruction(self, instruction: int, weight: Tensor | None = None) -> Tensor:
        """View ``[..., mul_in, mul_out]`` of the weights of one instruction."""
        weights = self._checked("weight", weight, self.weight, (*self._lead_w, self.weight_numel))
        return self._weights.view(weights, instruction)

    def _spec(self) -> str:
        irreps, channels = [str(self.irreps_in), str(self.irreps_out)], [self.f_in, self.f_out]
        maps = {"irreps": irreps, "channels": channels, "paths": self._paths, "biases": self._biased}
        owns = [self.internal_weights, self.shared_weights]
        return json.dumps({**maps, "owns": owns, "layout": self.layout, "backend": self.backend})

    def extra_repr(self) -> str:
        """Irreps, paths and weights, as in e3nn, then the layout."""
        bias = f" | {self.bias_numel} biases" if self.bias_numel else ""
        return (
            f"{self.irreps_in} -> {self.irreps_out} | {self.num_paths} paths | {self.weight_numel} weights{bias} | "
            f"{self._kind()}"
        )


@described
def _layer(spec: Any) -> Linear:
    """A layer, without weights, from the description that `Linear._spec` writes."""
    layer = Linear.__new__(Linear)
    irreps_in, irreps_out = map(Irreps, spec["irreps"])
    f_in, f_out = spec["channels"]
    paths = [LinearInstruction(i, o, tuple(shape), factor) for i, o, shape, factor in spec["paths"]]
    internal, shared = spec["owns"]
    owns, options = (internal, shared), (spec["layout"], spec["backend"])
    layer._assemble((irreps_in, irreps_out), (f_in, f_out), paths, spec["biases"], owns, *options)
    return layer


@operator(
    "layer_linear(str spec, Tensor x, Tensor? weight, Tensor? bias, Tensor own_weight, Tensor own_bias) -> Tensor"
)
def _layer_linear(spec: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, *stored: Tensor) -> Tensor:
    layer = _layer(spec)
    check_stored(layer, "weight", weight, stored[0], (*layer._lead_w, layer.weight_numel))
    check_stored(layer, "bias", bias, stored[1], (*layer._lead_w[1:], layer.bias_numel))
    return layer._run(x, weight, bias, *stored)
