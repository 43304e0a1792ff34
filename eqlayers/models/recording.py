"""Potentials as CUDA graphs: a call is recorded once and replayed for other atoms, without launches from Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core.checks import check_type
from ..core.errors import ConfigError, DeviceError
from .potential import Potential
from .structures import Structures

#: Device type that supports recording.
DEVICE = "cuda"
#: Capacity of a recording in edges, relative to the first structures' edges, rounded up to a multiple of STEP.
CAPACITY, STEP = 1.1, 64
#: Number of ghost atoms, which unused edges connect; their distance relative to the cutoff.
GHOSTS, GHOST_DISTANCE = 2, 0.9
#: Warm-up calls before a recording, which compile kernels and initialise libraries.
CALLS_BEFORE = 3
#: Outputs with a row for each atom; all others have a row for each structure.
BY_ATOM = ("energies", "forces", "born_charges")

Results = dict[str, Tensor]
Returned = TypeVar("Returned")


def record(call: Callable[[], Returned]) -> tuple[Returned, Callable[[], object]]:
    """Record a call as a CUDA graph: its results, and a function that computes them again in the same memory."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(CALLS_BEFORE):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return results, graph.replay


class _Recording(NamedTuple):
    """One CUDA graph: its key (sizes, outputs, device), memory of structures and results, and the replay function."""

    key: tuple[object, ...]
    padded: Structures
    results: Results
    replay: Callable[[], object]


class Recorded:
    """A potential on a GPU whose calls are replays of a CUDA graph.

    A GPU computes a small system in about a millisecond. Python needs ten times as long to issue the launches. A replay
    issues all launches at once. The first call records; later calls copy the structures into the memory of the
    recording and replay it. A call with other numbers of atoms or structures, with other outputs, or with more edges
    than the recording has capacity for records again. Unused edges connect two ghost atoms, a separate structure that
    is left out of the results.

    The results cannot be differentiated. After a change of the potential, such as new weights or
    :func:`eqlayers.models.compress`, create another object.

    Args:
        potential: On a CUDA device, in evaluation mode.

    Raises:
        DeviceError: The potential is on another device. ConfigError: It is in training mode.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> potential = Potential(ToyNetwork(1), species=[29]).eval()
        >>> if torch.cuda.is_available():
        ...     fast = Recorded(potential.to("cuda"))
    """

    def __init__(self, potential: Potential) -> None:
        self.potential = check_type("potential", potential, Potential, "a Potential", "Record each member by itself.")
        if potential.device.type != DEVICE:
            raise DeviceError(
                f"potential must be on a CUDA device to be recorded, got {potential.device}. Move it with .to('cuda'), "
                "a command with --device cuda."
            )
        if potential.training:
            raise ConfigError("potential must be in evaluation mode to be recorded, got training mode. Call .eval().")
        self._last: _Recording | None = None

    def __call__(self, structures: Structures, outputs: Iterable[str] | None = None) -> Results:
        """The results of ``potential(structures, outputs, create_graph=False)``.

        Args:
            structures, outputs: As of :class:`eqlayers.models.Potential`.

        Raises:
            ShapeError, DTypeError, IndexRangeError: As the potential raises. DeviceError: Structures are on another
                device.
            ConfigError: An output is unknown, or the network synchronises with the device, which cannot be recorded.
        """
        outputs = tuple(self.potential._requested(outputs))
        structures = self.potential._checked(structures)
        if structures.pos.device != self.potential.device:
            raise DeviceError(
                f"structures must be on the device of the potential, {self.potential.device}, got "
                f"{structures.pos.device}. Move them."
            )
        with torch.cuda.device(structures.pos.device) if structures.pos.is_cuda else nullcontext():
            return self._replayed(structures, outputs)

    def _replayed(self, structures: Structures, outputs: tuple[str, ...]) -> Results:
        key = (len(structures.z), structures.num_graphs, structures.cell is None, outputs, self.potential.device)
        last, edges = self._last, structures.edge_index.shape[1]
        if last is None or last.key != key or last.padded.edge_index.shape[1] < edges:
            last = self._last = self._recording(structures, outputs, key)
        else:
            fill(last.padded, structures)
            last.replay()
        rows = {name: len(structures.z) if name in BY_ATOM else structures.num_graphs for name in last.results}
        return {name: value[: rows[name]].clone() for name, value in last.results.items()}

    def _recording(self, structures: Structures, outputs: tuple[str, ...], key: tuple[object, ...]) -> _Recording:
        self._last = None  # frees its memory before the next recording
        padded = with_ghosts(structures, self.potential.cutoff, self.potential.species[0])

        def call() -> Results:
            results = self.potential(padded, outputs, create_graph=False)
            return {name: value.detach() for name, value in results.items()}

        try:
            results, replay = record(call)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "captur" not in str(error):
                raise
            raise ConfigError(
                "network must not synchronise with the device to be recorded, got an operator that does: "
                f"{' '.join(str(error).split())[:200]}. Call the potential itself."
            ) from error
        replay()
        return _Recording(key, padded, results, replay)


def with_ghosts(structures: Structures, cutoff: float, species: int) -> Structures:
    """A copy padded to a capacity of edges, with ghost atoms of the first atom's species, else of ``species``."""
    atoms, edges = len(structures.z), structures.edge_index.shape[1]
    capacity = STEP * math.ceil(max(1, CAPACITY * edges) / STEP)
    ghosts = structures.pos.new_zeros(GHOSTS, 3)
    ghosts[1, 2] = GHOST_DISTANCE * cutoff
    assert structures.batch is not None
    padded = Structures(
        torch.cat([structures.z, structures.z.new_full((GHOSTS,), int(structures.z[0]) if atoms else species)]),
        torch.cat([structures.pos.detach(), ghosts]),
        structures.edge_index.new_empty(2, capacity),
        torch.cat([structures.batch, structures.batch.new_full((GHOSTS,), structures.num_graphs)]),
        structures.num_graphs + 1,
    )
    if structures.cell is not None and structures.shifts is not None:
        cell = 10 * cutoff * torch.eye(3, dtype=structures.cell.dtype, device=structures.cell.device)
        shifts = structures.shifts.new_zeros(capacity, 3)
        padded = padded._replace(cell=torch.cat([structures.cell.detach(), cell[None]]), shifts=shifts)
    fill(padded, structures)
    return padded


def fill(padded: Structures, structures: Structures) -> None:
    """Copy structures into the memory of padded ones; unused edges connect the ghost atoms."""
    atoms, edges = len(structures.z), structures.edge_index.shape[1]
    padded.z[:atoms].copy_(structures.z)
    padded.pos[:atoms].copy_(structures.pos.detach())
    assert padded.batch is not None
    assert structures.batch is not None
    padded.batch[:atoms].copy_(structures.batch)
    padded.edge_index[:, :edges].copy_(structures.edge_index)
    padded.edge_index[0, edges:] = atoms
    padded.edge_index[1, edges:] = atoms + 1
    if padded.cell is not None and structures.cell is not None:
        assert padded.shifts is not None
        assert structures.shifts is not None
        padded.cell[: structures.num_graphs].copy_(structures.cell.detach())
        padded.shifts[:edges].copy_(structures.shifts)
        padded.shifts[edges:] = 0
