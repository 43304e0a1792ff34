"""Sections that the pages of all runs have: commands of each start, curves of this run, distances of images."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from eqlayers.pages import Picture
from eqlayers.train import page
from eqlayers.train.plots import learning_curve
from tests.each import each

pytestmark = pytest.mark.pictures


def test_commands_of_each_start_and_of_the_last_test(tmp_path: Path) -> None:
    """Weights from elsewhere were trained by a command that is not known here."""
    commands = {"2026-01-30 23:00": "eqlayers fit a.yaml", "2026-01-31 10:00": ""}
    starts = [{"command": command, "date": date} for date, command in commands.items()]
    (tmp_path / "summary.json").write_text(json.dumps({"starts": starts}))
    facts = dict.fromkeys(("dataset", "split", "train_time_s", "checkpoint", "git_commit", "python_version", "network"))
    facts |= {"epochs": 2, "steps": 4, "num_parameters": 1, "processor": "x", "device": "cpu", "eqlayers_version": "1"}
    rows = page.what_was_run(tmp_path, facts | {"command": "eqlayers test a.yaml"}).blocks[0].rows
    assert rows["trained by"] == "eqlayers fit a.yaml (2026-01-30 23:00); then Python (2026-01-31 10:00)"
    assert rows["tested by"].startswith("eqlayers test a.yaml (20")
    assert "trained by" not in page.what_was_run(tmp_path, facts | {"epochs": None}).blocks[0].rows


def test_curves_are_of_this_run_and_not_of_an_earlier_one(tmp_path: Path) -> None:
    """The logs of a run that was written over stay; a run that was resumed has its own logs."""
    for version, rows in enumerate((["9,5.0", "19,4.0", "24,3.5"], ["9,3.0"], ["29,1.0"])):
        folder = tmp_path / "csv" / f"version_{version}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text("\n".join(["step,val/energy_per_atom_mae_meV", *rows]) + "\n")
    history = [{"step": step, "train_mae": 1.0, "val_mae": 2.0} for step in (10, 20, 30)]
    main_curve = Picture(learning_curve(history, "forces", "meV/A", {}), "")
    logged = page._logged(tmp_path / "csv", {10, 20, 30})
    assert logged == {"val/energy_per_atom_mae_meV": {10: 3.0, 30: 1.0}}
    assert len(page.curves(tmp_path, main_curve, history).blocks) == 1, "of one error there is the main curve alone"


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


@each(
    "seconds, words",
    [(None, "-"), (math.nan, "-"), (0.04, "0.0 s"), (59.4, "59.4 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min")],
)
def test_durations_never_have_sixty_of_anything(seconds: float | None, words: str) -> None:
    assert page.duration(seconds) == words
