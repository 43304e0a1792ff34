"""Statistics recover what was put in, from the training part alone, with given and missing labels; none is zero."""

import numpy as np
import pytest

from eqlayers.data.neighbors import structure_edges
from eqlayers.data.qm9 import TARGETS
from eqlayers.data.statistics import compute_statistics, lone_atoms, read_e0s, without_training
from eqlayers.data.structures import StructureArrays
from eqlayers.errors import DataError
from tests.each import refused

TRUE = {1: -13.5, 6: -1029.25, 8: -2042.75}
ENERGY, DIPOLE = TARGETS["U0"], TARGETS["mu"]


def some(num: int = 40, noise: float = 0.0, **replaced) -> StructureArrays:
    """Molecules of C, H and O; the last three are single atoms."""
    rng = np.random.default_rng(3)
    n_atoms = np.concatenate([rng.integers(2, 7, num - 3), [1, 1, 1]])
    z = rng.choice(list(TRUE), n_atoms.sum())
    z[-3:] = list(TRUE)
    atoms = np.repeat(np.arange(num), n_atoms)
    energy = np.bincount(atoms, weights=[TRUE[number] for number in z]) + noise * rng.normal(size=num)
    labels = {"pos": rng.normal(scale=2, size=(len(z), 3)), "energy": energy, "forces": rng.normal(size=(len(z), 3))}
    return StructureArrays.of("some", n_atoms, z, **(labels | replaced))


def statistics(structures, train=None, e0s="fit"):
    train = np.arange(len(structures)) if train is None else train
    return compute_statistics(structures, structure_edges(structures, 3.0), train, e0s)


def test_the_fit_recovers_shifts():
    fitted = statistics(some())
    assert fitted.species == (1, 6, 8)
    assert fitted.shifts == pytest.approx(TRUE, rel=1e-12)
    assert fitted.residual_std < 1e-9
    assert fitted.unique
    assert fitted.labels == ("energy", "forces")


def test_scale_and_neighbours_are_of_the_training_part():
    structures, train = some(noise=0.5), np.arange(10)
    fitted, edges = statistics(structures, train), structure_edges(structures, 3.0)
    atoms = structures.n_atoms[:10].sum()
    assert fitted.scale == pytest.approx(np.sqrt((structures.forces[:atoms] ** 2).mean()), rel=1e-14)
    assert fitted.mean_neighbors == pytest.approx(edges.n_edges[:10].sum() / atoms, rel=1e-14)
    assert fitted.num_train == 10
    residual = structures.energy[:10] - structures.counts((1, 6, 8))[:10] @ np.array(list(fitted.shifts.values()))
    assert fitted.residual_std == pytest.approx(residual.std(), rel=1e-9)


def test_the_scale_without_forces():
    structures = some(noise=0.5, forces=np.full((len(some().z), 3), np.nan))
    fitted = statistics(structures)
    assert fitted.scale == fitted.residual_std > 0.1
    assert statistics(some(forces=structures.forces)).scale == 1.0  # only rounding is left


def test_missing_labels_are_left_out():
    clean, structures = some(noise=0.5), some(noise=0.5)
    structures.energy[::4] = np.nan
    structures.forces[: structures.n_atoms[0]] = np.nan
    fitted = statistics(structures)
    kept = np.flatnonzero(np.arange(40) % 4)
    assert fitted.shifts == pytest.approx(statistics(clean, kept).shifts, rel=1e-12)
    assert fitted.scale == pytest.approx(np.sqrt((clean.forces[clean.n_atoms[0] :] ** 2).mean()), rel=1e-14)
    structures.energy[:] = np.nan
    assert statistics(structures).shifts == dict.fromkeys(TRUE, 0.0)
    assert np.isnan(statistics(structures).residual_std)


def test_scales_of_tensors_are_of_an_atom():
    """A dipole of n atoms that point at random grows as the root of n; structures without the label do not count."""
    structures, rng = some(), np.random.default_rng(0)
    dipole = rng.normal(size=(40, 3)) * np.sqrt(structures.n_atoms)[:, None]
    dipole[::5] = np.nan
    fitted = statistics(some(dipole=dipole))
    known = ~np.isnan(dipole[:, 0])
    want = np.sqrt((np.square(dipole[known]).sum(1) / 3 / structures.n_atoms[known]).mean())
    assert fitted.tensor_scales == pytest.approx({"dipole": want}, rel=1e-14)
    assert want == pytest.approx(1.0, abs=0.2)


