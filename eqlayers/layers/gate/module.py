"""Activations of scalars and gates with e3nn's signatures, numbers and state dicts, in one pass over the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from e3nn.o3 import Irrep, Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from eqlayers_kernels.forms.program import Slot

from ...core.apply import as_rows
from ...core.checks import check_floating, check_integer, check_items
from ...core.dtypes import check_same_dtype
from ...core.errors import ConfigError, ShapeError
from ...e3nn_compat.torchscript import checked, is_tracing
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ..base.columns import Columns, Copies, check_groups, columns_of, take
from ..base.module import EquivariantModule, FormulaModule, run_formula
from ..tensor_product.sub_products import ElementwiseTensorProduct, paired
from .activation import NormalizedFunction, known
from .lower import AS_IT_IS, Part, Source, gated_formula

#: Consecutive copies: their number, and where they are read.
_Runs = Sequence[tuple[int, Source]]


@compile_mode("trace")  # for e3nn.util.jit
class Activation(EquivariantModule):
    r"""Applies functions to scalars, scaled to unit second moment; a drop-in for ``e3nn.nn.Activation``.

    The factor of each is e3nn's estimate, so checkpoints give the same results.

    Args:
        irreps_in: Irreps of the features.
        acts: A function for each group, None to leave it as it is, as every group that is not of scalars must be.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'; scalars are the same in both.

    Attributes:
        irreps_out: Odd scalars through even functions are even.
        acts: The functions, each with its factor ``cst``; modules keep their parameters.

    Raises:
        IrrepsError: The irreps cannot be read.
        ConfigError: Another number of functions, a function of an irrep that is no scalar, or one of odd scalars that
            is neither even nor odd.

    Example:
        >>> act = Activation("2x0o + 1x1e", [torch.abs, None])
        >>> act.irreps_out
        2x0e+1x1e
        >>> Activation("3x0e", [torch.tanh])(torch.zeros(3)).tolist()
        [0.0, 0.0, 0.0]
    """

    _torchscript = "traced"

    def __init__(self, irreps_in: Any, acts: Any, *, layout: str = "mul_ir") -> None:
        super().__init__(layout)
        self.irreps_in = as_irreps(irreps_in, "irreps_in")
        what, count = "a list of functions, one for each irreps group", len(self.irreps_in)
        fix = f"Give {count}, None where nothing is to be done."
        listed = check_items("acts", acts, what, fix, count=count)
        functions = [None if act is None else NormalizedFunction(act) for act in listed]
        out = []
        for (mul, ir), act in zip(self.irreps_in, functions, strict=True):
            p = ir.p
            if act is not None and ir.l > 0:
                raise ConfigError(
                    f"acts must be None for what is no scalar, got {act.extra_repr()} for {mul}x{ir}. Use Gate."
                )
            if act is not None and p == -1:
                p = act.parity()
                if p == 0:
                    raise ConfigError(
                        f"acts must be even or odd for odd scalars, got {act.extra_repr()} for {mul}x{ir}. "
                        f"Use torch.tanh or torch.abs."
                    )
            out.append((mul, (ir.l, p)))
        self.irreps_out = Irreps(out)
        self.acts = torch.nn.ModuleList(functions)  # type: ignore[arg-type]  # None is let through, as e3nn does
        self.known = known(functions)
        self.num_paths = len(self.irreps_in)
        self._flat = FlatLayout(self.irreps_in, layout)
        self._sizes = [mul * ir.dim for mul, ir in self.irreps_in]

    def forward(self, features: Tensor, dim: int = -1) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError for other features.

        Args:
            features: With the irreps along the axis ``dim``.
            dim: Axis of the irreps, the last by default.
        """
        if dim != -1:
            check_floating("features", features, "[..., irreps along dim, ...]")
            dim = check_integer("dim", dim, -features.ndim, features.ndim - 1, error=ShapeError)
            self._flat.check("features", features.movedim(dim, -1))
        else:
            features = checked(self._flat, "features", features)
        if not features.is_floating_point():
            check_floating("features", features, f"[..., {self._flat.dim}]")
        if len(self._sizes) < 2:
            for act in self.acts:  # an index takes a microsecond
                return features if act is None else act(features)
            return features
        parts = features.split_with_sizes(self._sizes, dim)  # split goes through Python
        return torch.cat([part if act is None else act(part) for part, act in zip(parts, self.acts, strict=True)], dim)

    def extra_repr(self) -> str:
        """Irreps."""
        return f"{self.irreps_in} -> {self.irreps_out}"


