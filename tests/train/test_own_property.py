"""A property of own molecules in the commands: from a file to a configuration, a fit and its tests."""

import json
from pathlib import Path

import ase.io
import pytest
import yaml

from eqlayers.cli.main import main
from tests.molecules_with_gap import write_molecules

TINY = ["--model.model.init_args.hidden=2x0e + 2x1o", "--model.model.init_args.layers=1", "--trainer.max_epochs=2"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with molecules that have a volume, which grows with them, and a gap, which does not."""
    monkeypatch.chdir(tmp_path)
    write_molecules()
    return tmp_path


def test_a_configuration_says_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "my.xyz", "--target", "gap", "--unit", "eV"]) == 0
    text = Path("my_gap.yaml").read_text()
    settings = yaml.safe_load(text)
    data, network = settings["data"], settings["model"]["model"]
    assert (settings["task"], settings["name"]) == ("property", "my_gap")
    assert (data["target"], data["unit"], data["extensive"]) == ("gap", "eV", False)
    assert network["class_path"] == "eqlayers.models.MoleculeNetwork"
    assert (network["init_args"]["species"], network["init_args"]["pooling"]) == (["H", "O"], "mean")
    assert "e0s" not in data
    assert max(map(len, text.splitlines())) <= 120
    said = capsys.readouterr().out
    assert "my.xyz: 24 structures of 2 to 5 atoms of H, O, not periodic; gap" in said
    assert "pooling  False: it does not grow with the molecule: means over atoms fit to" in said


def test_what_grows_with_the_molecule_is_added_up() -> None:
    assert main(["new", "my.xyz", "--target", "volume"]) == 0
    settings = yaml.safe_load(Path("my_volume.yaml").read_text())
    assert settings["data"]["extensive"] is True
    assert settings["data"]["unit"] == "unit of the file"
    assert settings["model"]["model"]["init_args"]["pooling"] == "sum"


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "my.xyz", "--target", "gap,volume"]) == 2
    assert "target must be a name in my.xyz, got 'gap,volume'; it has gap, volume" in capsys.readouterr().err
    assert main(["new", "my.xyz"]) == 2
    assert "or learn one property: --target" in capsys.readouterr().err


def test_a_fit_of_a_file_its_test_and_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["my.xyz", "--data.target=gap", "--data.unit=eV"]
    assert main(["fit", *typed, *TINY]) == 0
    said = capsys.readouterr().out
    assert "eqlayers new my.xyz --target gap" in said
    metrics = json.loads(Path("runs/my_gap/metrics.json").read_text())
    assert metrics["target"] == "gap"
    assert metrics["unit"] == "eV"
    assert metrics["test_gap_mae_eV"] > 0
    assert metrics["num_test"] == 2
    assert "Mean absolute errors on 2 test structures: gap " in Path("runs/my_gap/report.html").read_text()
    assert main(["test", *typed]) == 0
    assert json.loads(Path("runs/my_gap/metrics.json").read_text())["test_gap_mae_eV"] == metrics["test_gap_mae_eV"]
    assert main(["predict", *typed]) == 0
    assert len(Path("runs/my_gap/predictions.csv").read_text().splitlines()) == 3


def test_errors_of_several_files_are_of_their_own_molecules() -> None:
    """Rows of several files have the same numbers."""
    frames = ase.io.read("my.xyz", ":")
    ase.io.write("a.xyz", frames[20:22])
    ase.io.write("b.xyz", frames[22:])
    ase.io.write("c.xyz", frames[:20])
    options = ["--data.target=gap", "--data.path=c.xyz", "--data.test_path=[a.xyz, b.xyz]", "--task=property"]
    network = ["--model.model=eqlayers.models.MoleculeNetwork", "--model.model.init_args.pooling=mean"]
    assert main(["fit", *options, *network, *TINY, "--name=parts"]) == 0
    page = Path("runs/parts/report.html").read_text()
    for atoms in frames[20:]:
        assert f"<td>{atoms.get_chemical_formula()}</td>" in page.replace(' class="left"', "")


def test_several_targets_in_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "my.xyz", "--target", "gap"]) == 0
    text = Path("my_gap.yaml").read_text().replace("target: gap ", "target: [gap, volume] ")
    Path("two.yaml").write_text(text)
    assert main(["fit", "two.yaml"]) == 2
    assert "target must be the name of one property in the file" in capsys.readouterr().err
