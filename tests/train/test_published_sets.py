"""The configurations of published sets, through the command line, on files in the formats of the sets."""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import read, write

from eqlayers.cli.main import main
from eqlayers.data.qm9 import TARGETS
from eqlayers.integrations.ase import Calculator, predict
from eqlayers.models import MoleculeNetwork
from eqlayers.train.checkpoints import check_network
from tests.data.published_files import take_any_number, write_3bpa, write_md17, write_rmd17, write_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "published_sets.md"
TINY = ["--model.model.init_args.hidden", "4x0e + 4x1o", "--model.model.init_args.radial_hidden", "[8]"]
QUICK = ["--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--threads=1", "--report=false", "--data.num_workers=0"]
EVERY_EPOCH = ["--trainer.check_val_every_n_epoch", "1"]
NAMES_3BPA = ("test_300K", "test_600K", "test_1200K", "test_dih_beta120", "test_dih_beta150", "test_dih_beta180")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder to work in, and sets with files of any number of structures."""
    take_any_number(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(verb: str, config: str, *options: str, tiny: bool = True) -> int:
    cache = ["--data.cache_dir", "cache"]
    return main([verb, "-c", str(ROOT / "configs" / config), *QUICK, *cache, *(TINY if tiny else []), *options])


@pytest.mark.slow  # tests/data reads its files, and the test of 3BPA trains on frames
def test_rmd17(small: Path) -> None:
    folder = small / "data" / "rmd17"
    write_rmd17(folder / "npz_data" / "rmd17_ethanol.npz", 300)
    train, _ = write_rows(folder / "splits", 100, 40, 300)
    assert command("fit", "rmd17.yaml", *EVERY_EPOCH) == 0
    metrics = json.loads((small / "runs" / "rmd17_ethanol" / "metrics.json").read_text())
    assert (metrics["num_train"], metrics["num_test"]) == (50, 40)
    assert metrics["dataset"] == "data/rmd17/npz_data/rmd17_ethanol.npz"
    assert metrics["test_forces_mae_meV_A"] > 0
    # the potential predicts total energies in eV, near the energies of the data
    with np.load(folder / "npz_data" / "rmd17_ethanol.npz") as archive:
        atoms = Atoms(archive["nuclear_charges"], archive["coords"][int(train.read_text().split()[0])])
        atoms.calc = Calculator(small / "runs" / "rmd17_ethanol" / "potential.pt")
        assert atoms.get_potential_energy() == pytest.approx(archive["energies"].mean() * 0.0433641, rel=1e-3)


@pytest.mark.slow
def test_another_molecule_of_rmd17(small: Path) -> None:
    write_rmd17(small / "rmd17_uracil.npz", 40)
    train, test = write_rows(small / "rows", 20, 10, 40)
    options = ["--data.path", "rmd17_uracil.npz", "--data.train", str(train), "--data.test", str(test)]
    options += ["--data.val", "4", "--name", "rmd17_uracil", *EVERY_EPOCH]
    assert command("fit", "rmd17.yaml", *options) == 0
    assert json.loads((small / "runs" / "rmd17_uracil" / "metrics.json").read_text())["num_train"] == 16


def test_what_is_wrong_with_a_download_is_said_by_the_command(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("fit", "rmd17.yaml") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "Fetch rmd17.tar.bz2 of doi:10.6084/m9.figshare.12672038 on a machine with a connection" in message
    write_md17(small / "data" / "rmd17" / "npz_data" / "rmd17_ethanol.npz", 40)
    assert command("fit", "rmd17.yaml") == 2
    assert "units of energy and forces must be given" in " ".join(capsys.readouterr().err.split())
    assert not (small / "runs" / "rmd17_ethanol" / "checkpoints").exists()


def test_3bpa_and_the_errors_of_each_test_file(small: Path) -> None:
    folder, run = small / "data" / "dataset_3BPA", small / "runs" / "3bpa"
    write_3bpa(folder, "train_300K", 20)
    for number, name in enumerate(NAMES_3BPA):
        write_3bpa(folder, name, 2 + number)
    assert command("fit", "3bpa.yaml", "--data.val", "4", *EVERY_EPOCH) == 0
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["num_test"] == sum(range(2, 8))
    calculator = Calculator(run / "potential.pt")
    for name in NAMES_3BPA:
        frames = read(folder / f"{name}.xyz", ":")
        errors = {"energy": [], "forces": []}
        results = list(predict(str(run / "potential.pt"), frames))
        for atoms, result in zip(frames, results, strict=True):
            errors["energy"].append(result["energy"] - atoms.get_potential_energy())
            errors["forces"].append(result["forces"] - atoms.get_forces())
        frames[0].calc = calculator
        assert frames[0].get_potential_energy() == pytest.approx(results[0]["energy"], rel=0, abs=1e-4)
        np.testing.assert_allclose(frames[0].get_forces(), results[0]["forces"], rtol=0, atol=1e-4)
        for label, unit in (("energy", "meV"), ("forces", "meV_A")):
            error = 1000 * np.array(errors[label])
            # 0.1 meV: float32 has 1e-7 of the network's part of the energy, below 100 eV, ten times over
            mean, root = float(np.abs(error).mean()), float(np.sqrt(np.square(error).mean()))
            assert metrics[f"test_{label}_of_{name}_mae_{unit}"] == pytest.approx(mean, rel=0, abs=0.1)
            assert metrics[f"test_{label}_of_{name}_rmse_{unit}"] == pytest.approx(root, rel=0, abs=0.1)
    # predictions name the file
    assert command("predict", "3bpa.yaml", "--data.val", "4") == 0
    named = [
        (row["group"], int(row["idx"])) for row in csv.DictReader((run / "predictions.csv").read_text().splitlines())
    ]
    assert sorted(named) == sorted((name, row) for number, name in enumerate(NAMES_3BPA) for row in range(2 + number))
    # another file later, by the command for tests
    assert command("test", "3bpa.yaml", "--data.val", "4", "--data.test_path", "data/dataset_3BPA/test_600K.xyz") == 0
    later = json.loads((run / "metrics.json").read_text())
    assert later["num_test"] == 3
    assert later["test_forces_rmse_meV_A"] == pytest.approx(metrics["test_forces_of_test_600K_rmse_meV_A"], rel=1e-5)


@pytest.mark.slow
def test_groups_without_labels_have_no_errors(small: Path) -> None:
    """A file without forces has no errors of forces; energies alone are compared."""
    folder = small / "data" / "dataset_3BPA"
    write_3bpa(folder, "train_300K", 20)
    for name in NAMES_3BPA[:2]:
        write_3bpa(folder, name, 4)
    frames = read(folder / "test_600K.xyz", ":")
    for atoms in frames:
        atoms.info["energy"], atoms.calc = atoms.get_potential_energy(), None
    write(folder / "test_600K.xyz", frames, format="extxyz")
    files = [f"data/dataset_3BPA/{name}.xyz" for name in NAMES_3BPA[:2]]
    options = ["--data.val", "4", "--data.published", "null", "--data.test_path", str(files), *EVERY_EPOCH]
    assert command("fit", "3bpa.yaml", *options) == 0
    metrics = json.loads((small / "runs" / "3bpa" / "metrics.json").read_text())
    assert {key for key in metrics if key.startswith("test_") and "_of_" in key and key.endswith("mae_meV_A")} == {
        "test_forces_of_test_300K_mae_meV_A"
    }
    assert "test_energy_of_test_600K_mae_meV" in metrics


# -- QM9 --------------------------------------------------------------------------------------------------------------


def rows_of_the_page() -> dict[str, list[str]]:
    """Targets of QM9 and the options of each, as the table of the page has them."""
    rows = re.findall(r"^\| ([\w, ]+) \| [^|]+ \| (`[^|]*`|none) \|", PAGE.read_text(), flags=re.MULTILINE)
    return {
        target: [f"--data.target={target}", *(options.strip("`").split() if options != "none" else [])]
        for targets, options in rows
        for target in targets.split(", ")
    }


def test_the_page_has_a_read_out_for_every_target_of_qm9() -> None:
    table = rows_of_the_page()
    assert set(table) == set(TARGETS)
    for target, options in table.items():
        values = dict(option.removeprefix("--").split("=") for option in options)
        data = SimpleNamespace(target=TARGETS[target], cutoff=5.0, statistics=SimpleNamespace(species=(1,)))
        chosen = {name: values.get(f"model.model.init_args.{name}") for name in ("readout", "pooling")}
        network = MoleculeNetwork(hidden="2x0e + 2x1o", layers=1, **{k: v for k, v in chosen.items() if v})
        check_network(network, data)
    assert "readout=vector" in " ".join(table["mu"])
    assert "readout=extent" in " ".join(table["r2"])


@pytest.mark.filterwarnings("ignore:this split was published for")  # the fixture is smaller
@pytest.mark.parametrize(
    "target",
    # the energy by the file as it is: test_every_configuration_runs of tests/cli/test_main.py
    ["mu", "r2", "gap", pytest.param("U0", marks=pytest.mark.slow), pytest.param("alpha", marks=pytest.mark.slow)],
)
def test_qm9(target: str, small: Path) -> None:
    shutil.copytree(ROOT / "tests" / "fixtures" / "qm9", small / "data" / "qm9")
    assert command("fit", "qm9.yaml", *rows_of_the_page()[target]) == 0
    metrics = json.loads((small / "runs" / "qm9" / "metrics.json").read_text())
    assert metrics["target"] == target
    weights = torch.load(small / "runs" / "qm9" / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert weights["model.read.weight"].numel() == 4 * (2 if target in ("mu", "r2") else 1)
