"""Base classes of layers: backend, layout and explanations; layers of a product or of formulas, and their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eqlayers_kernels.forms.formula import Formula

from ...core.apply import run_program
from ...core.backends import BACKENDS, check_backend, select, verdicts
from ...core.backends.forms import chosen
from ...core.backends.operands import check_operands
from ...core.backends.rows import Endpoints
from ...core.backends.torch_formulas import run_in_torch
from ...core.checks import check_device, check_dtype
from ...core.dtypes import ACCUMULATE
from ...core.forms.description import KNOWN, Form, describe, register_formula
from ...core.forms.request import Request, Sizes
from ...core.graph import Graph
from ...core.operator import at_once, call_form, sorted_edges
from ...core.torch_internals import being_traced, in_fake_mode, is_plain, under_autocast, wrapped_by_func
from ...e3nn_compat.torchscript import Scriptable
from ...irreps.layout import FlatLayout
from ...sparse import ProgramInfos, infos_of


class KeepsFloat64(torch.nn.Module):
    """Mixin: the buffers named in ``kept_in_float64`` keep their dtype under ``.float()``, ``.half()`` and so on.

    A total energy in float32 is off by a meV; its shifts must survive a change of the network's dtype.
    """

    kept_in_float64: tuple[str, ...] = ()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        stored = {name: self.get_buffer(name) for name in self.kept_in_float64}
        super()._apply(fn, recurse)
        for name, value in stored.items():
            moved = self.get_buffer(name)
            kept_value = torch.empty_like(moved, dtype=value.dtype) if value.is_meta else value.to(moved.device)
            setattr(self, name, kept_value)  # also after ``to_empty``, which does not keep values
        return self


class WithForward(torch.nn.Module):
    """A module with a function of it as ``forward``, for ``torch.func.functional_call``, without the module's hooks."""

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args: Any) -> Any:
        """The results of the function."""
        return self.function(self.module, *args)


