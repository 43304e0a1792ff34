"""All that this package uses of torch beyond its public interface, in one place; nothing else names a private part.

Each use says why it is there, and what to do when a torch comes without it (``pyproject.toml`` bounds torch to the
releases that `nox -s oldest newest` runs the tests with, so a newer one is tried before users get it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual
from torch.compiler import is_compiling
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import Parameter

try:
    # Names by themselves, where every call of a layer asks: attributes of attributes cost it microseconds.
    from torch._C import (
        _are_functorch_transforms_active,
        _dispatch_tls_is_dispatch_key_included,
        _get_tracing_state,
        _len_torch_dispatch_stack,
        _len_torch_function_stack,
    )
    from torch._C._autograd import _profiler_enabled
    from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch._functorch.utils import enable_single_level_autograd_function
    from torch._guards import TracingContext
    from torch.autograd.forward_ad import _set_fwd_grad_enabled

    # The base class of Functions that belong to one level of torch.func. They stand at the key Autograd of the
    # operators, where torch.func has taken its own wrappers off. autograd.Function would want setup_context, which
    # costs a plain call more than the rest of its overhead. Without it: autograd.Function, and a slower call.
    from torch.autograd.function import _SingleLevelFunction
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
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch  # make_fx(pre_dispatch=True)
SingleLevelFunction: Any = _SingleLevelFunction  # whose ``apply`` its stub leaves out
_P = ParamSpec("_P")
_R = TypeVar("_R")

#: What torch 2.7 brought: a mark for functions that are traced by running them, in which is_compiling() is true.
_IS_2_6 = not hasattr(torch._dynamo, "nonstrict_trace")
# torch 2.6 cannot tell export from compile: there every traced graph counts as saved
_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def traced_for_others() -> bool:
    """Whether the graph that is being traced may run in another process: torch.export, make_fx and torch.jit.trace.

    A graph of torch.compile stays in the process that traced it. Without the name for torch.jit.trace: its public twin.
    """
    if is_compiling():
        return _exporting()
    return _get_tracing_state() is not None or get_proxy_mode() is not None


def being_traced() -> bool:
    """Whether values cannot be looked at, because a graph is being traced. The guard is for torch 2.6 alone."""
    return is_compiling() or traced_for_others() or (_IS_2_6 and TracingContext.try_get() is not None)


@contextmanager
def outside_of_traces() -> Iterator[None]:
    """A context whose results are constants for the running trace: tables that follow from an info alone.

    Without it: make the tables when a layer is built, for every dtype and device.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def traced_by_running(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Lets torch.compile put a call of ``function`` into its graph as it is, and trace it by running it.

    Its arguments must be tensors, modules, numbers and strings. Without it: an operator that is made of others.
    """
    mark = torch.compiler.allow_in_graph if _IS_2_6 else torch._dynamo.nonstrict_trace
    return mark(function)


@torch.compiler.assume_constant_result  # torch.compile of torch 2.6 cannot trace what it asks
def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


def under_autocast(device: str) -> bool:
    """Whether autocast is on for tensors on devices of this type."""
    return (device in ("cpu", "cuda") or _has_autocast(device)) and torch.is_autocast_enabled(device)


def outside_of_autocast(device: str) -> AbstractContextManager[object]:
    """A context without autocast: results have the dtype of their operands."""
    return torch.autocast(device, enabled=False) if under_autocast(device) else nullcontext()


def as_constant(t: Tensor) -> Tensor:
    """A table that is kept, for use with operands: a constant of the graph that is being traced, or of fake tensors.

    Without the number of modes: lift always, which costs every call an operation.
    """
    return torch.ops.aten.lift_fresh.default(t) if _len_torch_dispatch_stack() or being_traced() else t


def wrapped_by_func(t: Tensor) -> bool:
    """Whether a transform of torch.func has put something around the tensor. Without it: sort edges in every call."""
    return not torch.compiler.is_dynamo_compiling() and is_functorch_wrapped_tensor(t)


def outside_of_func() -> AbstractContextManager[object]:
    """A context without torch.func: results from plain tensors are plain, and survive the running transform.

    Without it: keep nothing that is made while one runs.
    """
    if torch.compiler.is_dynamo_compiling() or not _are_functorch_transforms_active():
        return nullcontext()
    return temporarily_clear_interpreter_stack()


def unwrapped(t: Tensor) -> Tensor:
    """The tensor without the wrappers of torch.func: with the axes that vmap hides. Without it: no look at indices."""
    while is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


class _Primal:
    """The context of a jvp whose saved tensors have lost the tangents of this level, and only those."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = tuple(None if t is None else unpack_dual(t, level=0).primal for t in ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def seen_by_outer_levels(jvp: Callable[..., _R]) -> Callable[..., _R]:
    """Lets the outer levels of torch.func follow a ``jvp(ctx, *tangents)``.

    Torch switches forward mode off while it runs, for all levels: sums in it would be constants for the others.
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
    """An object for the running trace, so that nothing made in one trace is used in another; None without a trace.

    Under torch.compile None: its tracer follows attributes by itself.
    """
    return None if torch.compiler.is_dynamo_compiling() else get_proxy_mode()


def below_autograd() -> AbstractContextManager[object]:
    """A context below the key Autograd for operators: their kernel, or the next level of torch.func, with its tapes on.

    C++ has the guard as ``at::AutoDispatchBelowADInplaceOrView``; Python has no public name for it. Without it: call
    the kernel of each device by hand, and lose the levels of torch.func.
    """
    plain: AbstractContextManager[object] = torch._C._AutoDispatchBelowAutograd()
    return _below_and_followed(plain) if _are_functorch_transforms_active() else plain


@contextmanager
def _below_and_followed(plain: AbstractContextManager[object]) -> Iterator[None]:
    with plain, torch.enable_grad(), _set_fwd_grad_enabled(True):
        yield


def in_forward_mode() -> bool:
    """Whether derivatives in forward mode may be asked for. Without the number of its level: always."""
    return forward_ad._current_level >= 0 or _are_functorch_transforms_active()


def on_tape(tensors: Sequence[Tensor]) -> bool:
    """Whether the tape of autograd follows a call on these tensors: a Function costs a third of its host time."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return False


def asked_for(ctx: Any, wanted: tuple[bool, ...]) -> tuple[bool, ...]:
    """Whether each of the last inputs of a node gets a gradient that this very run of autograd uses.

    ``ctx.needs_input_grad`` says which could use one in some run; of forces, by ``autograd.grad`` with the positions,
    the gradients of all weights would be computed and dropped. Torch's functions in C++ alone are told by a public
    name.
    """
    if is_compiling():
        return wanted
    found = []
    for want, (node, _) in zip(wanted, ctx.next_functions[-len(wanted) :], strict=True):
        try:
            found.append(want and bool(torch._C._will_engine_execute_node(node)))
        except RuntimeError:  # its way to say that autograd.grad was asked for the gradient of this leaf
            found.append(True)
    return tuple(found)


def is_plain(tensors: Sequence[Tensor], observed: bool = False) -> bool:
    """Whether nothing but the tape of autograd would see an operator on these tensors, and they lie as they are.

    Then what the dispatcher would come to can be called at once, without its two ways through Python. ``observed``
    allows a profiler and modes of ``torch.overrides``, which see calls and change no numbers. Without one of the names:
    always the operator.
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
        if t.is_neg() or t._is_zerotensor():  # written out first
            return False
        if is_functorch_wrapped_tensor(t) or is_legacy_batchedtensor(t):  # inside a transform
            return False
    return True


def single_level() -> AbstractContextManager[object]:
    """A context in which a `SingleLevelFunction` may be applied: torch.func forbids functions that it cannot know.

    Without it: autograd.Function with setup_context.
    """
    return enable_single_level_autograd_function() if _are_functorch_transforms_active() else _NOTHING


def batched_by_grad(op: Any, rule: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """A kernel of ``op`` for the older vmap, of ``is_grads_batched`` and ``vectorize``, from its rule for torch.func's.

    Torch falls back to one call per sample there, but not for operators that take lists. Without the names below: the
    fallback of torch.func alone.
    """

    def run(*args: Any) -> Any:
        leaves, spec = tree_flatten(list(args))
        mapped = [isinstance(t, Tensor) and is_legacy_batchedtensor(t) for t in leaves]
        if not any(mapped):
            return op(*args)
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        plain = [torch._remove_batch_dim(t, level, 1, 0) if own else t for t, own in zip(leaves, mapped, strict=True)]
        if any(isinstance(t, Tensor) and is_legacy_batchedtensor(t) for t in plain):
            raise NotImplementedError(
                f"{op} must be batched once by is_grads_batched or vectorize, got it twice. Use torch.func.vmap."
            )
        size = next(t.shape[0] for t, own in zip(plain, mapped, strict=True) if own)
        dims = tree_unflatten([0 if own else None for own in mapped], spec)
        found, _ = rule(_Batch(size), dims, *tree_unflatten(plain, spec))
        if isinstance(found, Tensor):
            return torch._add_batch_dim(found, 0, level)
        return [torch._add_batch_dim(t, 0, level) for t in found]

    return run


class _Batch(NamedTuple):
    """The fields of torch.func's VmapInfo that rules read."""

    batch_size: int


def assert_later(condition: Tensor, message: str) -> None:
    """A check in a traced graph: a node that raises RuntimeError. Without it: no check in graphs."""
    torch._assert_async(condition, message)


def is_traced_size(value: object) -> bool:
    """Whether it is a size that torch.jit.trace follows, a tensor without axes. Without it: none is."""
    return isinstance(value, Tensor) and value.ndim == 0 and _get_tracing_state() is not None


def parsed_device(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device | None:
    """The device among the arguments of a call of ``.to``. Without it: the device of an empty tensor so moved."""
    found: torch.device | None = torch._C._nn._parse_to(*args, **kwargs)[0]
    return found


def tensor_without_numbers(cls: Any, shape: Sequence[int], like: Tensor) -> Any:
    """A tensor of a class derived from torch's, with dtype and device of another, that holds no memory.

    Without it: an object that is no tensor, which ``isinstance`` tells.
    """
    return Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=like.dtype, device=like.device)


def as_base_tensors() -> AbstractContextManager[object]:
    """Functions of torch take tensors of derived classes for torch's own. Without it: ``Tensor.__torch_function__``."""
    return torch._C.DisableTorchFunctionSubclass()
