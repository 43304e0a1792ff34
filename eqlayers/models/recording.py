"""Potentials on a GPU without the host's time: a call is recorded as a CUDA graph, and replayed for other atoms."""

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

#: Type of the devices that record.
DEVICE = "cuda"
#: Edges that a recording has room for, over the edges of the first structures; a multiple of the step.
ROOM, STEP = 1.1, 64
#: Atoms of the structure that edges without a pair of atoms belong to; its length of an edge, over the cutoff.
GHOSTS, APART = 2, 0.9
#: Calls before a recording: they compile kernels, and let libraries set themselves up.
CALLS_BEFORE = 3
#: Outputs with a row for each atom; all others have a row for each structure.
BY_ATOM = ("energies", "forces", "born_charges")

Results = dict[str, Tensor]
Given = TypeVar("Given")  # what a call returns


def record(call: Callable[[], Given]) -> tuple[Given, Callable[[], object]]:
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
    """One recorded call: the memory of its structures and results, and the replay."""

    about: tuple[object, ...]
    padded: Structures
    results: Results
    replay: Callable[[], object]


class Recorded:
    """A potential on a GPU whose calls are replays of a CUDA graph.

    A GPU computes a small system in about a millisecond. Python needs ten times as long to issue the launches. A replay
    issues all launches at once. The first call records; later calls copy the structures into the memory of the
    recording and replay it. A call with other numbers of atoms or structures, with other outputs, or with more edges
    than the recording has room for records again. Edges without a pair of atoms join two ghost atoms, which are a
    structure of their own and are left out of the results.

    The results cannot be differentiated. After a change of the potential, such as new weights or
    :func:`eqlayers.models.compress`, make another object.

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
            ShapeError, DTypeError, IndexRangeError: As of the potential. DeviceError: Structures on another device.
            ConfigError: An unknown output, or a network that waits for the device, which cannot be recorded.
        """
        asked = tuple(self.potential._asked(outputs))
        structures = self.potential._checked(structures)
        if structures.pos.device != self.potential.device:
            raise DeviceError(
                f"structures must be on the device of the potential, {self.potential.device}, got "
                f"{structures.pos.device}. Move them."
            )
        with torch.cuda.device(structures.pos.device) if structures.pos.is_cuda else nullcontext():
            return self._replayed(structures, asked)

    def _replayed(self, structures: Structures, asked: tuple[str, ...]) -> Results:
        about = (len(structures.z), structures.num_graphs, structures.cell is None, asked, self.potential.device)
        last, edges = self._last, structures.edge_index.shape[1]
        if last is None or last.about != about or last.padded.edge_index.shape[1] < edges:
            last = self._last = self._recording(structures, asked, about)
        else:
            fill(last.padded, structures)
            last.replay()
        rows = {name: len(structures.z) if name in BY_ATOM else structures.num_graphs for name in last.results}
        return {name: value[: rows[name]].clone() for name, value in last.results.items()}

    def _recording(self, structures: Structures, asked: tuple[str, ...], about: tuple[object, ...]) -> _Recording:
        self._last = None  # its memory goes before more is taken
        padded = with_ghosts(structures, self.potential.cutoff, self.potential.species[0])

        def call() -> Results:
            results = self.potential(padded, asked, create_graph=False)
            return {name: value.detach() for name, value in results.items()}

        try:
            results, replay = record(call)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "captur" not in str(error):
                raise
            raise ConfigError(
                "network must compute without waiting for the device to be recorded, got an operator that waits: "
                f"{' '.join(str(error).split())[:200]}. Call the potential itself."
            ) from error
        replay()
        return _Recording(about, padded, results, replay)


def with_ghosts(structures: Structures, cutoff: float, species: int) -> Structures:
    """A copy padded with edges and with a structure of two atoms, of the species of the first atom or as given."""
    atoms, edges = len(structures.z), structures.edge_index.shape[1]
    room = STEP * math.ceil(max(1, ROOM * edges) / STEP)
    ends = structures.pos.new_zeros(GHOSTS, 3)
    ends[1, 2] = APART * cutoff
    assert structures.batch is not None
    padded = Structures(
        torch.cat([structures.z, structures.z.new_full((GHOSTS,), int(structures.z[0]) if atoms else species)]),
        torch.cat([structures.pos.detach(), ends]),
        structures.edge_index.new_empty(2, room),
        torch.cat([structures.batch, structures.batch.new_full((GHOSTS,), structures.num_graphs)]),
        structures.num_graphs + 1,
    )
    if structures.cell is not None and structures.shifts is not None:
        around = 10 * cutoff * torch.eye(3, dtype=structures.cell.dtype, device=structures.cell.device)
        shifts = structures.shifts.new_zeros(room, 3)
        padded = padded._replace(cell=torch.cat([structures.cell.detach(), around[None]]), shifts=shifts)
    fill(padded, structures)
    return padded


def fill(padded: Structures, structures: Structures) -> None:
    """Put structures into the memory of padded ones with as many atoms and at least as many edges."""
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
