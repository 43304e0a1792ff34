"""Sections that the pages of all runs have: commands of each start, curves of this run, distances of images."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from eqlayers.data.structures import Label
from eqlayers.train import page
from eqlayers.train.predictions import Errors, Predictions, Row
from eqlayers.train.steps import LABELS

pytestmark = pytest.mark.pictures


def test_commands_of_each_start_and_of_the_last_test(tmp_path: Path) -> None:
    """Weights from elsewhere were trained by a command that is not known here."""
    commands = {"2026-01-30 23:00": "eqlayers fit a.yaml", "2026-01-31 10:00": ""}
    starts = [{"command": command, "date": date} for date, command in commands.items()]
    (tmp_path / "summary.json").write_text(json.dumps({"starts": starts}))
    facts = {"epochs": 2, "git_commit": None, "num_parameters": 7, "command": "eqlayers test a.yaml"}
    rows = page.what_was_run(tmp_path, facts).blocks[0].rows
    assert rows.pop("trained by") == "eqlayers fit a.yaml (2026-01-30 23:00); then Python (2026-01-31 10:00)"
    assert rows.pop("tested by").startswith("eqlayers test a.yaml (20")
    assert rows == {"epochs": "2", "num parameters": "7"}
    assert "trained by" not in page.what_was_run(tmp_path, facts | {"epochs": None}).blocks[0].rows


def test_curves_are_of_this_run_and_not_of_an_earlier_one(tmp_path: Path) -> None:
    """The logs of a run that was written over stay; a run that was resumed has its own logs."""
    for version, rows in enumerate((["9,5.0", "19,4.0", "24,3.5"], ["9,3.0"], ["29,1.0"])):
        folder = tmp_path / "csv" / f"version_{version}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text("\n".join(["step,val/energy_per_atom_mae_meV", *rows]) + "\n")
    history = [{"step": step, "train_mae": 1.0, "val_mae": 2.0} for step in (10, 20, 30)]
    logged = page._logged(tmp_path / "csv", {10, 20, 30})
    assert logged.to_dict() == {"val/energy_per_atom_mae_meV": {10: 3.0, 30: 1.0}}
    for label, part, others in (("forces", "", 1), ("energy", " per atom", 0)):
        main = Row(LABELS[label], part, Errors(1.0, 1.0, 1.0), [])
        first, *more = page.curves(tmp_path, history, main)
        assert len(more) == others, "the main error has one curve"
        assert first.figure.axes[0].get_ylabel().startswith(f"MAE of {label}{part}")


def test_distances_of_periodic_neighbours_are_those_of_images() -> None:
    class Sample(dict):
        __getattr__ = dict.__getitem__

    sample = Sample(
        z=torch.tensor([1, 8]),
        pos=torch.tensor([[0.0, 0, 0], [2.5, 0, 0]]),
        cell=3.0 * torch.eye(3)[None],
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        shifts=torch.tensor([[-1.0, 0, 0], [1.0, 0, 0]]),
    )
    picture = page.distances([sample], 3.0)
    assert picture is not None
    assert "The shortest has 0.5 A (H-O)." in picture.caption


def structures(errors: dict[str, np.ndarray], groups: tuple[str, ...] = ("",)) -> Predictions:
    """One carbon atom in row 7 and O-H in row 5 of their files."""
    values = {"z": np.array([6, 1, 8]), "atoms": np.array([1, 2]), "group": np.array([0, len(groups) - 1])}
    labels = {name: LABELS[name] for name in LABELS if f"{name}_error" in errors}
    labels |= {"y": Label("gap", "N", (), "eV", "meV", "meV")} if "y_error" in errors else {}
    return Predictions(labels, {**values, "idx": np.array([7, 5]), **errors}, groups)


def test_structures_with_the_largest_errors_come_first() -> None:
    forces = np.array([[3.0, 4, 0], [0, 0, 1], [0, 2, 0]])
    tested = structures({"energy_error": np.array([-0.001, 0.004]), "forces_error": forces})
    by_energy, by_force = page.largest_errors(tested).blocks
    assert by_energy.rows == [("5", "HO", "2", "2000"), ("7", "C", "-1", "5000")]
    assert by_force.rows == [("7", "C", "-1", "5000"), ("5", "HO", "2", "2000")]
    tested = structures({"y_true": np.array([1.0, 2]), "y_error": np.array([0.2, -0.5])}, ("a", "b"))
    (table,) = page.largest_errors(tested).blocks
    assert table.rows == [("5", "HO", "b", "2", "1.5", "-500"), ("7", "C", "a", "1", "1.2", "200")]
    assert table.headings[-3:] == ("true, eV", "predicted, eV", "error, meV")


def test_no_energies_of_atoms_where_none_are_predicted() -> None:
    potential = SimpleNamespace(species=[1, 6, 8], shifts=torch.zeros(3))
    assert page.atomic_energies(structures({}), potential).blocks == []
    section = page.atomic_energies(structures({"energies": np.array([1.0, 2, 4])}), potential)
    means = {row[0]: row[3] for row in section.blocks[1].rows}
    assert means == {"H": "2.000", "C": "1.000", "O": "4.000"}


def test_labels_have_a_picture_by_what_tells_structures_apart() -> None:
    """Forces by element and by group, a property by size; a label that the test part lacks has none."""
    errors = {"forces_true": np.ones((3, 3)), "forces_error": np.zeros((3, 3)), "y_error": np.zeros(2)}
    errors |= {"energy_true": np.array([1.0, np.nan]), "energy_error": np.array([0.5, np.nan])}
    errors |= {"y_true": np.array([1.0, 2]), "stress_true": np.full((2, 3, 3), np.nan), "stress_error": np.zeros(2)}
    several = page.predictions(structures(errors, ("warm", "")), [])
    legends = [[t.get_text() for t in one.figure.axes[0].get_legend().get_texts()] for one in several["parity_forces"]]
    assert legends == [["C", "H", "O"], ["no config_type", "warm"]]
    by = [picture.caption for picture in several["parity"]]
    assert by == [f"Predicted against true gap, by {what}." for what in ("number of heavy atoms", "config_type")]
    single = page.predictions(structures(errors), [])
    assert [len(pictures) for pictures in single.values()] == [1, 1, 1]
    (energy,) = single["parity_energy"]
    assert np.asarray(energy.figure.axes[0].collections[0].get_offsets()).tolist() == [[1.0, 1.5]]
    assert page.shares(np.array([8, 1, 1, 1])) == "H 75%, O 25%"
