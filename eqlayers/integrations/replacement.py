"""Base class of modules that replace others in a model, and the random inputs on which both are compared.

The original object is kept outside the registered submodules: it adds no parameters, no keys of the state dict and no
moves between devices. It is pickled and copied with its replacement, so that a saved model can be turned back as well;
the weights are written once, for both hold the same Parameters.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.errors import ConfigError
from ..irreps.algebra import as_irreps
from ..layers.base.module import EquivariantModule, WithForward
from .lazy import LazyRows, all_computed

if TYPE_CHECKING:
    from typing_extensions import Self

Operands = dict[str, Tensor]
#: Dtype and device of a module.
Where = tuple[torch.dtype, torch.device]
#: Nodes of the small graph; one has no edges.
NODES = 4


@dataclass(frozen=True)
class Probe:
    """Random operands on which a module and its replacement are compared, and a function that calls either.

    Attributes:
        operands: Random values, float64 on the CPU.
        run: Function of a module and operands: its result.
        prefix: Text before names of results, such as ``right(), `` for another method than ``forward``.
        misfit: Operands wider than the irreps, which some layers accept; None for layers that check the width.
    """

    operands: Operands
    run: Callable[[nn.Module, Operands], Tensor]
    prefix: str = ""
    misfit: Operands | None = None


def draw(name: str, *shape: int) -> Tensor:
    """Normal random numbers, float64 on the CPU, that depend on name and shape alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def dtype_and_device(module: nn.Module, default: Where | None = None) -> Where:
    """Dtype and device of the module's floating-point tensors; torch's default on the CPU if it has no numbers."""
    like = _largest(t for t in [*module.parameters(), *module.buffers()] if not is_lazy(t) and not t.is_meta)
    if like is None:
        return default or (torch.get_default_dtype(), torch.device("cpu"))
    return like.dtype, like.device


def _largest(tensors: Iterable[Tensor]) -> Tensor | None:
    """The largest floating-point tensor, for its device and dtype; None if there is none."""
    return max((t for t in tensors if t.is_floating_point()), key=lambda t: t.numel(), default=None)


def call(module: nn.Module, *args: Any) -> Tensor:
    """Call the forward of a module without its hooks."""
    return type(module).forward(module, *args)


def call_with(module: nn.Module, state: Operands, *args: Any, function: Callable[..., Tensor] = call) -> Tensor:
    """:func:`call`, or another function of the module, with other parameters and buffers."""
    named = {f"module.{name}": value for name, value in state.items()}
    return torch.func.functional_call(WithForward(module, function), named, args)


# ---- copies in float64 -----------------------------------------------------------------------------------------------


def in_float64(modules: Sequence[nn.Module], constants: Operands) -> list[nn.Module]:
    """Copies of modules in float64 on the CPU, without hooks; layers of this package run in torch.

    Copies share the submodules that the modules share. ``constants`` are values of buffers of the first module.
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
    """A copy on the CPU, in float64 if the tensor is floating-point."""
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", dtype, copy=True)


#: Attributes of its original that a replacement does not take over.
_OWN = ("_modules", "_parameters", "_buffers", "_original", "__codegen__", "sph_func")


class Replacement(nn.Module):
    """Mixin of modules that replace another one, its original, with the same Parameters, hooks, mode and attributes."""

    #: NequIP imports these before it loads a compiled model.
    _nequip_custom_ops_libs: ClassVar[tuple[str, ...]] = ("eqlayers.nn",)  # what registers the operators

    #: Attributes of both that users change.
    _settings: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, original: nn.Module, backend: str | None = None) -> Self:
        """Make the replacement of a module; ``backend`` names its backend, None is the first that accepts."""
        from_e3nn: Any = getattr(cls, "from_e3nn", None)
        new: Self = cls(original, backend) if from_e3nn is None else from_e3nn(original, backend=backend)
        new.stand_in_for(original)
        return new

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Random operands with ``rows`` rows on which both modules must agree; the first is a call as in models."""
        operands = {"x": draw("x", rows, as_irreps(original.irreps_in).dim)}
        return [Probe(operands, lambda module, o: call(module, o["x"]))]

    def exact_constants(self, original: Any) -> dict[str, Tensor]:
        """Exact values in float64 of the original's buffers that are rounded to a shorter dtype, by name."""
        return {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, with lazy arguments replaced by their values."""
        if any(isinstance(value, LazyRows) for value in (*args, *kwargs.values())):
            args, kwargs = all_computed(args), all_computed(kwargs)
        return super().__call__(*args, **kwargs)

    def mark(self, parent: nn.Module) -> None:
        """Set attributes of ``parent``, which holds the replacement now, if it must call it differently."""

    def unmark(self, parent: nn.Module) -> None:
        """Take back what :meth:`mark` did."""

    @property
    def original(self) -> nn.Module:
        """The replaced module; only :meth:`restore` gives it the state of the replacement."""
        return vars(self)["_original"]

    def stand_in_for(self, original: nn.Module) -> None:
        """Take over mode, hooks (the same dictionaries) and missing attributes of the original, but no tensors."""
        mine = vars(self)
        theirs = {name: value for name, value in vars(original).items() if name not in _OWN}
        taken = {name: value for name, value in theirs.items() if name not in mine or "hook" in name}
        mine.update(taken, _original=original, _taken=tuple(taken))
        for name in ("training", "_non_persistent_buffers_set"):
            mine[name] = theirs[name]

    def _give_back(self) -> nn.Module:
        """The original, with the mode, hooks and attributes of the replacement."""
        mine, original = vars(self), self.original
        vars(original).update({name: mine[name] for name in (*mine["_taken"], *self._settings) if name in mine})
        return original.train(self.training)

    def restore(self) -> nn.Module:
        """The original, with the Parameters, buffers, mode, device and dtype of the replacement."""
        original = self._give_back()
        for kind in ("_parameters", "_buffers"):
            mine, theirs = vars(self)[kind], vars(original)[kind]
            theirs.update({name: mine[name] for name in theirs.keys() & mine.keys()})
        like = _largest([*self.parameters(recurse=False), *self.buffers(recurse=False)])
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
    """Mixin of replacements without a TorchScript wrapper: all but products, linear maps and harmonics."""

    def __prepare_scriptable__(self) -> nn.Module:  # the hook of torch.jit.script
        raise ConfigError(
            f"a model must hold no replacement but products, linear maps and harmonics to be scripted, got "
            f"{type(self).__name__}. Call deaccelerate, then accelerate with targets=('product', 'linear', "
            f"'harmonics'); or use torch.export."
        )


@dataclass(frozen=True)
class Rule:
    """How one kind of module is recognised and replaced.

    Attributes:
        target: Name of the kind in the argument ``targets`` of :func:`eqlayers.accelerate`.
        parts: Function of any module: names of its submodules to replace, '' for itself; none for other kinds.
        refuse: Function of a module of this kind: why it cannot be replaced, a phrase after its name; None if it can.
        build: Function of the module and a backend: the replacement.
        inner: Name of the tensor product inside of the replaced module; empty if the module is a product.
        anywhere: Whether the replacement is also right in parents that are not of this kind.
    """

    target: str
    parts: Callable[[nn.Module], Sequence[str]]
    refuse: Callable[[nn.Module], str | None]
    build: Callable[[nn.Module, str | None], Replacement]
    inner: str = ""
    anywhere: bool = False


def part_if(test: Callable[[nn.Module], bool], part: str = "") -> Callable[[nn.Module], Sequence[str]]:
    """A function for :attr:`Rule.parts`: ``part`` of modules that pass the test, none of others."""
    return lambda module: (part,) if test(module) else ()
