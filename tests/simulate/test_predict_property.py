"""Predictions of a property of molecules by the checkpoint of its training."""

from __future__ import annotations

import csv
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms

from eqlayers.cli.main import main
from tests.molecules_with_gap import write_molecules

TINY = ["--model.model.init_args.hidden=2x0e + 2x1o", "--model.model.init_args.layers=1", "--trainer.max_epochs=2"]
GAP = ["my.xyz", "--data.target=gap", "--data.unit=eV", "--data.train=8", "--data.val=4", "--data.test=12"]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A network of the gap of 24 molecules that was trained for two epochs."""
    monkeypatch.chdir(tmp_path)
    write_molecules()
    assert main(["fit", *GAP, *TINY]) == 0
    return "runs/my_gap/checkpoints/best.ckpt"


def test_predictions_of_a_file_by_a_checkpoint(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *GAP]) == 0
    with Path("runs/my_gap/predictions.csv").open() as file:
        rows = [
            {key: float(value) for key, value in row.items() if key in ("idx", "predicted")}
            for row in csv.DictReader(file)
        ]
    frames = ase.io.read("my.xyz", ":")
    turned = [atoms[::-1] for atoms in frames]
    for atoms in turned:
        atoms.rotate(37, (1, 2, 3))
        atoms.positions += [100.0, -3.0, 5.0]
    ase.io.write("turned.xyz", turned)
    capsys.readouterr()
    assert main(["predict", "my.xyz", "-m", checkpoint, "-o", "out.xyz", "--batch-size=5"]) == 0
    said = capsys.readouterr().out
    assert main(["predict", "turned.xyz", "-m", checkpoint, "-o", "out_turned.xyz"]) == 0
    out = ase.io.read("out.xyz", ":")
    predicted = np.array([atoms.info["gap"] for atoms in out])
    labels = np.array([atoms.info["gap"] for atoms in frames])
    tolerance = 1e-5 * np.abs(predicted).max()  # float32: sums of some hundred terms
    assert len(rows) == 12
    assert np.ptp(predicted) > 100 * tolerance
    for row in rows:
        assert row["predicted"] == pytest.approx(predicted[int(row["idx"])], abs=tolerance)
    again = [atoms.info["gap"] for atoms in ase.io.read("out_turned.xyz", ":")]
    np.testing.assert_allclose(again, predicted, rtol=0, atol=tolerance)
    np.testing.assert_array_equal([atoms.info["REF_gap"] for atoms in out], labels)
    np.testing.assert_array_equal([atoms.info["volume"] for atoms in out], [atoms.info["volume"] for atoms in frames])
    assert "24 of gap, taken as eV" in said
    assert f"error of gap  mean {np.abs(predicted - labels).mean():.4g}, root mean square" in said
    capsys.readouterr()
    assert main(["predict", "out.xyz", "-m", checkpoint, "-o", "twice.xyz"]) == 0
    assert f"error of gap  mean {np.abs(predicted - labels).mean():.4g}, root mean square" in capsys.readouterr().out
    assert "given_gap" not in Path("twice.xyz").read_text()


def test_what_a_property_cannot_predict(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    ase.io.write("other.xyz", [Atoms("OH", [[0, 0, 0], [0, 0, 1]]), Atoms("CO", [[0, 0, 0], [0, 0, 1]])])
    assert main(["predict", "other.xyz", "-m", checkpoint, "-o", "out.xyz"]) == 2
    assert "structures[1] must be of the model's species H, O, got also C" in capsys.readouterr().err
    assert not Path("out.xyz").exists()
    ase.io.write("box.xyz", Atoms("OH", [[0, 0, 0], [0, 0, 1]], cell=[9, 9, 9], pbc=True))
    assert main(["predict", "box.xyz", "-m", checkpoint, "-o", "out.xyz"]) == 2
    assert "structures[0] must have no period" in capsys.readouterr().err
    for command in ("md my.xyz -m {} -o md.traj --steps 1", "relax my.xyz -m {} -o out.xyz", "check {}"):
        assert main(command.format(checkpoint).split()) == 2
        assert "predicts gap (eV), not energies" in capsys.readouterr().err
    assert main(["info", checkpoint]) == 0
    said = capsys.readouterr().out
    assert "gap (eV), one number a molecule, not energies" in said
    assert "eqlayers.models.MoleculeNetwork(species=['H', 'O']" in said
