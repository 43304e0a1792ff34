"""Traces of potentials: compiled calls, which run without Python's layers, and the inner graph of edge vectors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.autograd import set_detect_anomaly
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from ..core.checks import check_flag
from ..core.errors import EqlayersError, EqlayersWarning
from ..core.torch_internals import is_plain
from ..core.traces.derivable import Derivable
from ..core.traces.recorded import RECORDERS, Recorded
from ..core.traces.simplify import simplify
from ..core.traces.trace import Axes, Refused, trace
from ..layers.base.module import EquivariantModule, WithForward, named_tensors
from .padding import Ghosts
from .structures import Structures, mirror, one_way

if TYPE_CHECKING:
    from .potential import Potential

#: Names of the free sizes of the fields of structures.
AXES: dict[str, Axes] = {
    "z": ("atoms",),
    "pos": ("atoms", None),
    "edge_index": (None, "edges"),
    "batch": ("atoms",),
    "cell": ("structures", None, None),
    "shifts": ("edges", None),
}
#: Calls after which a trace has saved more seconds than it took, for the smallest systems.
WORTH_COMPILING = 1_000
#: Held while weights are read or traced: in a trace, other threads would see tensors without numbers in their place.
TRACING = RLock()
#: The function of a module that is traced: results by name from structures.
Method = Callable[[Any, Structures], dict[str, Tensor]]
Check = Callable[[Structures], object]


class Compiles(nn.Module):
    """A module whose calls can be compiled: `compile` switches it on, and each kind of call is traced at its first.

    A compiled call gives the numbers of the module itself, to rounding. It reads weights and buffers at every call. A
    change of anything else, such as another cutoff, needs another `compile`. Hooks inside the module run in the trace
    alone. Calls under torch.func, torch.compile, torch.export or a profiler run as if not compiled.
    """

    cutoff: float
    species: tuple[int, ...]
    _compiled: Compiled | None = None

    def compile(self, enabled: bool = True, required: bool = True, record: bool = True) -> None:
        """Trace calls from now on, each kind of call once, in some seconds; a GPU replays them as CUDA graphs.

        Kinds of calls differ in outputs, in dtype and device, in which tensors require gradients, in the mode of
        training, and in whether structures have a cell. Numbers of atoms, edges and structures do not matter. Results
        can be differentiated once.

        A recorded call is one launch in place of hundreds from Python. Ghost atoms and their edges, a twentieth of the
        edges on average and at most an eighth, fill it up to one of a few sizes, each of which is recorded once.
        Calls that draw random numbers are not recorded.

        Args:
            enabled: False for no traces any more.
            required: Whether a call that cannot be traced raises ConfigError; else calls run as if not compiled, after
                a warning.
            record: Whether calls on a GPU are recorded.

        Example:
            >>> from eqlayers.models import NequIP, Potential
            >>> potential = Potential(NequIP([1], hidden="4x0e + 4x1o", lmax=1, layers=1), species=[1]).eval()
            >>> pair = Structures(torch.tensor([1, 1]), torch.eye(2, 3), torch.tensor([[0, 1], [1, 0]]))
            >>> forces = potential(pair)["forces"]
            >>> potential.compile()
            >>> torch.allclose(potential(pair)["forces"], forces)
            True
        """
        required, record = check_flag("required", required), check_flag("record", record)
        self._compiled = Compiled(required, record) if check_flag("enabled", enabled) else None

    @property
    def is_compiled(self) -> bool:
        """Whether calls run by their traces."""
        return self._compiled is not None

    def _by_trace(
        self, structures: Structures, kind: tuple[Any, ...], check: Check, method: Method
    ) -> dict[str, Tensor]:
        """The results of ``method(self, structures)``, by a trace if calls are compiled; see `Compiled.__call__`."""
        compiled = self._compiled
        if compiled is None or not is_plain((structures.pos,)):
            return method(self, structures)
        try:
            return compiled(self, structures, kind, check, method)
        except Exception as error:  # auto must not end a training that would run without it
            known = isinstance(error, (EqlayersError, torch.OutOfMemoryError)) and not isinstance(error, Refused)
            if compiled.required or known:
                raise
            self._compiled = None
            warnings.warn(f"calls are not compiled: {error}", EqlayersWarning, stacklevel=4)
            return method(self, structures)


class Compiled:
    """The traces of a module by kind of call. A copy begins without traces."""

    def __init__(self, required: bool, record: bool) -> None:
        self.required, self.record = required, record
        self._traces, self._changes = dict[Any, _Traced](), 0  # changes of coefficients, after which traces go

    def __reduce__(self) -> Any:
        return Compiled, (self.required, self.record)

    def __call__(
        self, module: Compiles, structures: Structures, kind: tuple[Any, ...], check: Check, method: Method
    ) -> dict[str, Tensor]:
        """The results of ``method(module, structures)``, of which ``kind`` names all that the method depends on.

        ``check`` raises if values of the structures are wrong, which no trace does.
        """
        operand = one_way(structures) if structures.mirrored else structures
        fields = [t.contiguous() for name in AXES if (t := getattr(operand, name)) is not None]
        graded, device = torch.is_grad_enabled(), structures.pos.device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with TRACING:
            check(structures)
            modules: list[nn.Module] = [module]
            for one in modules:  # grows while it is read
                modules.extend([child for child in one._modules.values() if child is not None])
            weights = [
                t for one in modules for part in (one._parameters, one._buffers) for t in part.values() if t is not None
            ]
            operands = [*weights, *fields, structures.pos.new_empty(structures.num_graphs)]
            alike = tuple([(t.dtype, t.device, graded and t.requires_grad) for t in operands])
            firsts: dict[int, int] = {}  # of the same weights, as a trace reads one of them
            layouts = tuple([(t.shape, t.stride(), firsts.setdefault(id(t), n)) for n, t in enumerate(weights)])
            modes = tuple([(id(one), one.training) for one in modules])
            present, ordered = structures.cell is not None, torch.are_deterministic_algorithms_enabled()
            if self._changes != EquivariantModule.changes:
                self._traces, self._changes = {}, EquivariantModule.changes
            key = kind, alike, layouts, modes, autocast, present, ordered, structures.mirrored
            traced = self._traces.get(key)
            if first := traced is None:
                if not is_plain(operands):
                    kinds = sorted({type(t).__name__ for t in weights})
                    raise Refused(f"traced weights must be plain tensors, got {', '.join(kinds)}. Do not compile.")
                traced = _Traced(module, modules, weights, structures, operands, method, graded, self.record)
                self._traces[key] = traced
        results = dict(zip(traced.names, traced.call(operands), strict=True))
        if first and isinstance(traced.call, Recorded):
            with unchanged(modules):
                copied = {name: t.clone() for name in AXES if (t := getattr(structures, name)) is not None}
                check_alike(results, method(module, structures._replace(**copied)), structures.pos.dtype)
        return results


def check_alike(recorded: dict[str, Tensor], results: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Raise Refused if recorded results differ from the module's, as where it looks across structures."""
    for name, value in results.items():
        most = float(value.detach().nan_to_num().abs().max()) if value.numel() else 0.0
        near = {"rtol": 0.0, "atol": torch.finfo(dtype).eps ** 0.5 * most, "equal_nan": True}
        if not torch.allclose(recorded[name], value, **near):
            raise Refused(
                f"recorded results must equal the results of the network itself, got another {name}. Compute means "
                "over the atoms of each structure, as ghost atoms fill up a batch, or use compile(record=False)."
            )


