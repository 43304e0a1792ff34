"""Base class of modules that replace others in a model, and the random inputs on which both are compared.

The original object is kept outside the registered submodules: it adds no parameters, no keys of the state dict and no
moves between devices. It is pickled and copied with its replacement, so that a saved model can be turned back as well;
the weights are written once, for both hold the same Parameters.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.errors import ConfigError
from ..layers.base.module import EquivariantModule
from .lazy import LazyRows, all_computed

if TYPE_CHECKING:
    from typing_extensions import Self

Operands = dict[str, Tensor]
#: Nodes of the small graph; one has no edges.
NODES = 4


@dataclass(frozen=True)
class Probe:
    """Operands of a module and its replacement, and the calls of both.

    Attributes:
        operands: Random values, float64 on the CPU.
        run: Results of either module, or of a copy of it.
        prefix: Names results of another function than the forward.
        misfit: Operands wider than the irreps say, which some layers take all the same; None where none does.
    """

    operands: Operands
    run: Callable[[nn.Module, Operands], Tensor]
    prefix: str = ""
    misfit: Operands | None = None

    def draw(self, name: str, shape: Sequence[int]) -> Tensor:
        """Random numbers that depend on this name alone."""
        return draw(name, *shape)


def draw(name: str, *shape: int) -> Tensor:
    """Normal random numbers, float64 on the CPU, that depend on name and shape alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def dtype_and_device(
    module: nn.Module, default: tuple[torch.dtype, torch.device] | None = None
) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the module's floating-point tensors; torch's default on the CPU if it has no numbers."""
    tensors = [
        t
        for t in [*module.parameters(), *module.buffers()]
        if not is_lazy(t) and not t.is_meta and t.is_floating_point()
    ]
    like = max(tensors, key=lambda t: t.numel(), default=None)
    if like is None:
        return default or (torch.get_default_dtype(), torch.device("cpu"))
    return like.dtype, like.device


def call(module: nn.Module, *args: Any) -> Tensor:
    """The forward of a module past its hooks."""
    result: Tensor = type(module).forward(module, *args)
    return result


class _PastHooks(nn.Module):
    def __init__(self, module: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args: Any) -> Tensor:
        return self.function(self.module, *args)


def call_with(module: nn.Module, state: Operands, *args: Any, function: Callable[..., Tensor] = call) -> Tensor:
    """:func:`call`, or another function of the module, with other parameters and buffers."""
    named = {f"module.{name}": value for name, value in state.items()}
    result: Tensor = torch.func.functional_call(_PastHooks(module, function), named, args)
    return result


# ---- copies in float64 -----------------------------------------------------------------------------------------------


def in_float64(modules: Sequence[nn.Module], constants: Operands) -> list[nn.Module]:
    """Copies in float64 on the CPU, without hooks, with these constants in the first; ours run in torch.

    Modules and attributes that are shared stay so: attributes of layers hold no numbers of their own.
    """
    known: dict[nn.Module, nn.Module] = {}
    with torch.no_grad():
        copies = [_in_float64(module, known) for module in modules]
        for name, buffer in copies[0].named_buffers():
            if name in constants:
                buffer.copy_(constants[name])
    return copies


def _in_float64(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in known:
        return known[module]
    inner = module._modules.get("_orig_mod") if hasattr(module, "_orig_mod") else None  # of torch.compile
    if inner is not None:
        new: Any = _in_float64(inner, known)
    elif isinstance(module, torch.jit.ScriptModule):
        new = copy.deepcopy(module).to("cpu", torch.float64)
    else:
        new = object.__new__(type(module))
        held = vars(new)
        held.update(vars(module))
        held.update((name, type(value)()) for name, value in vars(module).items() if name.endswith("_hooks"))
        held["_parameters"] = {n: None if p is None else nn.Parameter(_wide(p)) for n, p in module._parameters.items()}
        held["_buffers"] = {n: None if b is None else _wide(b) for n, b in module._buffers.items()}
        held["_modules"] = {n: None if m is None else _in_float64(m, known) for n, m in module._modules.items()}
        if isinstance(module, EquivariantModule):
            held["backend"] = "torch"
    known[module] = new
    return new


def _wide(tensor: Tensor) -> Tensor:
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", dtype, copy=True)


#: Attributes of its original that a replacement does not take over.
_OWN = ("_modules", "_parameters", "_buffers", "_original", "__codegen__", "sph_func")


class Replacement(nn.Module):
    """Mixin: a module that stands in for another, with its Parameters, hooks, mode and further attributes."""

    #: NequIP imports these before it loads a compiled model.
    _nequip_custom_ops_libs: ClassVar[tuple[str, ...]] = ("eqlayers.nn",)  # what registers the operators

    #: Attributes of both that users change.
    _settings: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, original: nn.Module, backend: str | None = None) -> Self:
        """The replacement of a module, with a backend, or None for the first that accepts."""
        from_e3nn: Any = getattr(cls, "from_e3nn", None)
        new: Self = cls(original, backend) if from_e3nn is None else from_e3nn(original, backend=backend)
        new.stand_in_for(original)
        return new

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs of so many rows on which both must agree; the first probe makes the same call as models do."""
        raise NotImplementedError

    def exact_constants(self, original: Any) -> dict[str, Tensor]:
        """The original's buffers in float64, by name, if it keeps them with the rounding of a shorter dtype."""
        return {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Layers get numbers, also in place of lazy rows."""
        if any(isinstance(value, LazyRows) for value in (*args, *kwargs.values())):
            args, kwargs = all_computed(args), all_computed(kwargs)
        return super().__call__(*args, **kwargs)

    def mark(self, parent: nn.Module) -> None:
        """Tell the parent, while the replacement is in place, that it is called in another way."""

    def unmark(self, parent: nn.Module) -> None:
        """Take back what :meth:`mark` did."""

    @property
    def original(self) -> nn.Module:
        """The module that this one stands in for, as it was; :func:`deaccelerate` brings it up to date."""
        module: nn.Module = vars(self)["_original"]
        return module

    def stand_in_for(self, original: nn.Module) -> None:
        """Take over all that is not numbers: hooks (the very dictionaries), mode, attributes that we lack."""
        mine = vars(self)
        theirs = {name: value for name, value in vars(original).items() if name not in _OWN}
        taken = {name: value for name, value in theirs.items() if name not in mine or "hook" in name}
        mine.update(taken, _original=original, _taken=tuple(taken))
        for name in ("training", "_non_persistent_buffers_set"):
            mine[name] = theirs[name]

    def _give_back(self) -> nn.Module:
        """The original, with the mode, hooks and further attributes of now."""
        mine, original = vars(self), self.original
        vars(original).update({name: mine[name] for name in (*mine["_taken"], *self._settings) if name in mine})
        return original.train(self.training)

    def restore(self) -> nn.Module:
        """The original, with the Parameters, buffers, mode, device and dtype of now."""
        original = self._give_back()
        for kind in ("_parameters", "_buffers"):
            mine, theirs = vars(self)[kind], vars(original)[kind]
            for name in theirs:
                if name in mine:
                    theirs[name] = mine[name]
        like = _like(self)
        if like is not None:
            for child in original.children():  # e3nn's generated code, with its coefficients
                child.to(like.device, like.dtype)
        generated = getattr(self, "_generated", None) or {}  # a checkpoint may have brought other signs
        with torch.no_grad():
            for name, buffer in original.named_buffers():
                if name in generated:
                    buffer.copy_(generated[name])
        return original


class FusedReplacement(Replacement):
    """Mixin: what TorchScript cannot hold, all but products, linear maps and harmonics."""

    def __prepare_scriptable__(self) -> nn.Module:  # the hook of torch.jit.script
        raise ConfigError(
            f"a model must hold no replacement but products, linear maps and harmonics to be scripted, got "
            f"{type(self).__name__}. Call deaccelerate, then accelerate with targets=('product', 'linear', "
            f"'harmonics'); or use torch.export."
        )


@dataclass(frozen=True)
class Rule:
    """One kind of module.

    Attributes:
        target: What users call this kind, see :func:`eqlayers.accelerate`.
        parts: Names of the submodules that are replaced if a module is of this kind, '' for itself; none if not.
        refuse: Why this one cannot be replaced, a phrase that follows the name of the module; None if it can.
        build: Makes the replacement, with a backend.
        inner: Name of the product inside of the replaced module; empty if it is that.
        anywhere: Whether the replacement does what the original does in other places, too.
    """

    target: str
    parts: Callable[[nn.Module], Sequence[str]]
    refuse: Callable[[nn.Module], str | None]
    build: Callable[[nn.Module, str | None], Replacement]
    inner: str = ""
    anywhere: bool = False


def part_if(test: Callable[[nn.Module], bool], part: str = "") -> Callable[[nn.Module], Sequence[str]]:
    """The parts of a rule with one part: that part of modules that pass a test."""
    return lambda module: (part,) if test(module) else ()


def _like(module: nn.Module) -> Tensor | None:
    """A tensor with the module's device and dtype."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    floating = [t for t in tensors if t.is_floating_point()]
    return max(floating, key=lambda t: t.numel(), default=None)
