"""Potentials in ASE: a calculator, and batched predictions for many structures."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import memory
from ..core.checks import check_device, check_dtype, check_flag, check_integer, check_items, check_type
from ..core.errors import ConfigError, OutOfMemoryError, needs_packages
from ..hints.names import named_arguments, parameters, refuse_others
from ..models import Committee, Potential, load_committee, load_potential
from ..models.committee import DEVIATION, committee_files, together
from ..models.molecule import MoleculeProperty
from ..models.saving import Classes
from ..models.structures import NeighborLists, check_atoms, collate, has_volume
from ..native import NativePotential, as_native

with needs_packages("eqlayers.integrations.ase", "train"):
    import vesin  # noqa: F401 needed at the first structure
    from ase import Atoms
    from ase.calculators.calculator import Calculator as AseCalculator
    from ase.calculators.calculator import PropertyNotImplementedError, all_changes
    from ase.stress import full_3x3_to_voigt_6_stress

_ENERGIES = ("energy", "free_energy", "energies")
#: Results of a committee for which deviations and values of members are given.
_DEVIATING = ("energy", "energies", "forces", "stress")
_MEMBERS = "{}_members"
#: A potential or committee, or its files.
Source = Potential | Committee | NativePotential | str | os.PathLike[str] | Sequence[Any]


def as_potential(
    potential: Source, dtype: torch.dtype | None = None, device: Any = None, classes: Classes | None = None
) -> Potential | Committee:
    """Load or copy a potential or committee in evaluation mode, with a dtype and device; the argument is not changed.

    Args:
        potential: A potential, a committee, or a file of a potential (see :func:`eqlayers.models.load_potential`); for
            a committee also a list of potentials or of files, a pattern of files, or the folder that
            ``eqlayers fit --committee`` wrote; or the file of a native program, such as ``water.so``.
        dtype, device: None to keep the potential's; files are loaded on the CPU.
        classes: Networks of your own that files may name; see :func:`eqlayers.models.load_potential`.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> trained = Potential(ToyNetwork(1), species=[29])
        >>> as_potential(trained, torch.float64).dtype, trained.dtype
        (torch.float64, torch.float32)
    """
    target: Any = "cpu" if device is None else device
    if isinstance(potential, (str, os.PathLike)):
        if Path(potential).suffix == ".so":
            return _as_it_is(NativePotential(potential), dtype, device)
        single = committee_files(potential) == [Path(potential)]
        return (load_potential if single else load_committee)(os.fspath(potential), dtype, target, classes)
    result: Any = potential
    if isinstance(result, (list, tuple)):
        if not any(isinstance(item, torch.nn.Module) for item in result):
            return load_committee(result, dtype, target, classes)
        result = Committee(result)
    what = "a Potential or the path of one, or a list of several"
    check_type("potential", result, (Potential, Committee, NativePotential), what, "Save it with save_potential.")
    if isinstance(result, NativePotential):
        return _as_it_is(result, dtype, device)
    dtype = result.dtype if dtype is None else check_dtype("dtype", dtype)
    target = result.device if device is None else check_device("device", device)
    training = any(member.training for member in (result.members if isinstance(result, Committee) else [result]))
    if not training and dtype == result.dtype and target == result.device:
        return result
    return copy.deepcopy(result).to(device=target, dtype=dtype).eval()


def _as_it_is(program: NativePotential, dtype: torch.dtype | None, device: Any) -> Potential:
    """A native program, which is called like a potential; ConfigError for another dtype or device than its own."""
    asked = {"dtype": dtype, "device": None if device is None else torch.device(device)}
    for name, value in asked.items():
        if value is not None and value != getattr(program, name):
            its = getattr(program, name)
            raise ConfigError(f"{name} must be {its} for {program.path}, got {value}. Deploy the potential with it.")
    return cast("Potential", program)


@named_arguments
class Calculator(AseCalculator):
    """ASE calculator of a potential or a committee: energies, forces and stress.

    Structures may be open, periodic or partly periodic. Energy, energies and forces are in eV and eV/Angstrom; stress
    is ASE's, ``[6]`` in eV/Angstrom^3 in Voigt's order xx, yy, zz, yz, xz, xy, positive where the structure pulls
    inwards. Structures without periodic axes, or without three lattice vectors, have no stress. For networks with these
    properties, ``results`` have 'dipole' ``[3]`` in e Angstrom and 'polarizability' ``[3, 3]`` in Angstrom^3 as well.

    Several potentials form a committee: results are means over its members, and ``results`` also have, in the same
    units,

    - 'energy_deviation' (float), 'energies_deviation' ``[A]``, 'forces_deviation' ``[A]`` and 'stress_deviation'
      (float): the standard deviations of :class:`eqlayers.models.Committee`, one number for a force or a stress;
      also 'dipole_deviation' and 'polarizability_deviation' for these properties;
    - 'energy_members' ``[M]``, 'forces_members' ``[M, A, 3]``, 'stress_members' ``[M, 6]``: the values of each member.

    Args:
        potential_or_path: A potential, a file of one, or a committee: a list of potentials or files, a pattern such as
            ``"runs/a*/potential.pt"``, the folder that ``eqlayers fit --committee`` wrote, or a
            :class:`eqlayers.models.Committee`. Or the file of a native program, see :func:`eqlayers.deploy`.
        dtype: Dtype of the network, such as float64 for vibrations and tight relaxations; None for the potential's.
        device: None for the device of the potential; files are loaded on the CPU.
        skin: Angstrom added to the cutoff of neighbour lists, which are recomputed when an atom has moved by half of it
            or the cell has changed. Edges beyond the cutoff are removed in every call, so results do not depend on it.
        keep_memory: Whether the process keeps freed memory, see :func:`eqlayers.keep_memory`.
        compile: Whether to compile the potential, see :meth:`eqlayers.models.Potential.compile`, for hundreds of calls:
            a GPU replays recorded ones, ten times as fast for a small system.
        native: Whether to run the potential as a native program, for hundreds of calls on a CPU; compiled once, in
            seconds. See :func:`eqlayers.deploy`.
        classes: Networks of your own that files may name; see :func:`eqlayers.models.load_potential`.
        **options: Options of ASE's calculators, such as ``directory``.

    Raises:
        ArgumentError: An option is unknown to this class and to ASE's.
        ConfigError, DataError, DTypeError, DeviceError: A file, dtype, device or skin is invalid; a list is empty, or
            its members are incompatible; a network that cannot be a native program, and at the first call, one that
            cannot be compiled.
        IndexRangeError: Atoms have a species that the potential does not have.

    Example:
        >>> from ase.build import bulk
        >>> from eqlayers.testing import ToyNetwork
        >>> atoms = bulk("Cu", cubic=True)
        >>> atoms.calc = Calculator(Potential(ToyNetwork(1), species=[29]), dtype=torch.float64)
        >>> atoms.get_forces().shape, atoms.get_stress().shape, atoms.get_potential_energies().shape
        ((4, 3), (6,), (4,))
        >>> members = [Potential(ToyNetwork(1, seed=seed), species=[29]) for seed in range(3)]
        >>> atoms.calc = Calculator(members)
        >>> atoms.get_forces().shape, atoms.calc.results["forces_deviation"].shape
        ((4, 3), (4,))
    """

    implemented_properties = [*_ENERGIES, "forces", "stress"]  # noqa: RUF012 as ASE has it
    name = "eqlayers"

    def __init__(
        self,
        potential_or_path: Source,
        dtype: torch.dtype | None = None,
        device: Any = None,
        skin: float = 0.3,
        keep_memory: bool = True,
        compile: bool = False,
        native: bool = False,
        classes: Classes | None = None,
        **options: Any,
    ) -> None:
        refuse_others(type(self), options, (p.name for p in parameters(AseCalculator)))
        super().__init__(**options)
        self.potential = as_potential(potential_or_path, dtype, device, classes)
        if check_flag("keep_memory", keep_memory):
            memory.keep_memory()
        if check_flag("compile", compile):
            self.potential.compile()
        if check_flag("native", native):
            self.potential = cast("Potential", as_native(cast("Potential", self.potential)))
        self.neighbors = NeighborLists(self.potential.cutoff, skin)
        energies = type(self).implemented_properties if "energy" in self.potential.properties else []
        tensors = self.potential.split.tensors
        self.implemented_properties = [*energies, *tensors]
        if isinstance(self.potential, Committee):
            deviating = [*(_DEVIATING if energies else ()), *tensors]
            self.implemented_properties += [DEVIATION.format(name) for name in deviating]
            self.implemented_properties += [_MEMBERS.format(name) for name in deviating if name != "energies"]

    def calculate(
        self, atoms: Atoms | None = None, properties: Sequence[str] = ("energy",), system_changes: Any = all_changes
    ) -> None:
        """Compute properties; a request for one derivative computes all, which share nearly all work."""
        super().calculate(atoms, properties, system_changes)
        checked = check_atoms(self.atoms, self.potential.species)
        requested = {name.partition("_deviation")[0].partition("_members")[0] for name in properties}
        if "stress" in requested and not has_volume(checked):
            raise PropertyNotImplementedError(
                f"stress must be of a periodic structure with three lattice vectors, got pbc {checked.pbc.tolist()} "
                f"and cell {checked.cell.array.tolist()}. Set both, or do not request it."
            )
        derivatives = not {"forces", "stress"}.isdisjoint(requested)
        # all results are replaced: a direct call may have other atoms and fewer properties than before
        with torch.inference_mode(False):  # forces need autograd
            neighbors = [self.neighbors(checked)]
            self.results = _evaluate(self.potential, [checked], neighbors, derivatives)[0]

    def get_hessian(self, atoms: Atoms, chunk_size: int | None = None) -> NDArray[np.float64]:
        """Second derivatives of the energy by positions, for ``ase.vibrations.VibrationsData``.

        Args:
            atoms: One structure; in a crystal, all images of an atom move together.
            chunk_size: Number of the 3 A rows computed at once; see :meth:`eqlayers.models.Potential.hessian`.

        Returns:
            ``[A, 3, A, 3]`` eV/Angstrom^2.

        Raises:
            ConfigError, DataError, IndexRangeError: The structure is invalid.

        Example:
            >>> from ase.build import molecule
            >>> from eqlayers.testing import ToyNetwork
            >>> calculator = Calculator(Potential(ToyNetwork(2), species=[1, 8]), dtype=torch.float64)
            >>> calculator.get_hessian(molecule("H2O")).shape
            (3, 3, 3, 3)
        """
        checked = check_atoms(atoms, self.potential.species)
        hessian = self.potential.hessian(collate(self.potential, [checked], [self.neighbors(checked)]), chunk_size)
        return np.asarray(hessian.cpu())


def predict(
    potential: Source | MoleculeProperty, structures: Iterable[Atoms], batch_size: int = 32
) -> Iterator[dict[str, Any]]:
    """Predict energies, forces and stress of many structures, or a property of molecules, in batches.

    Args:
        potential: A potential or a committee; see :func:`as_potential` for files, other dtypes and devices. Or a
            property of molecules.
        structures: Atoms, as a list or iterator.
        batch_size: Number of structures in a batch.

    Yields:
        For each structure in order the results of :class:`Calculator`: 'energy' and 'free_energy' (float),
        'energies' ``[A]``, 'forces' ``[A, 3]``, and 'stress' ``[6]`` if it has a volume, and 'dipole' and
        'polarizability' of networks with these properties, as arrays in float64; for a committee also the deviations
        and the values of the members. Of a property its value (float), by its name.

    Raises:
        ConfigError, DataError, IndexRangeError: A structure is invalid; the message has its number.

    Example:
        >>> from ase.build import molecule
        >>> from eqlayers.testing import ToyNetwork
        >>> potential = Potential(ToyNetwork(2), species=[1, 8])
        >>> [result["forces"].shape for result in predict(potential, [molecule("H2O"), molecule("H2")])]
        [(3, 3), (2, 3)]
    """
    size = check_integer("batch_size", batch_size, 1)
    if not isinstance(potential, MoleculeProperty):
        potential = as_potential(potential)
    if not isinstance(structures, Iterator):
        structures = check_items("structures", structures, "a list of ase.Atoms", "Put a single one into a list.")
    numbered, start = iter(structures), 0
    while batch := list(islice(numbered, size)):
        names = [f"structures[{start + number}]" for number in range(len(batch))]
        for atoms, name in zip(batch, names, strict=True):
            check_atoms(atoms, potential.species, name)
        lists = NeighborLists(potential.cutoff)
        with torch.inference_mode(False):  # forces need autograd
            results = _evaluate(potential, batch, [lists(*named) for named in zip(batch, names, strict=True)])
        yield from results
        start += len(batch)


def _evaluate(
    potential: Potential | Committee | MoleculeProperty,
    structures: Sequence[Atoms],
    neighbors: Sequence[tuple[Tensor, Tensor]],
    derivatives: bool = True,
) -> list[dict[str, Any]]:
    """Compute the results of :class:`Calculator` for each structure of a batch."""
    if isinstance(potential, MoleculeProperty):
        with torch.no_grad():
            values = potential(collate(potential, structures, neighbors)).tolist()
        return [{potential.name: value} for value in values]
    has_energy, tensors = "energy" in potential.properties, potential.split.tensors
    derivatives = derivatives and has_energy
    energies = ["energy", "energies", *(["forces", "virials"] if derivatives else [])] if has_energy else []
    outputs = [*energies, *tensors]
    try:
        with torch.set_grad_enabled(derivatives):
            batch = collate(potential, structures, neighbors)
            if isinstance(potential, Committee):
                each = potential.each(batch, outputs, create_graph=False)
            else:
                each = [potential(batch, outputs, create_graph=False)]
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "DefaultCPUAllocator" not in str(error):
            raise
        count, pairs = sum(map(len, structures)), sum(len(shifts) for _, shifts in neighbors)
        raise OutOfMemoryError(
            f"{len(structures)} structures of {count:,} atoms and {pairs:,} neighbours must fit the memory of "
            f"{potential.device}, got {' '.join(str(error).split())[:200] or 'none left'}. Take fewer "
            "structures at once (batch_size, --batch-size), float32, or a device with more memory."
        ) from error
    exact = [{name: value.detach().double().cpu() for name, value in result.items()} for result in each]
    members = [_results(result, structures) for result in exact]
    if not isinstance(potential, Committee):
        return members[0]
    means = _results(together(exact), structures)
    for mean, each_result in zip(means, zip(*members, strict=True), strict=True):
        shared = (name for name in each_result[0] if name not in ("free_energy", "energies"))
        mean.update({_MEMBERS.format(name): np.stack([result[name] for result in each_result]) for name in shared})
    return means


def _results(values: dict[str, Tensor], structures: Sequence[Atoms]) -> list[dict[str, Any]]:
    """Split outputs of a batch, and their deviations, into results of each structure by ASE's names."""
    sizes = [len(atoms) for atoms in structures]
    of_atoms = [name for name in values if name.partition("_")[0] in ("energies", "forces")]
    rows: dict[str, Any] = values | {name: values[name].split(sizes) for name in of_atoms}
    results = []
    for number, atoms in enumerate(structures):
        single = {name: row[number] for name, row in rows.items()}
        result: dict[str, Any] = {name: t.numpy().copy() if t.ndim else t.item() for name, t in single.items()}
        virials, deviation = result.pop("virials", None), result.pop("virials_deviation", None)
        if virials is not None and has_volume(atoms):
            result["stress"] = full_3x3_to_voigt_6_stress(-virials / atoms.get_volume())
            if deviation is not None:
                result["stress_deviation"] = deviation / atoms.get_volume()
        if "energy" in result:
            result["free_energy"] = result["energy"]
        results.append(result)
    return results