class _Traced:
    """A kind of call. It holds the modules, so that their identities in the key stay theirs."""

    def __init__(
        self,
        module: Compiles,
        modules: list[nn.Module],
        weights: list[Tensor],
        structures: Structures,
        operands: list[Tensor],
        method: Method,
        graded: bool,
        record: bool,
    ) -> None:
        self.modules, self.names = modules, list[str]()
        held = WithForward(module, method)
        listed = {name: id(t) for name, t in named_tensors(held)}
        order = {id(t): number for number, t in enumerate(weights)}
        fields = [name for name in AXES if getattr(structures, name) is not None]

        def function(*tensors: Tensor) -> list[Tensor]:
            of: dict[str, Any] = dict(zip(fields, tensors[len(weights) :], strict=False))
            moved = Structures(**of, num_graphs=tensors[-1].shape[0])
            moved = mirror(moved) if structures.mirrored else moved
            of_names = {name: tensors[order[one]] for name, one in listed.items()}
            results = functional_call(held, of_names, (moved,), tie_weights=False)
            self.names[:] = results
            return list(results.values())

        axes = [*[None] * len(weights), *(AXES[name] for name in fields), ("structures",)]
        wanted = [graded and t.requires_grad for t in operands]
        self.call: Callable[[list[Tensor]], Sequence[Tensor]]
        with unchanged(modules):
            self.call = derivable = Derivable(function, operands, axes, wanted, f"{type(module).__name__}")
        if record and structures.pos.device.type in RECORDERS and not derivable.is_random:
            ghosts = Ghosts(fields, len(weights), module.cutoff, module.species[0])
            self.call = Recorded(derivable, ghosts, structures.pos.device)


