"""Training on dipoles and polarisabilities: the loss by hand, and a run with the errors of its potential."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.io import read, write

from eqlayers.cli.main import main
from eqlayers.integrations.ase import Calculator, predict
from eqlayers.models import TFN, Structures, load_potential
from eqlayers.train.potential import PotentialModule
from tests.train.waters import displaced_waters

pytestmark = pytest.mark.pictures
CONFIG = """
task: potential
name: tensors
runs: {folder}
data:
  path: {folder}/train.xyz
  split: random
  train: 12
  val: 4
  cutoff: 3.0
  units: {{dipole: Debye, polarizability: Bohr^3}}
  cache_dir: {folder}/cache
model:
  model:
    class_path: eqlayers.models.TFN
    init_args:
      species: [1, 8]
      hidden: 4x0e + 4x1o + 4x2e
      layers: 1
      radial_hidden: [8]
      properties: [dipole, polarizability]
trainer: {{accelerator: cpu, max_epochs: 2, log_every_n_steps: 1}}
"""


def waters(count: int) -> list[Atoms]:
    """Dipoles from fixed charges in Debye, polarisabilities along the bonds in Bohr^3; one of five without."""
    frames = list(displaced_waters(count))
    for number, atoms in enumerate(frames):
        pos = atoms.positions
        atoms.info["REF_dipole"] = 0.4 * (pos[1] + pos[2] - 2 * pos[0]) / units.Debye
        if number % 5:
            bonds = pos[1:] - pos[:1]
            atoms.info["REF_polarizability"] = (np.eye(3) + bonds.T @ bonds) / units.Bohr**3
    return frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tensors")
    write(made / "train.xyz", waters(20), format="extxyz")
    (made / "tensors.yaml").write_text(CONFIG.format(folder=made))
    assert main(["fit", "-c", str(made / "tensors.yaml")]) == 0
    return made


def test_the_loss_by_hand() -> None:
    torch.manual_seed(0)
    network = TFN([1, 8], "4x0e + 4x1o + 4x2e", layers=1, properties=("dipole", "polarizability"))
    made = PotentialModule(network.double(), dipole_weight=2.0, polarizability_weight=3.0)
    made.labels = ("dipole", "polarizability")
    made.potential.set_statistics({}, 1.0, None, {"dipole": 0.5, "polarizability": 0.25})
    made.log = lambda *_, **__: None  # type: ignore[method-assign,assignment]
    pos = torch.tensor([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], dtype=torch.float64)
    pairs = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    batch = SimpleNamespace(
        z=torch.tensor([8, 1, 1] * 2),
        pos=torch.cat([pos, 1.1 * pos]),
        edge_index=torch.cat([pairs, pairs + 3], 1),
        batch=torch.tensor([0, 0, 0, 1, 1, 1]),
        num_graphs=2,
        dipole=torch.ones(2, 3),
        polarizability=torch.stack([torch.eye(3), torch.full((3, 3), torch.nan)]),
        idx=torch.tensor([0, 1]),
    )
    predictions = made.potential(Structures.of(batch), made.labels, create_graph=False)
    dipole = (predictions["dipole"].detach() - 1).norm(dim=1) / (0.5 * 3**0.5)
    tensor = (predictions["polarizability"].detach()[0] - torch.eye(3)).norm() / (0.25 * 3**0.5)
    want = 2 * dipole.mean() + 3 * tensor  # the second structure has none
    assert float(made.training_step(batch, 0).detach()) == pytest.approx(float(want), rel=1e-12)


def test_the_errors_of_a_run_are_those_of_its_potential(folder: Path) -> None:
    run = folder / "tensors"
    metrics: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    assert metrics["labels"] == ["dipole", "polarizability"]
    for name in ("dipole", "polarizability"):
        assert (run / f"parity_{name}.png").stat().st_size > 5000
    potential = load_potential(run / "potential.pt")
    # root mean square of the components over the root of three atoms, of some twelve of the twenty
    labels = np.array([atoms.info["REF_dipole"] * units.Debye for atoms in waters(20)])
    scale = float(potential.split.get_buffer("dipole_scale"))
    assert scale == pytest.approx(np.sqrt(np.square(labels).mean() / 3), rel=0.2)
    config = ["-c", str(folder / "tensors.yaml"), "--name", "tensors"]
    assert main(["test", *config]) == 0
    assert main(["check", str(run / "potential.pt")]) == 0
    again = json.loads((run / "metrics.json").read_text())
    for name in ("test_dipole_mae_me_A", "test_polarizability_mae_A3"):
        assert again[name] == pytest.approx(metrics[name], rel=1e-6)


def test_labels_are_those_of_the_file_and_files_keep_predictions(folder: Path, capsys) -> None:
    frames = waters(20)
    model, output = str(folder / "tensors" / "potential.pt"), folder / "out.xyz"
    assert main(["predict", str(folder / "train.xyz"), "-m", model, "-o", str(output)]) == 0
    written = read(output, ":")
    results = list(predict(load_potential(model), frames))
    for atoms, result in zip(written, results, strict=True):
        assert set(result) == {"dipole", "polarizability"}
        assert atoms.get_dipole_moment() == pytest.approx(result["dipole"], abs=1e-5)  # places of 8 digits
        assert atoms.info["polarizability"] == pytest.approx(result["polarizability"], abs=1e-5)
    frames[0].calc = Calculator(model)
    assert frames[0].get_dipole_moment() == pytest.approx(results[0]["dipole"], abs=1e-6)
    assert frames[0].calc.implemented_properties == ["dipole", "polarizability"]
    capsys.readouterr()
    assert main(["predict", "-c", str(folder / "tensors.yaml"), "--name", "tensors"]) == 2
    assert "predictions must be of energies here" in capsys.readouterr().err


def test_what_is_predicted_must_be_labelled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["fit", "-c", str(folder / "tensors.yaml"), "--name", "bad"]
    assert main([*config, "--model.model.init_args.properties", "[energy, dipole]"]) == 2
    assert "the data must have labels for the network's predictions, got none of energy but dipole" in (
        capsys.readouterr().err
    )
