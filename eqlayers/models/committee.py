"""Committees: several potentials of the same structures, their mean, and how much they deviate from each other."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..atoms.elements import symbols_of
from ..core.checks import check_device, check_dtype, check_flag, check_items, check_optional, check_path, check_type
from ..core.errors import ConfigError
from ..core.files.read_write import few, read_json
from ..core.graph import Graph
from ..core.torch_internals import being_traced
from ..core.traces.trace import Refused
from ..layers.harmonics.module import EdgeVectors
from .compiled import Compiles
from .potential import Potential, check_volume, differentiated
from .properties import AtomicProperties
from .saving import Classes, read_potential, restored
from .structures import Structures

#: File that marks the folder of a committee; it holds the number of members.
MARK = "committee.json"
#: Name of a result -> name of its deviation.
DEVIATION = "{}_deviation"
Array = NDArray[np.float64]
_FEWEST = 3  # pairs that have a correlation


class Committee(Compiles):
    r"""Several potentials of the same structures: the mean of their results, and the deviation of each result.

    .. math:: \bar x = \frac{1}{M} \sum_m x_m, \qquad
              \delta_x = \sqrt{\frac{1}{M - 1} \sum_m \lVert x_m - \bar x \rVert^2}

    The deviation is one number for each energy, atom or structure: the norm is over the components of a force, a
    stress, a dipole moment or a polarizability, so rotations do not change the deviation. The mean of the forces is the
    slope of the mean of the energies.

    The members share the edges: the sorting of each distinct cutoff, and the vectors and harmonics where these agree.
    Members of the same architecture share their compiled kernels.

    Args:
        members: Two potentials or more, with the same species (in any order) and properties, of one dtype on one
            device. Cutoffs may differ; ``cutoff`` is the largest.

    Attributes:
        members: The potentials.
        species: Atomic numbers, in the order of the first member.
        cutoff: Angstrom.

    Raises:
        ConfigError: Fewer than two members, one that is no potential or occurs twice, or members that disagree.

    Source:
        Seung, Opper and Sompolinsky 1992, doi:10.1145/130385.130417; for forces, Zhang, Lin, Wang, Car and E 2019,
        doi:10.1103/PhysRevMaterials.3.023804.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> committee = Committee([Potential(ToyNetwork(1, seed=seed), species=[29]).eval() for seed in range(3)])
        >>> pos, pair = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 2.3]]), torch.tensor([[0, 1], [1, 0]])
        >>> results = committee(Structures(torch.tensor([29, 29]), pos, pair))
        >>> sorted(results), results["forces"].shape, results["forces_deviation"].shape
        (['energy', 'energy_deviation', 'forces', 'forces_deviation'], torch.Size([2, 3]), torch.Size([2]))
    """

    def __init__(self, members: Sequence[Potential]) -> None:
        super().__init__()
        fix = "Load files with load_committee(paths)."
        listed = check_items("members", members, "a list of potentials", fix)
        _check_number(len(listed))
        for number, member in enumerate(listed):
            check_type(f"members[{number}]", member, Potential, "a Potential", fix)
        if len({id(member) for member in listed}) < len(listed):
            raise ConfigError("members must be different potentials, got one of them twice. Pass each one once.")
        first = listed[0]
        for number, member in enumerate(listed):
            _agree(number, "the species", sorted(member.species), sorted(first.species), "Leave it out.")
            _agree(number, "the properties", member.properties, first.properties, "Leave it out.")
            _agree(number, "the dtype", member.dtype, first.dtype, "Convert it: potential.double().")
            _agree(number, "the device", member.device, first.device, "Move it: potential.to(device).")
        self.members = nn.ModuleList(listed)
        self.species: tuple[int, ...] = first.species
        self.cutoff = max(member.cutoff for member in listed)
        self.training = first.training

    @property
    def potentials(self) -> list[Potential]:
        """The members."""
        return list(self.members)  # type: ignore[arg-type]

    @property
    def first(self) -> Potential:
        """The first member, with which all agree in species, properties, dtype and device."""
        return self.members[0]  # type: ignore[return-value]

    @property
    def network(self) -> nn.Module:
        """The network of the first member."""
        return self.first.network

    @property
    def properties(self) -> tuple[str, ...]:
        """The predicted properties: 'energy', 'dipole', 'polarizability'."""
        return self.first.properties

    @property
    def split(self) -> AtomicProperties:
        """How the first member reads its network's numbers."""
        return self.first.split

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of positions, cells and forces."""
        return self.first.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.first.device

    def __len__(self) -> int:
        return len(self.members)

    def forward(
        self, structures: Structures, outputs: Iterable[str] | None = None, create_graph: bool | None = None
    ) -> dict[str, Tensor]:
        """Means and deviations.

        Args:
            structures: Atoms with neighbours no farther than the largest cutoff.
            outputs: As of :class:`Potential`.
            create_graph: As of :class:`Potential`; deviations can then be differentiated as well.

        Returns:
            The requested results by name, and each with its deviation: 'energy_deviation' ``[G]``, 'energies_deviation'
            ``[A]``, 'forces_deviation' ``[A]``, 'stress_deviation' ``[G]``, 'virials_deviation' ``[G]``,
            'dipole_deviation' ``[G]``, 'polarizability_deviation' ``[G]``, 'born_charges_deviation' ``[A]``, in the
            units of the results.

        Raises:
            ShapeError, DTypeError, IndexRangeError, ConfigError: As of :class:`Potential`.
        """
        return together(self.each(structures, outputs, create_graph))

    def each(
        self, structures: Structures, outputs: Iterable[str] | None = None, create_graph: bool | None = None
    ) -> list[dict[str, Tensor]]:
        """The results of every member, in their order.

        Args:
            structures, outputs, create_graph: As of ``forward``.

        Raises:
            ShapeError, DTypeError, IndexRangeError, ConfigError: As of :class:`Potential`.
        """
        asked, checked = self.first._requested(outputs), self.first._checked(structures)
        follow = self.training if create_graph is None else check_flag("create_graph", create_graph)
        if "stress" in asked:
            check_volume(checked)

        def results(committee: Committee, atoms: Structures) -> dict[str, Tensor]:
            each = differentiated(atoms, asked, follow, committee._predicted, len(self))
            return {f"{number} {name}": value for number, row in enumerate(each) for name, value in row.items()}

        kind = *asked, follow, *[member.subtract_isolated for member in self.potentials]
        listed = self._by_trace(checked, kind, self.first._check_values, results)
        rows: list[dict[str, Tensor]] = [{} for _ in range(len(self))]
        for key, value in listed.items():
            number, _, name = key.partition(" ")
            rows[int(number)][name] = value
        return rows

    def _predicted(self, structures: Structures) -> Iterator[dict[str, Tensor]]:
        """Energies and tensors of each member; edges are made once for members that need the same."""
        graphs: dict[tuple[Any, ...], tuple[Structures, Graph]] = {}
        vectors: dict[tuple[Any, ...], EdgeVectors] = {}
        for member in self.potentials:
            reach = member.cutoff, member.added
            if reach not in graphs:
                neighbors = self._within_cutoff(structures, member)
                graphs[reach] = neighbors, member._graph_of(neighbors)
            neighbors, graph = graphs[reach]
            key = reach, str(member.irreps_sh), member.geometry.backend
            if key not in vectors:
                vectors[key] = member._edges_of(neighbors, graph)
            yield member._from_edges(neighbors, graph, vectors[key])

    def _within_cutoff(self, structures: Structures, member: Potential) -> Structures:
        if member.cutoff != self.cutoff and being_traced():
            cutoffs = f"{member.cutoff:g} and {self.cutoff:g} Angstrom"
            raise Refused(f"compiled members must have one cutoff, got {cutoffs}. Leave one out, or do not compile.")
        return structures if member.cutoff == self.cutoff else within(structures, member.cutoff)

    def hessian(self, structures: Structures, chunk_size: int | None = None) -> Tensor:
        """The mean of the second derivatives of the energy of one structure; see :meth:`Potential.hessian`."""
        checked = self.first._checked(structures)
        hessians = [member.hessian(self._within_cutoff(checked, member), chunk_size) for member in self.potentials]
        return torch.stack(hessians).mean(0)

    def extra_repr(self) -> str:
        """Number of members, species and cutoff."""
        return f"{len(self)} members; species {symbols_of(self.species)}, cutoff {self.cutoff:g} A"


def _check_number(count: int) -> None:
    if count < 2:
        fix = "Pass the potential itself, or train more: eqlayers fit --committee 4." if count else "List its files."
        raise ConfigError(f"a committee must have two members or more, got {'one' if count else 'none'}. {fix}")


def _agree(number: int, what: str, mine: Any, first: Any, fix: str) -> None:
    if mine != first:
        raise ConfigError(
            f"{what} must be the same in all members of a committee, got {mine} in members[{number}], where members[0] "
            f"has {first}. {fix}"
        )


def together(results: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Means and deviations of the results of some potentials, ``[rows, ...]`` each."""
    statistics = {}
    for name in results[0]:
        values = torch.stack([result[name] for result in results])  # [M, rows, ...]
        statistics[name] = mean = values.mean(0)
        differences = (values - mean).transpose(0, 1).flatten(1)
        statistics[DEVIATION.format(name)] = torch.linalg.vector_norm(differences, dim=1) / (len(results) - 1) ** 0.5
    return statistics