@contextmanager
def unchanged(modules: Iterable[nn.Module]) -> Iterator[None]:
    """A context after which modules have the attributes of before, where a trace left tensors without numbers.

    Inference mode, checkpoints and a search of anomalies are around the first call, and not in it.
    """
    with TRACING, torch.inference_mode(False), set_detect_anomaly(False), saved_tensors_hooks(lambda t: t, lambda t: t):
        before = [(one, dict(vars(one))) for one in modules]
        try:
            yield
        finally:
            for one, kept in before:
                for name in [name for name, value in vars(one).items() if kept.get(name, before) is not value]:
                    vars(one).update({name: kept[name]}) if name in kept else vars(one).pop(name)


# ---- the inner graph ------------------------------------------------------------------------------------------------

INNER_AXES: tuple[Axes, ...] = (("atoms",), ("edges", None), (None, "edges"), ("atoms",))


class Inner(NamedTuple):
    """A potential without positions, cells, strain and batches, which are around this graph.

    Attributes:
        graph: From the weights, then ``z [A]``, ``vectors [E, 3]``, ``edge_index [2, E]`` and ``factors [A]``, to
            energies of atoms ``[A]`` float64 and slopes ``[E, 3]``, the derivatives of the sum of factors times
            energies by the vectors. Its inputs are checked by the caller.
        weights: Names of the weights and buffers, in the order of the graph's inputs.
    """

    graph: fx.GraphModule
    weights: tuple[str, ...]

    def __call__(self, potential: Potential, *inputs: Tensor) -> list[Tensor]:
        """Run the graph with the weights of a potential."""
        named = dict(named_tensors(potential))
        results: list[Tensor] = self.graph(*map(named.__getitem__, self.weights), *inputs)
        return results


def inner_graph(potential: Potential, simple: Callable[[str], bool] | None = None) -> Inner:
    """Trace the inner graph of a potential, with the dtype and device that it has now; ``simple`` as of `trace`.

    ConfigError if the network cannot be traced, with the line that cannot, or predicts no energy.
    """
    potential._requested(("energy",))
    named, held = dict(named_tensors(potential)), WithForward(potential, _by_vectors)

    def function(*inputs: Tensor) -> list[Tensor]:
        weights = {f"module.{name}": t for name, t in zip(named, inputs, strict=False)}
        results: list[Tensor] = functional_call(held, weights, inputs[len(named) :], tie_weights=False)
        return results

    index, vectors = torch.zeros(2, 1, dtype=torch.int64), torch.zeros(1, 3, dtype=potential.dtype)
    operands = [*named.values(), *(t.to(potential.device) for t in (index[0], vectors, index, vectors[:, 0]))]
    with unchanged(potential.modules()):
        graph = trace(function, operands, [*[None] * len(named), *INNER_AXES], "the potential", simple)
    simplify(graph)
    return Inner(graph, tuple(named))


def _by_vectors(potential: Potential, z: Tensor, vectors: Tensor, edge_index: Tensor, factors: Tensor) -> list[Tensor]:
    """Energies of atoms and slopes by vectors, which are shifts of atoms at the origin."""
    with torch.enable_grad():
        vectors = vectors.detach().requires_grad_()
        atoms = Structures(z, vectors.new_zeros(z.shape[0], 3), edge_index, torch.zeros_like(z), 1, None, vectors)
        results = potential._predicted(atoms)
        varying = results["varying"]
        (slopes,) = torch.autograd.grad(varying, vectors, factors.to(varying.dtype))
    return [results["energies"].detach(), slopes]
