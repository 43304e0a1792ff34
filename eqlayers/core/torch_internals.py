"""All uses of torch beyond its public interface: no other module uses a private name of torch.

Each docstring says why a name is used, and what to do in a torch without it (``pyproject.toml`` bounds torch to the
releases that `nox -s oldest newest` runs the tests with, so a newer one is tried before users get it).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual
from torch.compiler import is_compiling
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.traceback import preserve_node_meta
from torch.nn import Parameter

from .errors import EqlayersError

try:
    # Imported as names, because every call of a layer uses them: attributes of attributes cost microseconds.
    from torch._C import (
        _are_functorch_transforms_active,
        _dispatch_tls_is_dispatch_key_included,
        _get_dispatch_mode,
        _get_tracing_state,
        _len_torch_dispatch_stack,
        _len_torch_function_stack,
    )
    from torch._C._autograd import _profiler_enabled
    from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
    from torch._decomp import decomposition_table
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch._functorch.utils import enable_single_level_autograd_function
    from torch._guards import TracingContext
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd.forward_ad import _is_fwd_grad_enabled, _set_fwd_grad_enabled

    # The base class of Functions that belong to one level of torch.func. They stand at the key Autograd of the
    # operators, where torch.func has taken its own wrappers off. autograd.Function would want setup_context, which
    # costs a plain call more than the rest of its overhead. Without it: autograd.Function, and a slower call.
    from torch.autograd.function import _SingleLevelFunction
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_unflatten as tree_unflatten
except ImportError as error:
    raise ImportError(
        f"torch must be a release that this eqlayers was tested with, 2.6 to 2.15, got {torch.__version__}, in which "
        f"something it needs is gone ({error}). Install one of these, or a newer eqlayers."
    ) from error


_NOTHING = nullcontext()
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch  # make_fx(pre_dispatch=True)
SingleLevelFunction: Any = _SingleLevelFunction  # whose ``apply`` its stub leaves out
# Without them: a loop over the tensors.
foreach_add_, foreach_mul_, foreach_copy_ = torch._foreach_add_, torch._foreach_mul_, torch._foreach_copy_
_COMPUTED_BY: Any = decomposition_table  # operators as functions of others. Without it: none are replaced
_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Torch 2.7 added a mark for functions that are traced by running them, in which is_compiling() is true.
_IS_2_6 = not hasattr(torch._dynamo, "nonstrict_trace")
_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.6 has one word for both


def traced_for_others() -> bool:
    """Whether the graph that is being traced may run in another process: torch.export, make_fx and torch.jit.trace.

    A graph of torch.compile stays in the process that traced it. Without the name for torch.jit.trace: its public twin.
    """
    if is_compiling():
        return _exporting()
    return _get_tracing_state() is not None or get_proxy_mode() is not None


def being_traced() -> bool:
    """Whether a graph is being traced, so that values cannot be read. The guard is for torch 2.6 alone."""
    return is_compiling() or traced_for_others() or (_IS_2_6 and TracingContext.try_get() is not None)


@contextmanager
def outside_of_traces() -> Iterator[None]:
    """A context whose results are constants for the running trace, such as tables that depend on a layer alone.

    Without it: make the tables when a layer is built, for every dtype and device.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def traced_by_running(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let torch.compile put a call of ``function`` into its graph unchanged, and trace it by running it.

    Its arguments must be tensors, modules, numbers and strings. Without it: an operator that is made of others.
    """
    mark = torch.compiler.allow_in_graph if _IS_2_6 else torch._dynamo.nonstrict_trace
    return mark(function)


@torch.compiler.assume_constant_result  # torch.compile of torch 2.6 cannot trace the call
def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


def under_autocast(device: str) -> bool:
    """Whether autocast is on for tensors on devices of this type."""
    return (device in ("cpu", "cuda") or _has_autocast(device)) and torch.is_autocast_enabled(device)


def outside_of_autocast(device: str) -> AbstractContextManager[object]:
    """A context without autocast: results have the dtype of their operands."""
    return torch.autocast(device, enabled=False) if under_autocast(device) else nullcontext()


def in_fake_mode() -> bool:
    """Whether tensors have no numbers. Without the mode by its key: whether any mode of operators is on."""
    return _get_dispatch_mode(_FAKE) is not None


def as_constant(t: Tensor) -> Tensor:
    """A cached tensor for use with operands: lifted to a constant if a graph is traced or tensors are fake."""
    return torch.ops.aten.lift_fresh.default(t) if being_traced() or in_fake_mode() else t


def wrapped_by_func(t: Tensor) -> bool:
    """Whether a transform of torch.func wraps the tensor. Without it: sort edges in every call."""
    return not torch.compiler.is_dynamo_compiling() and is_functorch_wrapped_tensor(t)


def outside_of_func() -> AbstractContextManager[object]:
    """A context without torch.func: results from plain tensors are plain, and survive the running transform.

    Without it: cache nothing that is computed while one runs.
    """
    if torch.compiler.is_dynamo_compiling() or not _are_functorch_transforms_active():
        return nullcontext()
    return temporarily_clear_interpreter_stack()


def unwrapped(t: Tensor) -> Tensor:
    """The tensor without the wrappers of torch.func, with the axes that vmap hides. Without it: check no indices."""
    while is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


class _Primal:
    """The ``ctx`` of a Function's jvp, with saved tensors stripped of tangents of the innermost forward-mode level."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = tuple(None if t is None else unpack_dual(t, level=0).primal for t in ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def seen_by_outer_levels(jvp: Callable[..., _R]) -> Callable[..., _R]:
    """Make a rule ``jvp(ctx, *tangents)`` differentiable by outer torch.func levels.

    Torch switches forward mode off while the rule runs, for all levels, so its sums would be constants for the others.
    Without it: forward mode in forward mode is wrong, and must be refused.
    """

    @wraps(jvp)
    def run(ctx: Any, *tangents: Any) -> _R:
        if not _are_functorch_transforms_active():
            return jvp(ctx, *tangents)
        with _set_fwd_grad_enabled(True):
            return jvp(_Primal(ctx), *tangents)

    return run


def current_trace() -> object | None:
    """An object that identifies the running trace, so that caches are not shared between traces; None without one.

    None under torch.compile, whose tracer handles attributes.
    """
    return None if torch.compiler.is_dynamo_compiling() else get_proxy_mode()


def below_autograd() -> AbstractContextManager[object]:
    """A context in which operators run below autograd: their kernel, or the next level of torch.func.

    C++ has the guard as ``at::AutoDispatchBelowADInplaceOrView``; Python has no public name for it. Without it: call
    the kernel of each device by hand, and lose the levels of torch.func.
    """
    plain: AbstractContextManager[object] = torch._C._AutoDispatchBelowAutograd()
    return _below_and_followed(plain) if _are_functorch_transforms_active() else plain


@contextmanager
def _below_and_followed(plain: AbstractContextManager[object]) -> Iterator[None]:
    with plain, torch.enable_grad(), _set_fwd_grad_enabled(True):
        yield


def inside_function() -> bool:
    """Whether the forward of a ``torch.autograd.Function`` runs: there, unlike in no_grad, forward mode is off."""
    return not (_is_fwd_grad_enabled() or torch.is_inference_mode_enabled())


def in_forward_mode() -> bool:
    """Whether forward-mode derivatives may be computed. Without the number of its level: always."""
    return forward_ad._current_level >= 0 or _are_functorch_transforms_active()


def on_tape(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd records a call on these tensors; if not, a Function and its host time are avoided."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return False


def used_gradients(ctx: Any, requested: tuple[bool, ...]) -> tuple[bool, ...]:
    """Flags of the last inputs of a node: whether the current run of autograd uses the gradient of each.

    ``ctx.needs_input_grad`` says which inputs require gradients. For forces, by ``autograd.grad`` with the positions
    alone, the gradients of all weights would be computed and dropped.
    """
    if is_compiling():
        return requested
    used = []
    for is_requested, (node, _) in zip(requested, ctx.next_functions[-len(requested) :], strict=True):
        try:
            used.append(is_requested and bool(torch._C._will_engine_execute_node(node)))
        except RuntimeError:  # raised for leaves whose gradient autograd.grad computes
            used.append(True)
    return tuple(used)


def is_plain(tensors: Sequence[Tensor], observed: bool = False) -> bool:
    """True in plain eager mode: no tracing, torch.func, forward mode, modes or subclasses, and no lazy negation.

    Then a kernel can be called directly, without the dispatcher. ``observed`` allows a profiler and modes of
    ``torch.overrides``, which see calls and change no numbers. Without one of the names: always the operator.
    """
    if is_compiling() or _get_tracing_state() is not None:
        return False
    if forward_ad._current_level >= 0 or _len_torch_dispatch_stack():
        return False
    if not observed and (_profiler_enabled() or _len_torch_function_stack()):
        return False
    if _are_functorch_transforms_active() or _dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH):
        return False
    for t in tensors:
        if type(t) is not Tensor and type(t) is not Parameter:
            return False
        if t.is_neg() or t._is_zerotensor():  # must be materialised first
            return False
        if is_functorch_wrapped_tensor(t) or is_legacy_batchedtensor(t):  # inside a transform
            return False
    return True


def single_level() -> AbstractContextManager[object]:
    """A context in which a `SingleLevelFunction` may be applied under torch.func, which forbids it otherwise.

    Without it: autograd.Function with setup_context.
    """
    return enable_single_level_autograd_function() if _are_functorch_transforms_active() else _NOTHING


def batched_by_grad(op: Any, rule: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """A kernel of ``op`` for the older vmap (``is_grads_batched``, ``vectorize``), from its rule for torch.vmap.

    Torch's own fallback, one call per sample, excludes operators that take lists. Without the names below: the
    fallback of torch.func alone.
    """

    def run(*args: Any) -> Any:
        leaves, spec = tree_flatten(list(args))
        mapped = [isinstance(t, Tensor) and is_legacy_batchedtensor(t) for t in leaves]
        if not any(mapped):
            return op(*args)
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        plain = [
            torch._remove_batch_dim(t, level, 1, 0) if batched else t for t, batched in zip(leaves, mapped, strict=True)
        ]
        if any(isinstance(t, Tensor) and is_legacy_batchedtensor(t) for t in plain):
            raise NotImplementedError(
                f"{op} must be batched once by is_grads_batched or vectorize, got it twice. Use torch.func.vmap."
            )
        size = next(t.shape[0] for t, batched in zip(plain, mapped, strict=True) if batched)
        dims = tree_unflatten([0 if batched else None for batched in mapped], spec)
        results, _ = rule(SimpleNamespace(batch_size=size), dims, *tree_unflatten(plain, spec))
        if isinstance(results, Tensor):
            return torch._add_batch_dim(results, 0, level)
        return [torch._add_batch_dim(t, 0, level) for t in results]

    return run


def assert_later(condition: Tensor, message: str) -> None:
    """A check in a traced graph: a node that raises RuntimeError. Without it: no check in graphs."""
    torch._assert_async(condition, message)


def is_traced_size(value: object) -> bool:
    """Whether ``value`` is a size traced by torch.jit.trace, a tensor without axes. Without it: False."""
    return isinstance(value, Tensor) and value.ndim == 0 and _get_tracing_state() is not None


def parsed_device(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device | None:
    """The device in the arguments of a call of ``.to``. Without it: the device of an empty tensor moved by them."""
    device: torch.device | None = torch._C._nn._parse_to(*args, **kwargs)[0]
    return device


def tensor_without_numbers(cls: Any, shape: Sequence[int], like: Tensor) -> Any:
    """A tensor of a subclass ``cls`` without memory, with the dtype and device of ``like``.

    Without it: an object that is no tensor, which ``isinstance`` tells.
    """
    return Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=like.dtype, device=like.device)


def as_base_tensors() -> AbstractContextManager[object]:
    """A context in which torch functions ignore tensor subclasses. Without it: ``Tensor.__torch_function__``."""
    return torch._C.DisableTorchFunctionSubclass()


class TraceFailure(Exception):
    """Torch cannot trace a function; the text says why and where."""


def fake_operands(
    operands: Sequence[Tensor], axes: Sequence[tuple[str | None, ...] | None], sizes: dict[str, int]
) -> tuple[list[Tensor], Any]:
    """Tensors without numbers like the operands, whose named axes have free sizes, and the mode that they belong to.

    All axes of a name have one symbol for their size, which the mode's ``shape_env`` knows. Without it: the symbols
    of ``make_fx(tracing_mode="symbolic")``, among which equal sizes are one, and whose comparisons are not told.
    """
    environment = ShapeEnv()
    environment.guards = _Guards()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    free: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    named = {
        name: mode.from_tensor(torch.empty(size, device="meta"), symbolic_context=free).shape[0]
        for name, size in sizes.items()
    }
    with mode:
        fakes = [
            mode.from_tensor(t.detach(), static_shapes=True)
            if names is None
            else t.new_empty([size if name is None else named[name] for name, size in zip(names, t.shape, strict=True)])
            for t, names in zip(operands, axes, strict=True)
        ]
    return fakes, mode


def graph_of(
    function: Callable[..., Any], fakes: Sequence[Tensor], mode: Any, simple: Callable[[str], bool] | None = None
) -> tuple[torch.fx.GraphModule, str | None]:
    """The graph of a function of fake operands, and the first comparison that fixed a free size, with its line.

    With ``simple``, operators of torch whose names it does not know become operators that torch computes them by.

    Raises TraceFailure if torch raises an error, as it does where numbers are read.
    """
    try:
        with mode, preserve_node_meta():  # original_aten: what a node computes a part of
            others = {op: by for op, by in _COMPUTED_BY.items() if simple and not simple(op.__name__.partition(".")[0])}
            graph = make_fx(function, others, _allow_non_fake_inputs=True)(*fakes)
    except (RuntimeError, TypeError) as error:
        if isinstance(error, EqlayersError):
            raise
        raise TraceFailure(
            f"{' '.join(str(error).split())[:120]} in {_last_line(traceback.extract_tb(error.__traceback__))}"
        ) from error
    return graph, mode.shape_env.guards.first


class _Guards(list[Any]):
    """Comparisons that a trace depends on; the first one with its line."""

    first: str | None = None

    def append(self, guard: Any) -> None:
        import sympy

        # torch does not see that 3 s + 6 is a multiple of s + 2, which a view of such rows asks for
        divided = guard.expr.replace(
            lambda one: type(one).__name__ in ("Mod", "PythonMod"),
            lambda one: sympy.S.Zero if sympy.cancel(one.args[0] / one.args[1]).is_Integer else one,
        )
        # torch 2.6 compares sizes with the largest integer, which stands for the end of a slice
        ended = divided.replace(lambda one: one.is_Relational and sys.maxsize in one.args, lambda one: sympy.true)
        if ended == sympy.true:
            return
        if not self:
            self.first = f"{guard.expr} in {_last_line(traceback.extract_stack())}"
        super().append(guard)


def _last_line(frames: traceback.StackSummary) -> str:
    """The innermost line outside of torch."""
    here = [one for one in frames if f"{os.sep}torch{os.sep}" not in one.filename and one.filename != __file__]
    return f"{here[-1].filename}:{here[-1].lineno}, {here[-1].name}" if here else "torch"


def always_alike(operator: Any) -> bool:
    """Whether calls of a graph's operator with the same arguments have the same results and change nothing.

    Without it: no operator is known to be so.
    """
    if not isinstance(operator, torch._ops.OpOverload):
        return True  # arithmetic of sizes, and items of lists
    return not writes(operator) and not draws(operator)


def views(operator: Any) -> bool:
    """Whether results of an operator have the memory of its first argument. Without it: copy every gradient."""
    schema = getattr(operator, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def draws(operator: Any) -> bool:
    """Whether an operator draws random numbers. Without it: by a list of names."""
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def writes(operator: Any) -> bool:
    """Whether an operator changes an argument. Without it: by the underscore in its name."""
    return bool(getattr(getattr(operator, "_schema", None), "is_mutable", False))