def calibration(deviations: Array, errors: Array) -> tuple[float, float] | None:
    """Correlation of a committee's deviations with the sizes of errors `[N]`, and the ratio of both.

    Returns:
        The correlation of both, and how many times larger errors are, by root mean squares; None of fewer than three
        pairs, or where one of both is the same everywhere.

    Example:
        >>> calibration(np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.4, 0.6]))
        (1.0, 2.0)
    """
    if len(errors) < _FEWEST or not np.ptp(deviations) > 0 or not np.ptp(errors) > 0:
        return None
    larger = np.sqrt(np.square(errors).mean() / np.square(deviations).mean())
    return round(float(np.corrcoef(deviations, errors)[0, 1]), 6), round(float(larger), 6)


def within(structures: Structures, cutoff: float) -> Structures:
    """The structures without edges that are longer than a cutoff, in Angstrom."""
    src, dst = structures.edge_index.long()
    with torch.no_grad():
        vectors = structures.pos[dst] - structures.pos[src]
        if structures.shifts is not None and structures.cell is not None:
            cells = structures.cell if structures.batch is None else structures.cell[structures.batch[src]]
            cells = cells.expand(len(src), 3, 3)
            vectors = vectors + (structures.shifts.to(cells.dtype)[:, None] @ cells)[:, 0]
        near = torch.linalg.vector_norm(vectors, dim=1) <= cutoff
    shifts = None if structures.shifts is None else structures.shifts[near]
    return structures._replace(edge_index=structures.edge_index[:, near], shifts=shifts)