def test_other_energies_of_free_atoms():
    structures = some(noise=0.5)
    assert statistics(structures, e0s="none").shifts == dict.fromkeys(TRUE, 0.0)
    assert statistics(structures, e0s={"H": -13.0, 6: -1000.0, "8": -2000.0}).shifts == {1: -13, 6: -1000, 8: -2000}
    isolated = statistics(structures, np.arange(10), "isolated").shifts  # wherever the lone atoms are
    assert isolated == dict(zip(TRUE, structures.energy[-3:].tolist(), strict=True))
    assert np.flatnonzero(lone_atoms(structures)).tolist() == [37, 38, 39]
    with pytest.raises(DataError, match=r"e0s must give an energy to every species of some, .* got none for H, C, O"):
        statistics(structures, e0s={"Cu": -13.0})
    with pytest.raises(DataError, match=r"got none for H, C, O. Add them, or use e0s=\"fit\""):
        statistics(structures.take(np.arange(37)), e0s="isolated")


def test_lone_atoms_of_different_energies_are_named():
    """Two spins of one atom: no mean of them is an energy of an atom."""
    structures = some(noise=0.5)
    structures.z[-1] = structures.z[-2]
    with pytest.raises(DataError, match=r"lone atoms of a species must .*got .* for 2 of C in some"):
        statistics(structures, e0s="isolated")
    structures.energy[-1] = structures.energy[-2] + 5e-4
    assert statistics(structures, e0s="isolated").fitted == (8,)


def test_energies_of_some_free_atoms_stay_and_the_rest_is_fitted():
    """The fit is to the rest of the energies; without energies there is nothing to fit."""
    structures, train = some(noise=0.5), np.arange(30)
    energies = {1: TRUE[1] + 0.3, 6: TRUE[6]}
    result = statistics(structures, train, energies)
    counts = structures.take(train).counts((1, 6, 8))
    rest = structures.energy[:30] - counts[:, :2] @ list(energies.values())
    assert result.shifts == pytest.approx(
        energies | {8: (counts[:, 2] @ rest) / (counts[:, 2] @ counts[:, 2])}, rel=1e-12
    )
    assert (result.fitted, result.unique) == ((8,), True)
    assert statistics(structures).fitted == (1, 6, 8)
    assert statistics(structures, e0s="none").fitted == statistics(structures, e0s="isolated").fitted == ()
    part = structures.take(np.arange(39))  # without the free oxygen
    isolated = statistics(part, train, "isolated")
    assert {z: isolated.shifts[z] for z in (1, 6)} == dict(zip((1, 6), structures.energy[37:39].tolist(), strict=True))
    assert isolated.fitted == (8,)
    structures.energy[:30] = np.nan
    with pytest.raises(DataError, match=r"to some of them where the training part has energies .* got none for O"):
        statistics(structures, train, energies)


def test_lone_atoms_are_trained_on_where_something_can_be_learned():
    polarizability = np.full((40, 3, 3), np.nan)
    polarizability[[5, 38, 39]] = np.eye(3)
    structures = some(polarizability=polarizability)
    structures.energy[38] = np.nan
    assert np.flatnonzero(without_training(structures)).tolist() == [37, 39]


def test_one_composition_does_not_determine_shifts():
    water = StructureArrays.of("water", [3, 3], [8, 1, 1] * 2, np.arange(18.0).reshape(6, 3) / 3, energy=[-30.0, -30.0])
    fitted = statistics(water)
    assert not fitted.unique
    assert 2 * fitted.shifts[1] + fitted.shifts[8] == pytest.approx(-30.0)


@pytest.mark.parametrize(
    ("cell", "pbc", "alone"),
    [
        (np.diag([3.0, 3.0, 3.0]), False, True),
        (np.diag([3.0, 3.0, 3.0]), True, False),
        (np.diag([9.0, 9.0, 9.0]), True, True),
        (np.diag([9.0, 9.0, 7.0]), True, False),
        (np.diag([9.0, 9.0, 7.0]), [True, True, False], True),
        (np.diag([9.0, 0.0, 0.0]), [True, False, False], True),
        (np.array([[20.0, 0, 0], [20, 5, 0], [0, 0, 20]]), True, False),  # a skewed cell of short images
    ],
)
def test_free_atoms_may_be_in_a_large_box(cell, pbc, alone):
    periods = np.broadcast_to(pbc, 3)[None]
    arrays = StructureArrays.of("x", [1], [1], np.zeros((1, 3)), cell=cell[None], pbc=periods)
    assert lone_atoms(arrays).tolist() == [alone]


