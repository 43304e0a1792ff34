"""Replayed structures: how many, of which labels, in the training part alone, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.io import read, write

from eqlayers.data import StructureArrays, StructureDataModule
from eqlayers.data.batches import StructureDataset
from eqlayers.data.replay import check_energies, read_replay
from eqlayers.errors import DataError
from tests.data.test_structuremodule import trimers
from tests.each import refused


@pytest.fixture
def module(tmp_path: Path) -> Any:
    new = trimers(tmp_path, "new.xyz", 20, 0)
    old = trimers(tmp_path, "old.xyz", 30, 1, "SH2", bare=4)

    def build(replay: dict[str, Any] | None, **options: Any) -> StructureDataModule:
        section = None if replay is None else {"path": old} | replay
        data = StructureDataModule(new, replay=section, cutoff=4.0, cache_dir=str(tmp_path / "cache"), **options)
        data.setup()
        return data

    return build


def sulfur(dataset: StructureDataset) -> list[int]:
    """Rows of the replayed structures in their file."""
    return [int(sample.idx) for sample in (dataset[n] for n in range(len(dataset))) if 16 in sample.z.tolist()]


@pytest.mark.parametrize(("number", "want"), [(7, 7), (0.5, 16), (0.2, 4)])
def test_a_number_or_a_fraction_of_each_epoch(module: Any, number: float, want: int) -> None:
    data, plain = module({"number": number}), module(None)
    again = sulfur(data.train_set)
    assert len(again) == len(set(again)) == want
    assert min(again) >= 4  # the first ones have no label
    assert len(data.train_set) == len(plain.train_set) + want == data.statistics.num_train
    for name in ("val_set", "test_set"):
        parts = [[int(one.idx) for one in (getattr(d, name)[n] for n in range(2))] for d in (data, plain)]
        assert parts[0] == parts[1]
        assert sulfur(getattr(data, name)) == []
    seen = [z for batch in data.train_dataloader() for z in batch.z.tolist()]
    assert seen.count(16) == want
    assert data.species == data.statistics.species == (1, 8, 16)
    assert any(line.startswith(f"replay: {want} structures of") and "old.xyz" in line for line in data.report)


def test_the_draw_depends_on_the_seed_of_the_split_alone(module: Any) -> None:
    first, same, other = (
        module({"number": 9}, **seeds) for seeds in ({"seed": 1}, {"seed": 2}, {"split_seed": 5, "seed": 1})
    )
    assert sulfur(first.train_set) == sulfur(same.train_set) != sulfur(other.train_set)


def test_labels_that_do_not_count_are_hidden(module: Any) -> None:
    data = module({"labels": ["forces"], "number": 10})
    old = [sample for sample in (data.train_set[n] for n in range(26)) if 16 in sample.z.tolist()]
    assert len(old) == 10
    assert all(np.isnan(sample.energy.item()) and torch.isfinite(sample.forces).all() for sample in old)
    assert np.isfinite(data.train_set[0].energy.item())
    assert data.statistics.shifts[16] == 0.0  # no energy tells it


def test_labels_that_only_the_replayed_have_are_trained_and_not_judged(module: Any, tmp_path: Path) -> None:
    old = trimers(tmp_path, "cells.xyz", 12, 2, "SH2", stress=True)
    data = module({"path": old, "number": 5})
    assert data.labels == ("energy", "forces")
    assert data.statistics.labels == ("energy", "forces", "stress")
    assert torch.isnan(data.train_set[0].stress).all()
    assert torch.isfinite(data.train_set[len(data.train_set) - 1].stress).all()


def test_batches_by_edges_hold_the_replayed_as_well(module: Any) -> None:
    data = module({"number": 8}, max_edges=30)
    batches = list(data.train_dataloader())
    assert sum(batch.num_graphs for batch in batches) == 24
    assert all(batch.edge_index.shape[1] <= 30 for batch in batches)


test_wrong_options = refused(
    "section, message",
    [
        (3, "replay must be a mapping with the path of a file, or None"),
        ({}, r"replay\.path must be a file of structures"),
        ({"path": "x", "nmber": 3}, "a key of replay must be one of path, number"),
        ({"path": "x", "number": 0}, r"replay\.number must be a number of structures"),
        ({"path": "x", "number": "3"}, r"replay\.number must be"),
        ({"path": "x", "number": 1.0}, r"replay\.number must be a number of structures, or a fraction of each epoch"),
        ({"path": "x", "labels": "forces"}, r"replay\.labels must be a list of labels"),
        ({"path": "x", "labels": ["charge"]}, r"replay\.labels must be one of energy"),
        ({"path": "x", "keys": 3}, "keys must be a mapping"),
        ({"path": "x", "units": {"energy": "x"}}, "energy"),
    ],
    lambda section: read_replay(section),
)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (27, r"must be for 1 to 26 structures, as .*old\.xyz has with labels .* got 27: 27 beside 16 new.* Lower it"),
        (0.9, r"got 0\.9: 144 beside 16 new ones\. Lower it"),
        (0.01, r"got 0\.01: 0 beside 16 new ones\. Raise it"),
    ],
)
def test_too_few_or_too_many(module: Any, number: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        module({"number": number})


def test_energies_of_another_functional_are_refused(tmp_path: Path) -> None:
    """100 eV an atom apart; the same energies and energies that do not count are taken; given shifts get a warning."""
    new, old, far = (trimers(tmp_path, f"{name}.xyz", 20, seed) for seed, name in enumerate(("new", "old", "far")))
    made = read(far, ":")
    for atoms in made:
        atoms.info["REF_energy"] += 300.0
    write(far, made)

    def build(replay: dict[str, Any], **options: Any) -> StructureDataModule:
        data = StructureDataModule(new, replay=replay, cutoff=4.0, cache_dir=str(tmp_path / "cache"), **options)
        data.setup()
        return data

    build({"path": old})
    with pytest.raises(
        DataError, match=r"energies of .*far\.xyz must be of the method of .*new\.xyz, got .* both to \S+ eV an atom"
    ):
        build({"path": far})
    shifts = build({"path": far, "labels": ["forces"]}).statistics.shifts
    assert shifts == build({"path": old, "labels": ["forces"]}).statistics.shifts
    for e0s in ({"H": 0.0, "O": 0.0}, "none"):
        with pytest.raises(DataError, match=r"energies of .*far\.xyz must be of the method of .*new\.xyz, got"):
            build({"path": far}, e0s=e0s)


def test_crystals_and_dimers_of_one_method_are_taken() -> None:
    """Tungsten binds by 8.9 eV an atom in the crystal and by 2.5 in the dimer."""
    rng, sources = np.random.default_rng(0), []
    for bond, atoms in ((-8.9, 16), (-2.5, 2)):
        energy = atoms * (-100.0 + bond + 0.05 * rng.normal(size=20))
        pos = rng.normal(size=(20 * atoms, 3)) + np.arange(20 * atoms)[:, None]
        sources.append(StructureArrays.of("a test", [atoms] * 20, [74] * 20 * atoms, pos, energy=energy))
    check_energies(*sources)
    shifted = replace(sources[1], energy=sources[1].energy + 20.0)
    with pytest.raises(DataError, match="must be of the method of"):
        check_energies(sources[0], shifted)