@compile_mode("script")  # for e3nn.util.jit
class Gate(FormulaModule):
    r"""Applies functions to scalars, and multiplies other irreps by activated scalars; a drop-in for ``e3nn.nn.Gate``.

    .. math:: \Big(\bigoplus_i \phi_i(x_i)\Big) \oplus \Big(\bigoplus_j \phi_j(g_j)\, y_j\Big)

    Functions that kernels have (``silu``, ``sigmoid``, ``tanh``) run in one pass, forward and in every derivative; all
    others run in torch, on the scalars alone. Factors are e3nn's, see :class:`Activation`;
    :class:`GatedNonlinearity` has the exact ones.

    Args:
        irreps_scalars: Irreps of the scalars that are activated.
        act_scalars: A function for each group of them, or None.
        irreps_gates: Irreps of the scalars that are activated and multiplied with the gated irreps.
        act_gates: A function for each group of them, or None.
        irreps_gated: Irreps that have one gate for each copy; in 'ir_mul' they must be simplified.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        irreps_in: Scalars, gates and gated irreps, sorted and simplified, also in 'ir_mul'.
        irreps_out: Scalars, then the gated irreps; odd gates flip the parity.
        act_scalars, act_gates: See :class:`Activation`.
        mul: The product with the gates, for the keys of e3nn's state dict; it is not called.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read or do not fit each other, or the functions do not fit them.

    Source:
        Weiler et al. 2018, arXiv:1807.02547, section 4; e3nn, arXiv:2207.09453.

    Example:
        >>> gate = Gate("16x0o", [torch.tanh], "32x0o", [torch.tanh], "16x1e+16x1o")
        >>> gate.irreps_in, gate.irreps_out
        (48x0o+16x1o+16x1e, 16x0o+16x1o+16x1e)
    """

    _torchscript = "traced"

    def __init__(
        self,
        irreps_scalars: Any,
        act_scalars: Any,
        irreps_gates: Any,
        act_gates: Any,
        irreps_gated: Any,
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        scalars, gates = as_irreps(irreps_scalars, "irreps_scalars"), as_irreps(irreps_gates, "irreps_gates")
        gated = as_irreps(irreps_gated, "irreps_gated")
        for name, irreps in (("irreps_scalars", scalars), ("irreps_gates", gates)):
            if any(ir.l > 0 for _, ir in irreps):
                raise ConfigError(f"{name} must be scalars, got {irreps}. Put other irreps into irreps_gated.")
        if gates.num_irreps != gated.num_irreps:
            raise ConfigError(
                f"irreps_gates must hold a scalar for each copy of irreps_gated, {gated.num_irreps} of {gated}, got "
                f"{gates.num_irreps} in {gates}. Use '{gated.num_irreps}x0e'."
            )
        self.act_scalars = Activation(scalars, act_scalars, layout=layout)
        self.act_gates = Activation(gates, act_gates, layout=layout)
        simple = gated.simplify()
        check_groups("irreps_gated", gated, simple, layout)
        pairs = paired(simple, self.act_gates.irreps_out.simplify())
        self.mul = ElementwiseTensorProduct(*pairs, layout=layout, backend=backend)
        self.irreps_scalars, self.irreps_gates, self.irreps_gated = (i.simplify() for i in (scalars, gates, gated))
        self.irreps_out = self.act_scalars.irreps_out + self.mul.irreps_out
        self.num_paths = len(self.irreps_out)
        groups = self.irreps_scalars + self.irreps_gates + self.irreps_gated
        self.irreps_in = groups.sort().irreps.simplify()
        self._flat, self._out = FlatLayout(self.irreps_in, layout), FlatLayout(self.irreps_out, layout)
        used: Counter[Irrep] = Counter()
        slot_of, sources = dict(zip((ir for _, ir in self.irreps_in), self._flat.slots, strict=True)), []
        for mul, ir in groups:  # copies of one irrep lie side by side
            sources.append((mul, Source(slot_of[ir], used[ir])))
            used[ir] += mul
        first, last = len(self.irreps_scalars), len(self.irreps_scalars) + len(self.irreps_gates)
        self._make(sources[:first], sources[first:last], sources[last:])
        slots = self._flat.slots
        runs = _cut(sources[last:], [(mul, None) for mul, _ in self.mul.irreps_in1])
        self._gated = columns_of(slots, [Copies(slots.index(s.slot), s.first, mul) for mul, (s, _) in runs], layout)

    def _make(self, scalars: _Runs, gates: _Runs, gated: _Runs) -> None:
        """Make the formula: of the input, and also of activated scalars if kernels lack their functions."""
        layers = self.act_scalars, self.act_gates
        self._columns = [[Columns(s.slot.start + s.first, mul) for mul, s in runs] for runs in (scalars, gates)]
        acts = [layer.known for layer in layers]
        self._in_torch = any(one is None for one in acts)
        widths: tuple[int, ...] = (self._flat.dim,)
        if self._in_torch:
            sizes = [layer.irreps_out.dim for layer in layers]
            slot = Slot(0, sum(sizes), 1)
            scalars, gates = [(sizes[0], Source(slot, 0, 1))], [(sizes[1], Source(slot, sizes[0], 1))]
            acts, widths = [[AS_IT_IS] * len(layer.acts) for layer in layers], (*widths, sum(sizes))
        names = [
            [(mul, act) for (mul, _), act in zip(layer.irreps_in, acts_of or [], strict=True)]
            for layer, acts_of in zip(layers, acts, strict=True)
        ]
        outs = [(mul, Source(slot)) for slot, (mul, _) in zip(self._out.slots, self.irreps_out, strict=True)]
        count = len(self.act_scalars.irreps_out)
        parts = [Part(mul, source, act, out=out) for mul, (source, act, out) in _cut(scalars, names[0], outs[:count])]
        parts += [
            Part(mul, source, gate=gate, gate_act=act, out=out)
            for mul, (source, gate, act, out) in _cut(gated, gates, names[1], outs[count:])
        ]
        self._formulas = [gated_formula(tuple(parts), widths, self.layout, 1, False)] if gated else []

    def called_layers(self) -> Iterable[torch.nn.Module]:
        """The activations, if they are not part of the formula."""
        return (self.act_scalars, self.act_gates) if self._in_torch or not self._formulas else ()

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError for other features."""
        features = checked(self._flat, "features", features)
        check_same_dtype(features=features)
        if is_tracing():  # the submodules have operators that a TorchScript graph can hold
            scalars, gates, gated = (take(features, columns) for columns in (*self._columns, self._gated))
            return torch.cat([self.act_scalars(scalars), self.mul(gated, self.act_gates(gates))], -1)
        if not self._formulas:
            return self.act_scalars(take(features, self._columns[0]))
        lead = features.shape[:-1]
        operands = [as_rows(features, lead)]
        if self._in_torch:
            # functions such as softplus take ten times as long of columns that are not contiguous
            scalars, gates = (take(operands[0], columns).contiguous() for columns in self._columns)
            activated = torch.cat([self.act_scalars(scalars), self.act_gates(gates)], -1)
            operands.append(activated.to(features.dtype))  # some functions compute in float32 under autocast
        (z,) = run_formula(self._formulas[0], operands, None, self.backend)
        return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])


def _cut(*lists: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, list[Any]]]:
    """Split consecutive copies at the boundaries of all lists: the number of copies, and the value in each list."""
    bounds_of = [list(accumulate((mul for mul, _ in runs), initial=0)) for runs in lists]
    cuts = sorted({end for one in bounds_of for end in one})
    for start, end in pairwise(cuts):
        values = []
        for runs, bounds in zip(lists, bounds_of, strict=True):
            number = next(k for k in range(len(runs)) if bounds[k] <= start < bounds[k + 1])
            value, skipped = runs[number][1], start - bounds[number]
            values.append(value._replace(first=value.first + skipped) if isinstance(value, Source) else value)
        yield end - start, values