# ---- files ----------------------------------------------------------------------------------------------------------


def committee_files(source: str | os.PathLike[str] | Iterable[Any]) -> list[Path]:
    """Files of one name: a file, a pattern such as ``runs/a*/potential.pt``, or a committee's folder; or of a list.

    Files of a list are in its order; files of a pattern or a folder are sorted.
    """
    what = "the path of a file, a pattern, or the folder of a committee"
    if not isinstance(source, (str, os.PathLike)):
        listed = check_items("potentials", source, f"{what}, or a list of these", "Pass ['a.pt', 'b.pt'].")
        return [file for name in listed for file in committee_files(name)]
    path = Path(check_path("a potential", source, what))
    if path.is_dir():
        return _of_folder(path)
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    matches = sorted(map(Path, glob.glob(str(path), recursive=True)), key=_in_order)
    if not matches:
        raise ConfigError(f"a pattern must match files of potentials, got none for {str(path)!r}. Correct it.")
    return matches


def _in_order(path: Path) -> list[str | int]:
    """Sort key of a path with numbers as integers, by which member-10 comes after member-2."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", str(path))]


def member_name(number: int) -> str:
    """Folder of a member, counted from 1."""
    return f"member-{number}"


def read_mark(folder: Path) -> dict[str, Any] | None:
    """The content of the mark in the folder of a committee; None for another folder."""
    if not (folder / MARK).is_file():
        return None
    fix = "Name the files of the members, or train again."
    content = read_json(folder / MARK, "the file of a committee", fix)
    if not isinstance(content, dict) or not isinstance(content.get("members"), int):
        raise ConfigError(f"{folder / MARK} must hold the number of members, got another content. {fix}")
    return content


def _of_folder(folder: Path) -> list[Path]:
    mark = read_mark(folder)
    if mark is None:
        inside = sorted(path.name for path in folder.glob("*.pt"))
        there = f"{few(inside)} in it" if inside else "no potential in it"
        raise ConfigError(
            f"a folder must be of a committee that `eqlayers fit --committee` wrote, got {folder} with {there}. Name a "
            "file, or several."
        )
    files = [folder / member_name(number) / "potential.pt" for number in range(1, mark["members"] + 1)]
    missing = [file.parent.name for file in files if not file.is_file()]
    if missing:
        raise ConfigError(
            f"a committee must be complete, got {folder}, where {len(missing)} of {len(files)} members lack a "
            f"potential.pt ({few(missing)}). Go on with `eqlayers fit ... --resume`, or name the files that are there."
        )
    return files


def load_committee(
    source: str | os.PathLike[str] | Iterable[Any],
    dtype: torch.dtype | None = None,
    device: Any = "cpu",
    classes: Classes | None = None,
) -> Committee:
    """A committee from files, in evaluation mode.

    Args:
        source: Files, a pattern or a folder; see :func:`committee_files`.
        dtype: Of the networks; the dtype of the files if None.
        device: Where to put them.
        classes: As of :func:`load_potential`.

    Raises:
        ConfigError: A file that is not there or is listed twice, fewer than two files, a class that is not allowed, or
            members that disagree in species, properties, dtype or units.
        DataError: A file that is damaged or holds no potential.
        DTypeError, DeviceError: No such dtype or device.

    Example:
        >>> import tempfile
        >>> from eqlayers.models import save_potential
        >>> from eqlayers.testing import ToyNetwork
        >>> folder = Path(tempfile.mkdtemp())
        >>> for seed in range(2):
        ...     save_potential(Potential(ToyNetwork(1, seed=seed), species=[29]), folder / f"{seed}.pt")
        >>> load_committee(f"{folder}/*.pt").extra_repr()
        '2 members; species Cu, cutoff 4 A'
    """
    check_optional(check_dtype, "dtype", dtype)
    device = check_device("device", device)
    files = committee_files(source)
    _check_number(len(files))
    if len({file.resolve() for file in files}) < len(files):
        raise ConfigError(f"members must be different files, got one of {few(list(map(str, files)))} twice. Drop it.")
    saved = [read_potential(file) for file in files]
    named = [each.facts.get("units") for each in saved]
    units = [None if unit is None else str(unit).removesuffix(", e") for unit in named]  # converted files lack ", e"
    if len(set(units) - {None}) > 1:
        listed = ", ".join(f"{unit or 'unknown'} of {file}" for unit, file in zip(units, files, strict=True))
        raise ConfigError(f"members must have the same units, got {listed}. Leave out the others.")
    return Committee([restored(file, each, dtype, device, classes) for file, each in zip(files, saved, strict=True)])