def named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name: all that ``functional_call(..., tie_weights=False)`` takes.

    A module that is used twice has one name: functional_call would not restore it otherwise.
    """
    for prefix, one in module.named_modules():
        for name, t in (*one._parameters.items(), *one._buffers.items()):
            if t is not None:
                yield f"{prefix}.{name}" if prefix else name, t


class EquivariantModule(Scriptable):
    """Base of the layers: stores ``layout`` and ``backend``, and explains which backend runs and why."""

    num_paths: int = 0
    #: How often layers took other coefficients than they had, as from a state dict, which traces depend on.
    changes = 0

    def __init__(self, layout: str = "mul_ir", backend: str | None = None) -> None:
        super().__init__()
        check_backend(backend)
        self.layout = layout
        self.backend = backend

    def _note_change(self, changed: bool = True) -> None:
        EquivariantModule.changes += changed

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request] | None:
        """A label, and the request for a kernel of all paths; None for layers that only use matrix products."""
        return None

    def formulas(self) -> tuple[Formula, ...]:
        """Formulas that the layer may run, without their derivatives."""
        return ()

    def dense_paths(self) -> int:
        """Number of paths that run as matrix products of torch, in addition to `whole_call`."""
        return 0

    def called_layers(self) -> Iterable[torch.nn.Module]:
        """Submodules that a call uses; other submodules only hold keys of e3nn's state dict."""
        return self.children()

    def selected_backend(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> str:
        """Names of the backends that would run on ``device``, joined by '+'; 'torch' for dense layers.

        They include the backends of the layers inside it, as in :func:`eqlayers.explain`. DeviceError or DTypeError if
        there is no such device or dtype; BackendError if the named backend refuses.
        """
        whole = self.whole_call(check_dtype("dtype", dtype), check_device("device", device))
        names = [] if whole is None else [select(whole[1], self.backend).name]
        if whole is None and self.backend is not None:
            check_dense(self.backend, dtype, check_device("device", device))
        names += ["torch"] * (self.dense_paths() > 0)
        for layer in self.called_layers():
            names += layer.selected_backend(device, dtype).split("+") if isinstance(layer, EquivariantModule) else []
        return "+".join(dict.fromkeys(names)) or "torch"

    def explain(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> str:
        """Text that names the backend that runs the layer, and why others do not; errors as of `selected_backend`."""
        dtype, device = check_dtype("dtype", dtype), check_device("device", device)
        lines = [f"{type(self).__name__} on {device}, {dtype}, backend={self.backend or 'auto'}"]
        whole = self.whole_call(dtype, device)
        if whole is not None:
            answers = verdicts(whole[1], self.backend)
            runs = next((f"{name} runs" for name, answer in answers.items() if answer == "runs"), "")
            if not runs:
                runs = f"{self.backend} was named and refuses, so that the layer raises BackendError"
            lines += [f"  {whole[0]}: {runs}", *(f"    {name}: {answer}" for name, answer in answers.items())]
        if self.dense_paths():
            lines.append(f"  {self.dense_paths()} of {self.num_paths} paths: torch.matmul")
        elif len(lines) == 1:
            answer = "runs"
            if self.backend is not None:
                answer = verdicts(Request(None, "", dtype, device), self.backend)[self.backend]
            runs = f"{self.backend} was named and {answer}, so that the layer raises BackendError"
            lines.append(f"  {'dense layer: torch.matmul' if answer == 'runs' else runs}")
        return "\n".join(lines)

    def _kind(self) -> str:
        return f"{self.layout}, backend {self.backend or 'auto'}"


@cache  # errors are not cached
def _select_dense(backend: str, dtype: torch.dtype, device: torch.device) -> None:
    select(Request(None, "", dtype, device), backend)


@torch.compiler.assume_constant_result
def check_dense(backend: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise BackendError unless the named backend takes such tensors; torch runs its matrix products."""
    _select_dense(backend, dtype, device)


class HoldsFormulas(torch.nn.Module):
    """Base of the modules that run formulas: a process that loads them registers the formulas."""

    _formulas: Any

    def formulas(self) -> tuple[Formula, ...]:
        """Formulas that the layer may run, without their derivatives."""
        return tuple(self._formulas)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Register the formulas in the process that loads the layer; torch.compile cannot trace this."""
        super().__setstate__(state)
        for base in self.formulas() if "_formulas" in vars(self) else ():
            register_formula(base)


class FormulaModule(HoldsFormulas, EquivariantModule):
    """Base of the layers that run a formula, in one kernel call on every backend."""

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request] | None:
        """The request for the formula; None without any."""
        return ("one formula", Request(None, "", dtype, device)) if self._formulas else None

    def extra_repr(self) -> str:
        """Irreps, layout and backend."""
        return f"{self.irreps_in} -> {self.irreps_out} | {self._kind()}"


class FormModule(EquivariantModule):
    """Base of the layers that run one product without weights, in one kernel call on every backend."""

    _flat: FlatLayout
    _form: Form

    @property
    def infos(self) -> ProgramInfos:
        """The product of all irreps groups, as infos of sparse products."""
        return infos_of(self._form.program)

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request] | None:
        """The request for the product of all groups; None without any."""
        return ("all groups", self._form.request(dtype, device)) if self._flat.dim else None


def formula_at_once(
    base: Formula, operands: Sequence[Tensor], graph: Graph | None = None, backend: str | None = None
) -> Sequence[Tensor] | None:
    """Fast path: call the kernel of a formula directly; None if operands need conversion."""
    if not is_plain(operands):
        return None
    return at_once(KNOWN.get(base.key) or describe(base.key), operands, graph, backend)


def run_formula(
    base: Formula, operands: Sequence[Tensor], graph: Graph | None = None, backend: str | None = None
) -> Sequence[Tensor]:
    """Run a formula registered by `register_formula`, differentiable to any order.

    Operands are ``[rows, width]`` each, ``[width]`` for one row that serves all; so are results, ``[width]`` if they
    are summed over all rows. Errors are as of `check_operands`; BackendError if the backend cannot run it.
    """
    if is_plain(operands):
        results = at_once(KNOWN.get(base.key) or describe(base.key), operands, graph, backend)
        if results is not None:
            return results
    first = operands[0]
    dtype, device = first.dtype, "cpu" if first.is_cpu else first.device.type  # `device.type` takes a microsecond
    sizes = Sizes(1 if base.batch is None else operands[base.batch].shape[0]) if graph is None else graph.sizes
    if dtype not in ACCUMULATE:  # report the dtype, not the backend
        check_operands(base, operands, graph is not None, sizes)
    name = chosen(device, dtype, backend, "")
    if BACKENDS[name].whole is not None:
        check_operands(base, operands, graph is not None, sizes)
        endpoints = None if graph is None else Endpoints(*graph.ends, graph.num_src, graph.num_dst)
        return tuple(run_in_torch(base, operands, endpoints, term_by_term=name == "reference"))
    tables = None if graph is None else graph.tables(sorted_edges)
    return call_form(operands, tables, sizes, base.key, name)


@cache
def _one(dtype: torch.dtype) -> Tensor:
    """The second operand of a map's program, ``[1]``; it is made outside of inference mode, to be saved by autograd."""
    with torch.inference_mode(False):
        return torch.ones(1, dtype=dtype, device="cpu")


def run_map(
    form: Form | None, x: Tensor, w: Tensor, graph: Graph | None = None, backend: str | None = None
) -> Tensor | None:
    """Map rows ``[n, width]`` by matrices in one call of generated C; None where products of torch are faster.

    Weights are ``[weights]``, or ``[senders, weights]`` with a graph from senders to rows.
    """
    if form is None or not x.is_cpu or backend not in (None, "cpu") or under_autocast("cpu"):
        return None
    mapped = form.calls["map", "one" if graph is None else "src"]
    if is_plain((x, w)):
        got = at_once(mapped, (x, _one(x.dtype), w), graph, backend)
        return None if got is None else got[0]
    if wrapped_by_func(x) or wrapped_by_func(w) or chosen("cpu", x.dtype, backend, mapped.key) != "cpu":
        return None
    one = x.new_ones(1) if being_traced() or in_fake_mode() else _one(x.dtype)
    return run_program(mapped, (x, one, w), graph, backend)
