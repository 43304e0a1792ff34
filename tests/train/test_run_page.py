"""The page of a run says what was run, on what, how it learned, and where it fails; parts that are empty are absent."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.io import write

from eqlayers.cli import main
from eqlayers.errors import ShapeError
from eqlayers.pages import Picture
from eqlayers.train import page, potential_report
from eqlayers.train.plots import histogram, learning_curve, parity_plot

from .waters import displaced_waters

NETWORK = {"species": [1, 8], "hidden": "4x0e + 4x1o", "lmax": 1, "layers": 1, "radial_hidden": [8]}
SHARED = "4 of 4 test structures are in the training part as well"
pytestmark = [pytest.mark.filterwarnings(f"ignore:{SHARED}"), pytest.mark.pictures]


def labelled(count: int) -> list[Atoms]:
    """Waters of two kinds with the energies and forces of springs."""
    frames = list(displaced_waters(count))
    for number, atoms in enumerate(frames):
        vectors = atoms.positions[None] - atoms.positions[:, None]
        lengths = np.linalg.norm(vectors, axis=-1) + np.eye(3)
        atoms.info["REF_energy"] = 25 * float((np.triu(lengths - 1, 1) ** 2).sum()) - 14.0
        atoms.info["config_type"] = ("warm", "hot")[number % 2]
        atoms.arrays["REF_forces"] = 50 * (vectors * ((lengths - 1) / lengths)[..., None]).sum(1)
    return frames


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write(folder / "train.xyz", labelled(16), format="extxyz")
    write(folder / "test.xyz", labelled(4), format="extxyz")
    paths = {"path": str(folder / "train.xyz"), "test_path": str(folder / "test.xyz"), "val": 4}
    config = {
        "task": "potential",
        "name": "small",
        "runs": str(folder),
        "data": {**paths, "cutoff": 3.0, "cache_dir": str(folder)},
        "model": {"model": {"class_path": "eqlayers.models.NequIP", "init_args": NETWORK}},
        "trainer": {"accelerator": "cpu", "max_epochs": 2},
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "-c", str(folder / "small.yaml")]) == 0
    return folder / "small"


def test_a_potential(run: Path) -> None:
    text = (run / "report.html").read_text()
    titles = ["What was run", "Data", "Network", "Learning curves", "Errors", "Predictions", "Largest errors"]
    assert re.findall("<h2>(.*)</h2>", text) == [*titles, "Energies of atoms", "eqlayers check"]
    captions = re.findall("<figcaption>(.*)</figcaption>", text)
    for part in ("true energy, by config_type", "true forces, by element", "true forces, by config_type"):
        assert sum(part in caption for caption in captions) == 1, captions
    assert "http" not in text
    date = r" \(\d{4}-\d\d-\d\d \d\d:\d\d\)</dd>"
    for what in ("trained by", "tested by"):
        assert re.search(rf"<dt>{what}</dt><dd>eqlayers fit -c {run.parent}/small.yaml{date}", text)
    assert "max_epochs: 2" in text, "no configuration"
    assert f'<p class="warning">{SHARED}' in text
    assert "<td>H2O</td>" in text
    assert re.search(r"of the test part: all \d+ hold", text)
    assert "no geometry, MAE" in text


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


def test_no_page_where_none_is_asked_for(run: Path) -> None:
    (run / "report.html").unlink()
    assert main(["test", "-c", str(run / "config.yaml"), "--report", "false"]) == 0
    assert not (run / "report.html").exists()
    assert (run / "metrics.json").exists()


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


def test_structures_with_the_largest_errors_come_first() -> None:
    """Two structures of one and two atoms, in rows 7 and 5 of their file."""
    errors = {"energy_error": np.array([-0.001, 0.004]), "forces_error": np.array([[3.0, 4, 0], [0, 0, 1], [0, 2, 0]])}
    tested = potential_report.Tested(
        {"z": np.array([6, 1, 8]), "atoms": np.array([1, 2]), "group": np.zeros(2), "idx": np.array([7, 5]), **errors},
        ("",),
    )
    by_energy, by_force = potential_report.largest_errors(tested).blocks
    assert by_energy.rows == [("5", "HO", "2", "2000"), ("7", "C", "-1", "5000")]
    assert by_force.rows == [("7", "C", "-1", "5000"), ("5", "HO", "2", "2000")]


def test_no_energies_of_atoms_where_none_are_predicted() -> None:
    tested = potential_report.Tested({"z": np.array([1]), "energies": np.empty(0)}, ("",))
    assert potential_report.atomic_energies(tested, {1: 0.0}).blocks == []


def test_groups_have_colours_and_the_small_ones_share_one() -> None:
    x = np.arange(24.0)
    names = [f"kind {n}" for n in range(12) for _ in range(2)]
    labels = parity_plot(x, x, "mu", "D", "", names).axes[0].get_legend_handles_labels()[1]
    assert labels == [*(f"kind {n}" for n in (0, 1, 10, 11, 2, 3, 4)), "5 others"]
    assert parity_plot(x, x, "mu", "D", "").axes[0].get_legend() is None
    with pytest.raises(ShapeError, match="groups must have a name for each of the 24 points, got 3"):
        parity_plot(x, x, "mu", "D", "", names[:3])


def test_histograms_count_every_value() -> None:
    axis = histogram({"a": np.arange(50.0), "none": [], "b": [0.0, 60.0]}, "energy (eV)", "structures").axes[0]
    assert [float(patch.get_data().values.sum()) for patch in axis.patches] == [50.0, 2.0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b"]


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