def test_structures_without_a_neighbour_are_refused():
    pair = StructureArrays.of("far", [2], [1, 1], [[0, 0, 0], [9.0, 0, 0]], energy=[-1.0])
    with pytest.raises(DataError, match="training part of far must have atoms within the cutoff of 4 Angstrom of each"):
        compute_statistics(pair, structure_edges(pair, 4.0), np.arange(1))


test_what_e0s_must_be = refused(
    "e0s, message",
    [
        ("average", "e0s must be one of fit, isolated, none, got 'average'"),
        (None, "e0s must be one of fit, isolated, none or energies by element, got None"),
        ({"Xx": 1.0}, "e0s must be chemical symbols or atomic numbers from 1 to 118, got 'Xx'"),
        ({"H": 1.0, 1: 2.0}, "e0s must name each element once, got H more than once"),
        ({"X": 1.0}, "e0s must be chemical symbols .*, got 'X'"),
        ({"H": float("nan")}, "e0s of H must be a finite number of eV, got nan"),
    ],
    lambda e0s: read_e0s(e0s),
)


# -- of a property --


def with_labels(small_set, noise: float = 0.0, num: int = 60):
    counts = small_set(num).counts(tuple(TRUE))
    noise_values = np.random.default_rng(0).normal(scale=1.0, size=num) * noise
    return small_set(num, y=counts @ np.array(list(TRUE.values())) + noise_values)


def of_target(molecules, train=None, target=ENERGY, **options):
    train = np.arange(len(molecules.y)) if train is None else train
    return compute_statistics(molecules, structure_edges(molecules, 3.0), train, target=target, **options)


def test_scale_is_that_of_the_residual(small_set):
    molecules = with_labels(small_set, noise=0.3)
    fitted = of_target(molecules)
    residual = molecules.y - molecules.counts(fitted.species) @ np.array(list(fitted.shifts.values()))
    assert fitted.scale == pytest.approx(residual.std(), rel=1e-12)
    assert 0.2 < fitted.scale < 0.4
    assert (fitted.mean, fitted.std) == pytest.approx((molecules.y.mean(), molecules.y.std()))


def test_mean_neighbors_is_that_of_the_atoms_of_the_training_part():
    """By hand: pairs (2 atoms, 2 edges) and triangles (3 atoms, 6 edges), and a far atom that has no neighbour."""
    pair, triangle, lonely = [[0, 0, 0], [1, 0, 0]], [[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 0, 0], [9, 0, 0]]
    sizes = [len(molecule) for molecule in (pair, triangle, lonely, triangle)]
    pos = [*pair, *triangle, *lonely, *triangle]
    molecules = StructureArrays.of("test", sizes, np.ones(sum(sizes)), pos, y=np.arange(4.0))
    by_rows = {rows: of_target(molecules, np.array(rows)).mean_neighbors for rows in ((0, 1), (1, 2), (0, 1, 2))}
    assert by_rows == {(0, 1): 8 / 5, (1, 2): 6 / 5, (0, 1, 2): 8 / 7}
    with pytest.raises(DataError, match="training part of test must have atoms within the cutoff of 3"):
        of_target(molecules, np.array([2]))
    assert of_target(molecules, np.array([1, 1, 0])).mean_neighbors == 14 / 8, "a row that is there twice counts twice"


def test_intensive_targets_have_no_shifts(small_set):
    molecules = small_set(60)
    fitted = of_target(molecules, target=DIPOLE)
    assert fitted.shifts == {1: 0.0, 6: 0.0, 8: 0.0}
    assert (fitted.scale, fitted.mean) == pytest.approx((molecules.y.std(), molecules.y.mean()))


@pytest.mark.parametrize("target", [ENERGY, DIPOLE])
def test_scale_is_never_zero(small_set, target):
    molecules = small_set(y=np.zeros(12))
    assert of_target(molecules, np.array([0]), target).scale == 1.0
    assert of_target(molecules, target=target).scale == 1.0


def test_a_species_that_training_lacks_has_no_shift(small_set):
    z = small_set().z.copy()
    z[-1] = 9
    fitted = of_target(small_set(z=z), np.arange(11))
    assert fitted.species == (1, 6, 8, 9)
    assert fitted.shifts[9] == pytest.approx(0.0, abs=1e-12)
