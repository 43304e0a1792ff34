"""Flat arrays of structures: what they accept and refuse, parts and joins, cells where there is no period."""

from dataclasses import fields

import numpy as np
import pytest

from eqlayers.data.structures import LABELS, Auxiliary, StructureArrays, completed_cells
from eqlayers.errors import DataError
from tests.each import refused


def some(**replaced) -> StructureArrays:
    """Three structures of 2, 1 and 3 atoms."""
    rng = np.random.default_rng(1)
    values = {
        "n_atoms": [2, 1, 3],
        "z": [1, 8, 6, 1, 1, 8],
        "pos": rng.normal(size=(6, 3)),
        "energy": [1.0, np.nan, 3.0],
        "config_type": ["a", "b", "a"],
    }
    return StructureArrays.of("some", **(values | replaced))


def test_every_field_is_checked():
    assert [field.name for field in fields(StructureArrays)] == ["source", *StructureArrays.layout(), "auxiliary"]


def test_what_is_missing_is_nan():
    arrays = some()
    assert arrays.labels == ("energy",)
    assert np.isnan(arrays.forces).all()
    assert np.isnan(arrays.stress).all()
    assert arrays.stress.shape == (3, 3, 3)
    assert not arrays.has_cells
    assert arrays.idx.tolist() == [0, 1, 2]
    assert arrays.species == (1, 6, 8)
    assert arrays.counts((1, 8, 9)).tolist() == [[1, 1, 0], [0, 0, 0], [2, 1, 0]]
    assert arrays.heavy.tolist() == [1, 1, 1]


def test_take_and_join():
    whole = some()
    part = whole.take(np.array([2, 0]))
    assert part.n_atoms.tolist() == [3, 2]
    assert part.z.tolist() == [1, 1, 8, 1, 8]
    assert np.array_equal(part.pos, whole.pos[[3, 4, 5, 0, 1]])
    assert part.energy.tolist() == [3.0, 1.0]
    assert part.idx.tolist() == [2, 0]
    both = StructureArrays.joined([whole, part])
    assert len(both) == 5
    assert both.idx.tolist() == [0, 1, 2, 2, 0]
    assert both.source == "some"
    assert both.config_type.tolist() == ["a", "b", "a", "a", "a"]


test_what_is_refused = refused(
    "replaced, message",
    [
        ({"z": [1, 8, 6, 1, 1, 0]}, "atomic numbers from 1 to 118; 1 of 3 structures do not have that, rows 2"),
        ({"n_atoms": [2, 0, 4]}, "at least one atom in every structure; 1 of 3 .* rows 1"),
        ({"energy": [1.0, np.inf, 3.0]}, "energy has NaN or infinite values in part; 1 of 3 .* rows 1"),
        ({"forces": np.where(np.arange(18) == 4, np.nan, 0.0).reshape(6, 3)}, "forces has NaN .* in part; .* rows 0"),
        ({"stress": np.full((3, 3, 3), np.inf)}, "stress has NaN or infinite"),
        ({"pos": np.full((6, 3), np.nan)}, "expected finite positions; 3 of 3"),
        ({"cell": np.full((3, 3, 3), np.nan)}, "expected finite cells"),
        ({"pbc": np.ones((3, 3))}, "periodic cells with a volume; 3 of 3"),
        ({"y": [np.inf] * 3}, r"finite labels.* 3 of 3 structures do not have that, rows 0, 1, 2; repair"),
        ({"pos": np.zeros((5, 3))}, r"pos of some must be \[6, 3\] for 3 structures, got \[5, 3\]. The file"),
        ({"energy": [1.0, 2.0]}, r"energy of some must be \[3\] for 3 structures, got \[2\]"),
    ],
    lambda replaced: some(**replaced),
    error=DataError,
)


def test_of_many_rows_the_first_are_named():
    with pytest.raises(DataError, match=r"12 of 12 structures .* rows 100, .*, 107, \.\.\.; repair"):
        StructureArrays.of("x", [1] * 12, [1] * 12, np.zeros((12, 3)), y=np.full(12, np.inf), idx=np.arange(12) + 100)


def test_no_structure():
    with pytest.raises(DataError, match="must hold at least one structure, got none"):
        StructureArrays.of("nothing", [], [], np.zeros((0, 3)))


def test_a_list_is_no_array():
    values = {field.name: getattr(some(), field.name) for field in fields(StructureArrays)}
    for name, kind in (("z", "integers"), ("pos", "numbers"), ("pbc", "truth values"), ("config_type", "texts")):
        with pytest.raises(DataError, match=f"{name} of some must be an array of {kind}, got .* Convert it"):
            StructureArrays(**(values | {name: values[name].tolist()}))


