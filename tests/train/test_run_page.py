"""The page of a run says what was run, on what, how it learned, and where it fails."""

import re
from pathlib import Path

import pytest
import yaml
from ase import Atoms
from ase.io import write

from eqlayers.cli.main import main

from .waters import displaced_waters, label_by_springs

NETWORK = {"species": [1, 8], "hidden": "4x0e + 4x1o", "lmax": 1, "layers": 1, "radial_hidden": [8]}
SHARED = "4 of 4 test structures are in the training part as well"
pytestmark = [pytest.mark.filterwarnings(f"ignore:{SHARED}"), pytest.mark.pictures]


def labelled(count: int) -> list[Atoms]:
    """Waters of two kinds with the energies and forces of springs."""
    frames = list(displaced_waters(count))
    for number, atoms in enumerate(frames):
        atoms.info["config_type"] = ("warm", "hot")[number % 2]
        atoms.arrays["REF_forces"] = label_by_springs(atoms, 25.0).sum(1)
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


def test_no_page_where_none_is_asked_for(run: Path) -> None:
    (run / "report.html").unlink()
    assert main(["test", "-c", str(run / "config.yaml"), "--report", "false"]) == 0
    assert not (run / "report.html").exists()
    assert (run / "metrics.json").exists()
