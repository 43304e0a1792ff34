"""The calculator against ASE's own differences, skins against none, batches against single structures."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

from eqlayers.errors import ConfigError, DataError, DTypeError, IndexRangeError, OutOfMemoryError
from eqlayers.integrations.ase import Calculator, as_potential, predict
from eqlayers.models import Potential, save_potential
from eqlayers.models.structures import NeighborLists
from eqlayers.testing import ToyNetwork

SHIFTS = {1: -13.6, 8: -432.0, 29: -5.0}
EPS = torch.finfo(torch.float64).eps
ROUNDING = 1000 * EPS  # of a thousand operations, times the size of the compared values


@pytest.fixture(scope="module")
def potential() -> Potential:
    return Potential(ToyNetwork(3, cutoff=3.5), [1, 8, 29], SHIFTS, {1: 0.5, 8: 2.0, 29: 1.5}).double().eval()


def water() -> Atoms:
    atoms = molecule("H2O")
    atoms.rattle(0.05, seed=1)
    return atoms


def crystal() -> Atoms:
    """Two species in a small cell without a right angle: atoms are neighbours of their own images."""
    atoms = bulk("Cu") * (2, 1, 1)
    atoms.numbers[1] = 8
    atoms.set_cell(atoms.cell @ np.array([[1.0, 0.05, 0.0], [0.0, 0.97, 0.02], [0.03, 0.0, 1.02]]), scale_atoms=True)
    atoms.rattle(0.1, seed=2)
    return atoms


def slab(vacuum: float | None = 6.0) -> Atoms:
    atoms = fcc111("Cu", (1, 2, 2), vacuum=vacuum, orthogonal=True)
    atoms.rattle(0.1, seed=3)
    return atoms


STRUCTURES = {"open": water, "periodic": crystal, "slab": slab, "slab without a cell": lambda: slab(None)}


@pytest.fixture(params=STRUCTURES, ids=str)
def atoms(request: pytest.FixtureRequest, potential: Potential) -> Atoms:
    made = STRUCTURES[request.param]()
    made.calc = Calculator(potential)
    return made


def test_forces_are_slopes_of_the_energy(atoms: Atoms) -> None:
    """Central differences with a step of 1e-5: an error of its square times third derivatives below 1e4."""
    assert np.abs(atoms.get_forces()).max() > 0.1
    np.testing.assert_allclose(atoms.get_forces(), calculate_numerical_forces(atoms, eps=1e-5), atol=1e-6, rtol=0)


@pytest.mark.parametrize("make", [crystal, slab])
def test_stress_is_that_of_ase(potential: Potential, make: Any) -> None:
    made = make()
    made.calc = Calculator(potential)
    assert np.abs(made.get_stress()).max() > 1e-3
    numerical = calculate_numerical_stress(made, eps=1e-5)
    np.testing.assert_allclose(made.get_stress(), numerical, atol=1e-8, rtol=0)


def test_energies_add_up(atoms: Atoms) -> None:
    total = atoms.get_potential_energy()
    assert atoms.get_potential_energies().sum() == pytest.approx(total, rel=4 * EPS * len(atoms))
    assert atoms.get_potential_energy(force_consistent=True) == total


def test_an_image_is_a_neighbor(potential: Potential) -> None:
    """A crystal of one atom has the energy of an atom in a supercell."""
    one = bulk("Cu")
    many = one * (3, 2, 2)
    results = list(predict(potential, [one, many]))
    assert len(NeighborLists(potential.cutoff)(one)[0][0]) == 12
    assert results[1]["energy"] == pytest.approx(12 * results[0]["energy"], rel=ROUNDING)
    np.testing.assert_allclose(results[1]["stress"], results[0]["stress"], atol=ROUNDING, rtol=0)


def test_structures_without_stress_say_so(potential: Potential) -> None:
    for made in (water(), slab(None)):
        made.calc = Calculator(potential)
        with pytest.raises(PropertyNotImplementedError, match="stress must"):
            made.get_stress()
        assert "stress" not in made.calc.results


def test_only_what_is_asked_for_is_computed(potential: Potential) -> None:
    made = crystal()
    made.calc = Calculator(potential)
    energy = made.get_potential_energy()
    assert sorted(made.calc.results) == ["energies", "energy", "free_energy"]
    made.get_forces()
    assert sorted(made.calc.results) == ["energies", "energy", "forces", "free_energy", "stress"]
    assert made.get_potential_energy() == pytest.approx(energy, rel=4 * EPS)


@pytest.mark.parametrize("make", [water, crystal, slab])
def test_a_skin_changes_no_number(potential: Potential, make: Any) -> None:
    """Over steps of half an Angstrom in all, with a change of the cell in between."""
    with_skin, without = Calculator(potential, skin=0.4), Calculator(potential, skin=0)
    made, generator = make(), np.random.default_rng(0)
    for step in range(12):
        made.positions += generator.normal(scale=0.03, size=made.positions.shape)
        if step == 8 and made.pbc.any():
            made.set_cell(made.cell * 1.01, scale_atoms=True)
        if step == 10 and made.pbc.any():
            made.wrap()
        for name in ("energy", "forces"):
            mine, other = (calc.get_property(name, made) for calc in (with_skin, without))
            np.testing.assert_allclose(mine, other, atol=ROUNDING * 10, rtol=ROUNDING)
    assert without.neighbors.built > with_skin.neighbors.built > 1


def test_float32_is_near_and_a_shift_of_place_costs_nothing(potential: Potential) -> None:
    made = crystal()
    made.calc = Calculator(potential)
    low = Calculator(potential, dtype=torch.float32)
    assert (low.potential.dtype, potential.dtype) == (torch.float32, torch.float64)
    bound = 1000 * torch.finfo(torch.float32).eps
    np.testing.assert_allclose(low.get_forces(made), made.get_forces(), atol=bound, rtol=0)
    far = made.copy()
    far.positions += 4000.0
    np.testing.assert_allclose(low.get_forces(far), made.get_forces(), atol=bound, rtol=0)
    assert low.get_forces(far).dtype == np.float64


def test_batches_give_what_single_structures_give(potential: Potential) -> None:
    structures = [water(), crystal(), slab(), Atoms("H"), slab(None)]
    for size in (1, 2, 5, 9):
        results = list(predict(potential, iter(structures), batch_size=size))
        assert len(results) == len(structures)
        for result, made in zip(results, structures, strict=True):
            made.calc = Calculator(potential)
            made.get_forces()
            assert sorted(result) == sorted(made.calc.results)
            for name, value in made.calc.results.items():
                np.testing.assert_allclose(result[name], value, atol=ROUNDING * 10, rtol=ROUNDING)


def test_an_atom_alone_has_its_shift(potential: Potential) -> None:
    (result,) = predict(potential, [Atoms("O")])
    assert result["energy"] == -432.0
    assert result["forces"].tolist() == [[0.0, 0.0, 0.0]]


def test_results_are_of_the_last_atoms(potential: Potential) -> None:
    calculator = Calculator(potential)
    calculator.calculate(water(), ["forces"])
    calculator.calculate(molecule("H2O"), ["energy"])  # past ASE's comparison of atoms
    assert set(calculator.results) == {"energy", "free_energy", "energies"}


def test_forces_can_be_had_in_inference_mode(potential: Potential) -> None:
    atoms, expected = water(), water()
    atoms.calc, expected.calc = Calculator(potential), Calculator(potential)
    with torch.inference_mode():
        forces, (result,) = atoms.get_forces(), predict(potential, [atoms])
    assert np.array_equal(forces, expected.get_forces())
    assert np.array_equal(result["forces"], forces)
    atoms.rattle(0.01)  # with the neighbours that were found there
    assert atoms.get_forces().any()


def test_a_path_does_as_well(potential: Potential, tmp_path: Path) -> None:
    save_potential(potential, tmp_path / "a.pt")
    calc = Calculator(tmp_path / "a.pt")
    assert calc.get_potential_energy(water()) == Calculator(potential).get_potential_energy(water())
    assert as_potential(potential) is potential


def test_the_potential_of_a_training_stays_in_training(potential: Potential) -> None:
    trained = Potential(ToyNetwork(3), [1, 8, 29]).train()
    calc = Calculator(trained)
    calc.get_forces(water())
    assert trained.training
    assert not calc.potential.training


def change(make: Any, **parts: Any) -> Atoms:
    made = make()
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def flat() -> Atoms:
    return Atoms("Cu", cell=[[2, 0, 0], [0, 2, 0], [2, 2, 0]], pbc=True)


BAD = [
    (Atoms(), ConfigError, "atoms must be at least one atom, got none"),
    (molecule("CH4"), IndexRangeError, "must be of the model's species H, O, Cu, got also C. Use a"),
    (Atoms("H2"), DataError, "atoms must be at distinct positions, got 0 and 1 at the same one"),
    (Atoms("H2", [[0, 0, 0], [2, 0, 0]], cell=[2, 9, 9], pbc=True), DataError, "got 0 and 1 at the same one"),
    (flat(), DataError, "cell of atoms must have a volume"),
    (Atoms("Cu", pbc=True), DataError, r"have a volume, .* got .* Set the cell, or atoms\.pbc = F"),
    (Atoms("Cu", cell=[2, 0, 2], pbc=[True, True, False]), DataError, "cell of atoms must have a volume"),
    (Atoms("H", [[0, 0, np.nan]]), DataError, "positions of atoms must be finite, got NaN"),
    (Atoms("H", cell=[1, 1, np.inf], pbc=True), DataError, "cell of atoms must be finite"),
]


@pytest.mark.parametrize(("atoms", "error", "message"), BAD)
def test_atoms_that_cannot_be(potential: Potential, atoms: Atoms, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Calculator(potential).calculate(atoms)
    with pytest.raises(error, match=r"structures\[1\] must"):
        list(predict(potential, [water(), atoms]))


@pytest.mark.kernels
def test_a_compiled_potential_gives_the_same(potential: Potential) -> None:
    plain, compiled = Calculator(potential), Calculator(copy.deepcopy(potential), compile=True)
    assert compiled.potential.is_compiled
    assert not plain.potential.is_compiled
    for atoms in (crystal(), water()):
        plain.calculate(atoms, ["forces"])
        compiled.calculate(atoms, ["forces"])
        assert plain.results.keys() == compiled.results.keys()
        for name, values in plain.results.items():
            np.testing.assert_allclose(compiled.results[name], values, rtol=ROUNDING, atol=ROUNDING)


def test_arguments_that_cannot_be(potential: Potential) -> None:
    with pytest.raises(ConfigError, match="potential must"):
        Calculator(potential.network)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"skin must be a finite number of at least 0 of Angstrom, got -0\.1"):
        Calculator(potential, skin=-0.1)
    with pytest.raises(DTypeError, match="dtype must"):
        Calculator(potential, dtype=torch.int64)
    with pytest.raises(ConfigError, match="structures must"):
        list(predict(potential, 5))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"structures\[0\] must"):
        list(predict(potential, ["water"]))  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="batch_size must be an integer, at least 1, got 0"):
        list(predict(potential, [water()], batch_size=0))


def test_structures_that_do_not_fit_into_memory(potential: Potential, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the allocator of CPUs, in its own words; other failures stay as they are."""
    said = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: 9 bytes"
    for text, kind in ((said, OutOfMemoryError), ("shapes differ", RuntimeError)):

        def fail(*arguments: Any, text: str = text, **named: Any) -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(Potential, "forward", fail)
        words = r"2 structures of 6 atoms and 12 neighbours must fit .* Take fewer structures at once"
        with pytest.raises(kind, match=words if kind is OutOfMemoryError else text):
            list(predict(potential, [molecule("H2O")] * 2))