def test_cells_where_there_is_no_period():
    slab = np.array([[3.0, 0.5, 0], [0, 4.0, 0], [0, 0, 0]])
    cells = np.stack([np.zeros((3, 3)), slab, np.diag([3.0, 3, 3])])
    pbc = np.array([[False] * 3, [True, True, False], [True, True, False]])
    full = completed_cells(cells, pbc)
    assert np.array_equal(full[0], 1000.0 * np.eye(3))
    assert np.array_equal(full[1, :2], slab[:2])
    assert full[1, 2] == pytest.approx([0, 0, 1000.0])
    assert np.array_equal(full[2], cells[2])  # a vacuum that a user chose is kept
    assert not cells[0].any()


def test_a_periodic_direction_without_vector_is_refused():
    pbc = np.array([[True, False, True]])
    with pytest.raises(DataError, match="periodic cells with a volume"):
        StructureArrays.of("x", [1], [1], [[0, 0, 0]], cell=[np.diag([3.0, 3, 0])], pbc=pbc)


def test_labels_have_their_order():
    full = some(
        forces=np.zeros((6, 3)),
        stress=np.zeros((3, 3, 3)),
        dipole=np.zeros((3, 3)),
        polarizability=np.zeros((3, 3, 3)),
        y=np.zeros(3),
    )
    assert full.labels == tuple(LABELS)


def test_rows_of_labels_and_identities() -> None:
    """Copies to 0.0001 Angstrom share their identity; other species, positions, cells and orders do not."""
    pair = [[0.0, 0, 0], [0, 0, 0.74]]
    pos = [pair, [[0.0, 0, -0.0], [0, 0, 0.740001]], pair, [[0.0, 0, 0], [0, 0, 0.741]], pair]
    forces = np.zeros((10, 3))
    forces[2:4] = np.nan
    structures = StructureArrays.of(
        "a test",
        n_atoms=[2] * 5,
        z=[1, 1, 1, 1, 1, 9, 1, 1, 1, 1],
        pos=np.concatenate(pos),
        cell=[np.zeros((3, 3))] * 4 + [5.0 * np.eye(3)],
        energy=[0.0, np.nan, 0, 0, 0],
        forces=forces,
    )
    first, copy, *others = structures.identities.tolist()
    assert first == copy
    assert len({first, *others}) == 4
    rows = {name: counts.tolist() for name, counts in structures.label_rows().items()}
    assert rows == {"energy": [1, 0, 1, 1, 1], "forces": [2, 0, 2, 2, 2]}


# ---- further labels -------------------------------------------------------------------------------------------------
CHARGES = [-1.0, 1.0, np.nan, 2.0, 3.0, 4.0]


def further(charges=CHARGES, zpve=(np.nan, 5.0, 6.0), dipole=((1, 2, 3), (4, 5, 6), (np.nan,) * 3)) -> StructureArrays:
    """The three structures with further labels of atoms and of structures, numbers and vectors."""
    made = {
        "charges": Auxiliary.of("charges", "atom", "e", charges),
        "zpve": Auxiliary.of("zpve", "sum", "eV", zpve, thousandth=True),
        "dipole": Auxiliary.of("dipole", "vector", "e A", dipole),
    }
    return some(auxiliary=made)


def test_further_labels_are_taken_and_joined_with_their_structures():
    data = further()
    assert data.labels == ("energy", "auxiliary_0", "auxiliary_1", "auxiliary_2")
    counts = {name: rows.tolist() for name, rows in data.label_rows().items()}
    assert counts == {"energy": [1, 0, 1], "auxiliary_0": [2, 0, 3], "auxiliary_1": [0, 1, 1], "auxiliary_2": [1, 1, 0]}
    taken = data.take(np.array([2, 0]))
    assert taken.auxiliary["charges"].values.tolist() == [2.0, 3.0, 4.0, -1.0, 1.0]
    assert taken.auxiliary["zpve"].label.unit == "meV"
    np.testing.assert_array_equal(taken.auxiliary["zpve"].values, [6.0, np.nan])
    np.testing.assert_array_equal(taken.auxiliary["dipole"].values, [[np.nan] * 3, [1, 2, 3]])
    joined = StructureArrays.joined([some(), data])
    np.testing.assert_array_equal(joined.auxiliary["charges"].values, [np.nan] * 6 + CHARGES)
    np.testing.assert_array_equal(joined.auxiliary["dipole"].values[2:4], [[np.nan] * 3, [1, 2, 3]])
    assert list(joined.auxiliary) == list(data.auxiliary)


test_further_labels_that_are_refused = refused(
    "replaced, message",
    [
        ({"charges": [1.0] * 5}, r"charges of some must be \[6\] for 3 structures, got \[5\]\. Give a number"),
        ({"charges": [-1.0, np.nan, 1.0, 2.0, 3.0, 4.0]}, "charges has NaN .* in part; 1 of 3 .* rows 0;"),
        ({"zpve": [1.0, np.inf, 1.0]}, "zpve has NaN or infinite .* rows 1;"),
        ({"dipole": [[1.0, np.nan, 0.0]] * 3}, "dipole has NaN .* 3 of 3 .* rows 0, 1, 2;"),
    ],
    lambda replaced: further(**replaced),
    error=DataError,
)
