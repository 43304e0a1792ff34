"""The data module of a property of own molecules: what is read, left out and refused, parts and statistics."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect
from ase.io import write

from eqlayers.data import PropertyDataModule
from eqlayers.errors import ConfigError, DataError, EqlayersWarning
from tests.each import each


def molecules(count: int = 20, seed: int = 0) -> list[Atoms]:
    """Chains of 2 to 5 hydrogens and oxygens with a number of their own, and an energy that is not learned."""
    made, frames = np.random.default_rng(seed), []
    for row in range(count):
        size = 2 + row % 4
        positions = np.arange(size)[:, None] * [1.0, 0.0, 0.0] + 0.1 * made.standard_normal((size, 3))
        atoms = Atoms(made.choice([1, 8], size), positions)
        atoms.info |= {"gap": float(row), "name": f"chain {row}", "moments": np.ones(3)}
        atoms.calc = SinglePointCalculator(atoms, energy=-3.0 * size, forces=np.zeros((size, 3)))
        frames.append(atoms)
    return frames


@pytest.fixture
def module(tmp_path: Path) -> Callable[..., PropertyDataModule]:
    def build(frames: list[Atoms], target="gap", **options) -> PropertyDataModule:
        write(tmp_path / "chains.xyz", frames)
        return PropertyDataModule(str(tmp_path / "chains.xyz"), target, cache_dir=str(tmp_path / "cache"), **options)

    return build


def test_a_label_of_any_name(module) -> None:
    data = module(molecules(), unit="eV", val=4, test=4)
    data.setup()
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [12, 4, 4]
    assert (data.target.name, data.target.unit, data.target.report_factor) == ("gap", "eV", 1.0)
    for part in (data.train_set, data.val_set, data.test_set):
        for sample in part:
            assert sample.y.dtype == torch.float64
            assert sample.y.tolist() == [float(sample.idx)]  # of its own row
            assert "energy" not in sample
    assert data.labels == ("y",)
    batch = next(iter(data.train_dataloader()))
    assert batch.y.shape == (batch.num_graphs,)


def test_statistics_are_of_the_label(module) -> None:
    frames = molecules()
    for atoms in frames:
        atoms.info["volume"] = 2.0 * (atoms.numbers == 1).sum() + 7.0 * (atoms.numbers == 8).sum()
    data = module(frames, "volume", extensive=True, split="time", val=4, test=4)
    data.setup()
    assert data.statistics.shifts == pytest.approx({1: 2.0, 8: 7.0}, abs=1e-9)
    labels = np.array([atoms.info["volume"] for atoms in frames])
    rows = np.array([int(sample.idx) for sample in data.train_set])
    assert data.statistics.mean == pytest.approx(labels[rows].mean())
    averaged = module(molecules(), "gap", split="time", val=4, test=4)
    averaged.setup()
    assert averaged.statistics.shifts == {1: 0.0, 8: 0.0}
    assert averaged.statistics.scale == pytest.approx(np.std([int(sample.idx) for sample in averaged.train_set]))


def test_molecules_without_the_label_are_in_no_part_and_named(module) -> None:
    frames = molecules()
    for row in (3, 11):
        del frames[row].info["gap"]
    data = module(frames)
    with pytest.warns(
        EqlayersWarning, match=r"chains.xyz: 2 of 20 structures have no 'gap' and are left out, rows 3, 11"
    ):
        data.setup()
    rows = sorted(int(sample.idx) for part in (data.train_set, data.val_set, data.test_set) for sample in part)
    assert rows == [row for row in range(20) if row not in (3, 11)]


def test_the_energy_may_be_the_property(module) -> None:
    data = module(molecules(), "energy", extensive=True)
    data.setup()
    assert data.statistics.shifts == pytest.approx({1: -3.0, 8: -3.0}, abs=1e-9)
    assert data.labels == ("y",)


def test_a_database(tmp_path: Path) -> None:
    with connect(tmp_path / "chains.db") as database:
        for row, atoms in enumerate(molecules()):
            atoms.calc = None
            database.write(atoms, key_value_pairs={"gap": 2.0 * row})
    data = PropertyDataModule(str(tmp_path / "chains.db"), "gap", cache_dir=str(tmp_path))
    data.setup()
    assert data.train_set[0].y.tolist() == [2.0 * int(data.train_set[0].idx)]


def test_files_of_the_parts(module, tmp_path: Path) -> None:
    write(tmp_path / "one.xyz", molecules(6, 1))
    write(tmp_path / "two.xyz", molecules(5, 2))
    files = [str(tmp_path / name) for name in ("one.xyz", "two.xyz")]
    data = module(molecules(), test_path=files)
    data.setup()
    assert [float(sample.y) for sample in data.test_set] == [*range(6), *range(5)]
    assert len(data.train_set) == 18


@each(
    "target, message",
    [
        (
            "gap,mu",
            r"target must be a name in .*chains.xyz, got 'gap,mu'; it has energy, forces, gap, .* one property a",
        ),
        ("name", r"'name' in frame 0, line 1 of .*chains.xyz must be one number, got 'chain 0'"),
        ("moments", r"'moments' in frame 0, line 1 of .* must be one number, got array.* learn another property"),
    ],
)
def test_what_is_no_property(module, target: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        module(molecules(), target).setup()


@each("target", [["gap", "mu"], "", None])
def test_several_properties(module, target) -> None:
    with pytest.raises(ConfigError, match=r"target must .*got .* one run for each"):
        module(molecules(), target)


def test_labels_that_are_not_finite(module) -> None:
    frames = molecules()
    frames[5].info["gap"] = np.nan
    with pytest.raises(
        DataError, match=r"1 of 20 structures do not have that, frame 5, line 27; .* leave 'gap' out of these"
    ):
        module(frames).setup()


def test_crystals_are_refused(module) -> None:
    frames = molecules()
    frames[2].set_cell([9.0] * 3)
    frames[2].pbc = True
    with pytest.raises(DataError, match=r"molecules without a period; 1 of 20 .* rows 2; set pbc="):
        module(frames).setup()


def test_options_of_potentials_are_not_taken(module) -> None:
    with pytest.raises(TypeError, match="e0s"):
        module(molecules(), e0s="fit")


# ---- further labels -------------------------------------------------------------------------------------------------
def labelled() -> list[Atoms]:
    """The chains with a charge of each atom, a volume, and moments, which are 3 numbers; the last has no gap."""
    frames = molecules()
    for row, atoms in enumerate(frames):
        atoms.arrays["part"] = 0.1 * row + np.arange(len(atoms))
        atoms.info |= {"volume": 2.0 * row, "moments": np.array([row, 0.0, 1.0])}
    del frames[-1].info["gap"], frames[3].info["volume"]
    return frames


def test_further_labels_of_a_file(module) -> None:
    data = module(labelled(), auxiliary={"part": 1.0, "volume": 0.5, "moments": 0.1}, val=4, test=4)
    with pytest.warns(EqlayersWarning, match="no 'gap' and are left out but for the training on other labels, rows 19"):
        data.setup()
    kinds = {name: (each.pooling, each.label.unit) for name, each in data.further().items()}
    unit = "unit_of_the_file"
    assert kinds == {"part": ("atom", unit), "volume": ("mean", unit), "moments": ("vector", unit)}
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [12, 4, 4]
    for part in (data.train_set, data.val_set, data.test_set):
        for sample in part:
            row = int(sample.idx)
            assert sample.auxiliary_0.tolist() == pytest.approx((0.1 * row + np.arange(len(sample.z))).tolist())
            assert sample.auxiliary_1.tolist() == pytest.approx([2.0 * row if row != 3 else np.nan], nan_ok=True)
            assert sample.auxiliary_2.tolist() == [[row, 0.0, 1.0]]
    last = data.train_set[11]
    assert int(last.idx) == 19
    assert torch.isnan(last.y).all()
    assert data.train_set.n_rows["y"].tolist() == [1] * 11 + [0]


def test_three_numbers_of_three_atoms(module) -> None:
    """Arrays of the file are of atoms, and what stands in its header is a vector."""
    frames = [atoms for atoms in labelled() if len(atoms) == 3]
    data = module(frames, auxiliary={"part": 1.0, "moments": 1.0})
    assert {name: each.pooling for name, each in data.further().items()} == {"part": "atom", "moments": "vector"}
    assert module(frames, extensive=True, auxiliary={"volume": 1.0}).further()["volume"].pooling == "sum"


@pytest.mark.filterwarnings("ignore::eqlayers.errors.EqlayersWarning")
@each(
    "auxiliary, error, message",
    [
        ({"gap": 1.0}, ConfigError, "auxiliary must be further labels of the data, got the target itself"),
        ({"size": 1.0}, ConfigError, r"names of labels in .*chains.xyz \(.*part.*volume.*\), got size"),
        ({"a b": 1.0, "a_b": 1.0}, ConfigError, "differ in letters or digits, got 'a b', 'a_b' beside 'gap'"),
        ({"name": 1.0}, DataError, r"'name' must be one number, 3 numbers, .* got the shape \[0, 0, 0\] in frame"),
    ],
)
def test_further_labels_that_are_refused(module, auxiliary, error, message) -> None:
    with pytest.raises(error, match=message):
        module(labelled(), auxiliary=auxiliary).setup()


@pytest.mark.filterwarnings("ignore::eqlayers.errors.EqlayersWarning")
def test_a_further_label_that_no_trained_molecule_has(module) -> None:
    frames = labelled()
    for atoms in frames[:-1]:
        atoms.info.pop("volume", None)
    del frames[-1].info["volume"]
    frames[0].info["volume"] = np.nan
    with pytest.raises(DataError, match=r"the training part of .* must have volume of a structure, got none"):
        module(frames, auxiliary={"volume": 1.0}).setup()
