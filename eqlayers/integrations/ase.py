"""Potentials in ASE: a calculator, and energies and forces of many structures at once."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import memory
from ..checks import check_device, check_dtype, check_flag, check_integer, check_items, check_type
from ..errors import OutOfMemoryError, needs_packages
from ..keywords import named_arguments, parameters, refuse_others
from ..models import Potential, load_potential
from ..models.atoms import NeighborLists, check_atoms, collate, has_volume

with needs_packages("eqlayers.integrations.ase", "train"):
    import vesin  # noqa: F401 its neighbour lists are asked for at the first structure
    from ase import Atoms
    from ase.calculators.calculator import Calculator as AseCalculator
    from ase.calculators.calculator import PropertyNotImplementedError, all_changes
    from ase.stress import full_3x3_to_voigt_6_stress

_ENERGIES = ("energy", "free_energy", "energies")


def as_potential(
    potential: Potential | str | os.PathLike[str], dtype: torch.dtype | None = None, device: Any = None
) -> Potential:
    """A potential in evaluation mode, of a dtype and on a device; the given one stays as it is.

    Args:
        potential: A potential, or a file of one; see :func:`eqlayers.models.load_potential`.
        dtype, device: None for those that it has; files are put on the CPU.

    Raises:
        ConfigError, DataError, DTypeError, DeviceError: A file, dtype or device that cannot be used.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> trained = Potential(ToyNetwork(1), species=[29])
        >>> as_potential(trained, torch.float64).dtype, trained.dtype
        (torch.float64, torch.float32)
    """
    if isinstance(potential, (str, os.PathLike)):
        return load_potential(os.fspath(potential), dtype, "cpu" if device is None else device)
    check_type("potential", potential, Potential, "a Potential or the path of one", "Save it with save_potential.")
    kind = potential.dtype if dtype is None else check_dtype("dtype", dtype)
    place = potential.shifts.device if device is None else check_device("device", device)
    if not potential.training and kind == potential.dtype and place == potential.shifts.device:
        return potential
    return copy.deepcopy(potential).to(device=place, dtype=kind).eval()


@named_arguments
class Calculator(AseCalculator):
    """Energies, forces and stress of a potential, for ASE's dynamics, optimizers and all else that takes a calculator.

    Open, periodic and partly periodic structures. Energy, energies and forces are in eV and eV/Angstrom; stress is that
    of ASE, ``[6]`` in eV/Angstrom^3 in Voigt's order xx, yy, zz, yz, xz, xy, positive where the structure pulls
    inwards. Structures without a period, or without three lattice vectors, have no stress. Of a network with these
    properties, ``results`` have 'dipole' ``[3]`` in e Angstrom and 'polarizability' ``[3, 3]`` in Angstrom^3 as well.

    Args:
        potential_or_path: A potential, or a file of one.
        dtype: Of the network: float64 for vibrations and tight relaxations; None for that of the potential.
        device: None for that of the potential; files are put on the CPU.
        skin: Angstrom by which neighbour lists reach farther. They are made again once an atom moved by half of it, or
            the cell changed; edges beyond the cutoff are left out of every call, so results do not depend on it.
        keep_memory: Whether the process is to keep memory that is freed, see :func:`eqlayers.keep_memory`.
        **options: Of ASE's calculators, such as ``directory``.

    Raises:
        ArgumentError: An option that neither this class nor ASE's has.
        ConfigError, DataError, DTypeError, DeviceError: A file, dtype, device or skin that cannot be used.
        IndexRangeError: Atoms of a species that the potential does not know.

    Example:
        >>> from ase.build import bulk
        >>> from eqlayers.testing import ToyNetwork
        >>> atoms = bulk("Cu", cubic=True)
        >>> atoms.calc = Calculator(Potential(ToyNetwork(1), species=[29]), dtype=torch.float64)
        >>> atoms.get_forces().shape, atoms.get_stress().shape, atoms.get_potential_energies().shape
        ((4, 3), (6,), (4,))
    """

    implemented_properties = [*_ENERGIES, "forces", "stress"]  # noqa: RUF012 as ASE has it
    name = "eqlayers"

    def __init__(
        self,
        potential_or_path: Potential | str | os.PathLike[str],
        dtype: torch.dtype | None = None,
        device: Any = None,
        skin: float = 0.3,
        keep_memory: bool = True,
        **options: Any,
    ) -> None:
        refuse_others(type(self), options, (p.name for p in parameters(AseCalculator)))
        super().__init__(**options)
        self.potential = as_potential(potential_or_path, dtype, device)
        if check_flag("keep_memory", keep_memory):
            memory.keep_memory()
        self.neighbors = NeighborLists(self.potential.cutoff, skin)
        energies = type(self).implemented_properties if "energy" in self.potential.properties else []
        self.implemented_properties = [*energies, *self.potential.split.tensors]

    def calculate(
        self, atoms: Atoms | None = None, properties: Sequence[str] = ("energy",), system_changes: Any = all_changes
    ) -> None:
        """Compute what is asked for; with a derivative come all, as they share nearly all work."""
        super().calculate(atoms, properties, system_changes)
        checked = check_atoms(self.atoms, self.potential.species)
        if "stress" in properties and not has_volume(checked):
            raise PropertyNotImplementedError(
                f"stress must be of a periodic structure with three lattice vectors, got pbc {checked.pbc.tolist()} "
                f"and cell {checked.cell.array.tolist()}. Set both, or do not ask for it."
            )
        derivatives = not {"forces", "stress"}.isdisjoint(properties)
        # in place of all results: this may be called directly, with other atoms and fewer properties than before
        with torch.inference_mode(False):  # in which forces cannot be had
            self.results = _evaluate(self.potential, [checked], [self.neighbors(checked)], derivatives)[0]

    def get_hessian(self, atoms: Atoms, chunk_size: int | None = None) -> NDArray[np.float64]:
        """Second derivatives of the energy by positions, as ``ase.vibrations.VibrationsData`` takes them.

        Args:
            atoms: One structure; in a crystal, derivatives count all images of an atom as one.
            chunk_size: Rows at once, of 3 A; see :meth:`eqlayers.models.Potential.hessian`.

        Returns:
            ``[A, 3, A, 3]`` eV/Angstrom^2.

        Raises:
            ConfigError, DataError, IndexRangeError: A structure that cannot be used.

        Example:
            >>> from ase.build import molecule
            >>> from eqlayers.testing import ToyNetwork
            >>> calculator = Calculator(Potential(ToyNetwork(2), species=[1, 8]), dtype=torch.float64)
            >>> calculator.get_hessian(molecule("H2O")).shape
            (3, 3, 3, 3)
        """
        checked = check_atoms(atoms, self.potential.species)
        found = self.potential.hessian(collate(self.potential, [checked], [self.neighbors(checked)]), chunk_size)
        return np.asarray(found.cpu())


def predict(potential: Potential, structures: Iterable[Atoms], batch_size: int = 32) -> Iterator[dict[str, Any]]:
    """Energies, forces and stress of many structures, some at once.

    Args:
        potential: A potential; see :func:`as_potential` for files, other dtypes and devices.
        structures: Atoms, in a list or as they are read.
        batch_size: Structures at once.

    Yields:
        For each structure in its order what :class:`Calculator` calls its results: 'energy' and 'free_energy' (float),
        'energies' ``[A]``, 'forces' ``[A, 3]``, and 'stress' ``[6]`` where there is one, and 'dipole' and
        'polarizability' of networks with these properties, as arrays in float64.

    Raises:
        ConfigError, DataError, IndexRangeError: A structure that cannot be used; the message has its number.

    Example:
        >>> from ase.build import molecule
        >>> from eqlayers.testing import ToyNetwork
        >>> potential = Potential(ToyNetwork(2), species=[1, 8])
        >>> [result["forces"].shape for result in predict(potential, [molecule("H2O"), molecule("H2")])]
        [(3, 3), (2, 3)]
    """
    potential, size = as_potential(potential), check_integer("batch_size", batch_size, 1)
    if not isinstance(structures, Iterator):
        structures = check_items("structures", structures, "a list of ase.Atoms", "Put a single one into a list.")
    numbered, start = iter(structures), 0
    while batch := list(islice(numbered, size)):
        names = [f"structures[{start + number}]" for number in range(len(batch))]
        for atoms, name in zip(batch, names, strict=True):
            check_atoms(atoms, potential.species, name)
        lists = NeighborLists(potential.cutoff)
        with torch.inference_mode(False):  # in which forces cannot be had
            found = _evaluate(potential, batch, [lists(*named) for named in zip(batch, names, strict=True)])
        yield from found
        start += len(batch)


def _evaluate(
    potential: Potential,
    structures: Sequence[Atoms],
    neighbors: Sequence[tuple[Tensor, Tensor]],
    derivatives: bool = True,
) -> list[dict[str, Any]]:
    """What ASE calls results, of every structure."""
    has_energy, tensors = "energy" in potential.properties, potential.split.tensors
    derivatives = derivatives and has_energy
    energies = ["energy", "energies", *(["forces", "virials"] if derivatives else [])] if has_energy else []
    outputs = [*energies, *tensors]
    try:
        with torch.set_grad_enabled(derivatives):
            found = potential(collate(potential, structures, neighbors), outputs, create_graph=False)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "DefaultCPUAllocator" not in str(error):
            raise
        count, pairs = sum(map(len, structures)), sum(len(shifts) for _, shifts in neighbors)
        raise OutOfMemoryError(
            f"{len(structures)} structures of {count:,} atoms and {pairs:,} neighbours must fit the memory of "
            f"{potential.shifts.device}, got {' '.join(str(error).split())[:200] or 'none left'}. Take fewer "
            "structures at once (batch_size, --batch-size), float32, or a device with more memory."
        ) from error
    values = {name: value.detach().double().cpu() for name, value in found.items()}
    sizes = [len(atoms) for atoms in structures]
    parts = {name: values[name].split(sizes) for name in ("energies", "forces") if name in values}
    results = []
    for number, atoms in enumerate(structures):
        result: dict[str, Any] = {name: values[name][number].numpy().copy() for name in tensors}
        if has_energy:
            result |= dict.fromkeys(("energy", "free_energy"), values["energy"][number].item())
        result |= {name: part[number].numpy().copy() for name, part in parts.items()}
        if derivatives and has_volume(atoms):
            stress = -values["virials"][number].numpy() / atoms.get_volume()
            result["stress"] = full_3x3_to_voigt_6_stress(stress)
        results.append(result)
    return results
