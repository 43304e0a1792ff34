"""float64 training is float64 from the checkpoint on, and shorter numbers are refused; errors by configuration type."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.io import read, write

from eqlayers.cli.main import main
from eqlayers.integrations.ase import predict
from eqlayers.models import load_potential
from eqlayers.train import checkpoint_path, read_checkpoint
from eqlayers.train.potential import PotentialModule


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pairs of atoms on springs, half of them stretched; one of these has no forces."""
    frames = []
    for number in range(16):
        stretched = number % 2
        length = 1.0 + 0.2 * stretched + 0.01 * number
        atoms = Atoms("OH", [[0, 0, 0], [0, 0, length]])
        atoms.info |= {"REF_energy": (length - 1) ** 2, "config_type": "stretched" if stretched else "near rest"}
        if number != 15:
            atoms.arrays["REF_forces"] = np.array([[0, 0, 2.0], [0, 0, -2.0]]) * (length - 1)
        frames.append(atoms)
    write(tmp_path / "train.xyz", frames, format="extxyz")
    network = {"species": [1, 8], "hidden": "4x0e + 4x1o", "lmax": 1, "layers": 2, "radial_hidden": [8]}
    config = {
        "task": "potential",
        "report": False,
        "runs": "runs",
        "data": {"path": "train.xyz", "test_path": "train.xyz", "val": 4, "cutoff": 3.0, "cache_dir": "cache"},
        "model": {"model": {"class_path": "eqlayers.models.NequIP", "init_args": network}},
        "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


WARNINGS = pytest.mark.filterwarnings("ignore:.*(structures are in the training part|are NaN or missing)")


@WARNINGS
def test_training_in_float64(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fit = ["fit", "-c", "run.yaml", "--trainer.precision", "64-true"]
    assert main([*fit, "--name", "short"]) == 2
    assert "data.dtype must be the dtype of the network, float64, got float32. Set" in capsys.readouterr().err
    fit += ["--data.dtype", "float64", "--test_after_fit", "false"]
    assert main([*fit, "--name", "whole"]) == 0
    step = PotentialModule.training_step

    def interrupted(self: PotentialModule, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.current_epoch == 1:
            raise RuntimeError("stop")
        return step(self, batch, batch_idx)

    monkeypatch.setattr(PotentialModule, "training_step", interrupted)
    with pytest.raises(RuntimeError, match="stop"):
        main([*fit, "--name", "parts"])
    monkeypatch.setattr(PotentialModule, "training_step", step)
    assert main([*fit, "--name", "parts", "--resume"]) == 0
    whole, parts = (read_checkpoint(checkpoint_path(f"runs/{name}", "last")) for name in ("whole", "parts"))
    for part in ("state_dict", "current_model_state"):
        assert whole[part].keys() == parts[part].keys()
        assert all(torch.equal(whole[part][name], parts[part][name]) for name in whole[part])
        weights = [value for value in whole[part].values() if value.is_floating_point()]
        assert all(value.dtype == torch.float64 for value in weights)
        assert sum(not torch.equal(value, value.float().double()) for value in weights) > 5
    assert load_potential(checkpoint_path("runs/parts", "last")).dtype == torch.float64


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-true", "bf16-true"])
def test_short_numbers_are_refused(place: Path, precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "-c", "run.yaml", "--trainer.precision", precision]) == 2
    assert "trainer.precision must be 32-true or 64-true, got" in capsys.readouterr().err
    assert not (place / "runs").exists()


@WARNINGS
def test_errors_by_configuration_type(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "-c", "run.yaml", "--name", "groups", "--trainer.max_epochs", "1"]) == 0
    assert "forces of near rest" in capsys.readouterr().out
    metrics = json.loads((place / "runs/groups/metrics.json").read_text())
    frames = read(place / "train.xyz", ":")
    results = list(predict(load_potential(place / "runs/groups/potential.pt"), frames, batch_size=3))
    for group in ("near rest", "stretched"):
        of_group = [(f, r) for f, r in zip(frames, results, strict=True) if f.info["config_type"] == group]
        energies = [1000 * abs(r["energy"] - f.info["REF_energy"]) for f, r in of_group]
        forces = [1000 * np.abs(r["forces"] - f.arrays["REF_forces"]) for f, r in of_group if "REF_forces" in f.arrays]
        key = group.replace(" ", "_")
        assert metrics[f"test_energy_of_{key}_mae_meV"] == pytest.approx(np.mean(energies), rel=1e-4)
        assert metrics[f"test_forces_of_{key}_mae_meV_A"] == pytest.approx(np.mean(forces), rel=1e-4)
