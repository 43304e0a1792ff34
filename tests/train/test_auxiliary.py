"""Further labels beside the target: losses, gradients, metrics, reports, resumed runs, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback

from eqlayers.cli.main import main
from eqlayers.data import MoleculeDataModule
from eqlayers.errors import ConfigError
from eqlayers.models import MoleculeNetwork, Structures
from eqlayers.models.molecule import load_property
from eqlayers.train import PropertyModule, trainer_options
from tests.molecules_with_gap import write_molecules

WEIGHTS = {"charges": 1.5, "zpve": 0.5, "dipole": 0.25}
OUTPUTS = {"charges": "atom", "zpve": "sum", "dipole": "vector", "energy": "sum"}
TINY = [
    *("--model.model.init_args.hidden=2x0e + 2x1o", "--model.model.init_args.layers=1", "--data.limit_train=64"),
    *("--model.model.init_args.lmax=1", "--data.eval_batch_size=256"),
]


def small(**options: Any) -> MoleculeNetwork:
    torch.manual_seed(0)
    return MoleculeNetwork(hidden="4x0e + 4x1o", layers=1, radial_hidden=(8,), **options)


@pytest.fixture
def fit(make_data: Callable[..., MoleculeDataModule], tmp_path: Path) -> Callable[..., Any]:
    """Train the small network on the embedded set with further labels; one epoch is three steps."""

    def run(
        *callbacks: Callback, epochs: int = 1, **options: Any
    ) -> tuple[Trainer, PropertyModule, MoleculeDataModule]:
        seed_everything(7, verbose=False)
        data = make_data(**{"auxiliary": WEIGHTS} | options)
        module = PropertyModule(small(auxiliary=OUTPUTS, sum_of=("energy", "zpve")), learning_rate=1e-2, warmup_steps=2)
        parts = trainer_options(tmp_path / "run", facts={"seed": 7}, progress=False)
        parts["callbacks"] += callbacks
        trainer = Trainer(max_epochs=1, accelerator="cpu", log_every_n_steps=1, **parts)
        trainer.fit(module, datamodule=data)
        return trainer, module, data

    return run


class Losses(Callback):
    """The loss of each step, and what it must be by hand; parameters without a gradient."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []
        self.still: set[str] = set()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        data, deviation = trainer.datamodule, trainer.datamodule.statistics
        with torch.no_grad():
            values = pl_module.model.outputs(batch.z, batch.pos, batch.edge_index, batch.batch, batch.num_graphs)
        has = ~torch.isnan(batch.y)
        energy = (values["energy"] - batch.auxiliary_3)[~has].abs().sum()
        parts = {
            "y": ((values["y"] - batch.y)[has].abs().sum() + energy) / deviation.scale / len(has),
            "charges": (values["charges"] - batch.auxiliary_0).abs().mean() / deviation.auxiliary["charges"][1],
            "zpve": (values["zpve"] - batch.auxiliary_1)[has].abs().mean() / deviation.scale,
            "dipole": (values["dipole"] - batch.auxiliary_2)[has].norm(dim=1).mean() / deviation.auxiliary["dipole"][1],
        }
        self.expected = sum(({"y": 1.0} | data.auxiliary)[name] * float(part) for name, part in parts.items())

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.still |= {
            name for name, p in pl_module.model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
        }
        weight = pl_module.model.read_auxiliary.weight
        assert int((weight.grad != 0).sum()) == weight.numel(), "a read-out learns nothing"

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
        self.pairs.append((float(outputs["loss"]), self.expected))


def test_the_loss_by_hand_reaches_every_readout(fit: Callable[..., Any]) -> None:
    kept = Losses()
    fit(kept)
    assert len(kept.pairs) == 3
    assert [loss for loss, _ in kept.pairs] == pytest.approx([expected for _, expected in kept.pairs], rel=1e-5)
    assert not kept.still


def test_molecules_without_the_target_teach_the_energy(fit: Callable[..., Any], tmp_path: Path) -> None:
    with np.load("examples/data/mini_qm9_xtb.npz") as file:
        atoms = int(file["n_atoms"][:40].sum())
        arrays = {name: file[name][:40] for name in ("n_atoms", "energy")}
        arrays |= {name: file[name][:atoms] for name in ("z", "charges")} | {"pos": file["pos"][:atoms] * 1.01}
    np.savez(tmp_path / "more.npz", smiles=np.array([f"X{n}" for n in range(40)], dtype="S9"), **arrays)
    kept = Losses()
    _, _, data = fit(kept, extra=str(tmp_path / "more.npz"))
    assert len(data.train_set) == 136
    assert [loss for loss, _ in kept.pairs] == pytest.approx([expected for _, expected in kept.pairs], rel=1e-5)
    assert len(kept.pairs) == 5


def test_errors_of_further_labels_are_reported(fit: Callable[..., Any], tmp_path: Path) -> None:
    trainer, module, data = fit()
    (result,) = trainer.test(module, datamodule=data, verbose=False)
    part, error = data.test_set.taken, {}
    with torch.no_grad():
        for batch in data.test_dataloader():
            for key, value in module.outputs(batch).items():
                error.setdefault(key, []).append((value - batch[key]).numpy())
    sizes = {key: np.abs(np.concatenate(parts)).mean() for key, parts in error.items()}
    expected = {"U0_mae_meV": 1e3 * sizes["y"], "charges_mae_e": sizes["auxiliary_0"]}
    expected |= {"zpve_mae_meV": 1e3 * sizes["auxiliary_1"], "dipole_mae_me_A": 1e3 * sizes["auxiliary_2"]}
    expected["energy_mae_meV"] = 1e3 * sizes["auxiliary_3"]
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for name, value in expected.items():
        assert result[f"test/{name}"] == pytest.approx(value, rel=1e-6)
        assert written[f"test_{name}"] == pytest.approx(value, rel=1e-6)
    shifts = data.statistics.auxiliary["charges"][0]
    rest = part.auxiliary["charges"].values - np.array([shifts[z] for z in part.z])
    assert written["baseline_charges_mae_e"] == pytest.approx(np.abs(rest).mean(), rel=1e-6)
    assert written["test_charges_on_O_mae_e"] > 0
    val = trainer.callback_metrics
    assert set(val) >= {"test/U0_mae_meV"}
    assert (tmp_path / "run" / "parity_charges.png").is_file()


def test_the_network_must_have_the_outputs(make_data: Callable[..., Any], make_run: Callable[..., Any]) -> None:
    trainer, module, data = make_run(data=make_data(auxiliary={"charges": 1.0}))
    with pytest.raises(ConfigError, match=r"further outputs for data.auxiliary \(charges\), got PairNetwork"):
        trainer.fit(module, datamodule=data)
    module.model = small(auxiliary={"charges": "sum"})
    with pytest.raises(ConfigError, match=r"must be \{'charges': 'atom'\} and \[\], .* got \{'charges': 'sum'\}"):
        trainer.fit(module, datamodule=data)


# ---- commands -------------------------------------------------------------------------------------------------------
@pytest.fixture
def command(tmp_path: Path, cache: Path) -> Callable[..., int]:
    def run(name: str, *words: str, run: str = "a") -> int:
        root = Path(__file__).resolve().parents[2]
        options = [f"--runs={tmp_path}", f"--name={run}", f"--data.cache_dir={cache}", *TINY]
        return main([name, "-c", str(root / "configs/qm9_mini.yaml"), *options, *words])

    return run


AUXILIARY = ("--data.auxiliary.charges", "1.0", "--data.auxiliary.zpve", "0.5")


def state(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)["state_dict"]


def test_a_run_that_goes_on_equals_one_that_was_not_stopped(command: Callable[..., int], tmp_path: Path) -> None:
    last = "checkpoints/last.ckpt"
    plan = ("--test_after_fit=false", "--model.final_factor=1.0", "--model.warmup_steps=0")
    assert command("fit", *AUXILIARY, *plan, "--trainer.max_epochs=2", run="whole") == 0
    assert command("fit", *AUXILIARY, *plan, "--trainer.max_epochs=1", run="parts") == 0
    first = state(tmp_path / "parts" / last)
    assert command("fit", *AUXILIARY, *plan, "--trainer.max_epochs=2", "--resume", run="parts") == 0
    whole, parts = state(tmp_path / "whole" / last), state(tmp_path / "parts" / last)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    name = "model.read_auxiliary.weight"
    assert not torch.equal(first[name], parts[name]), "the second epoch trains"


def test_a_checkpoint_of_a_command_predicts_the_same(command: Callable[..., int], tmp_path: Path) -> None:
    assert command("fit", *AUXILIARY, "--trainer.max_epochs=1") == 0
    saved = (tmp_path / "a" / "config.yaml").read_text()
    assert "sum_of:\n      - energy\n      - zpve" in saved
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert {"test_U0_mae_meV", "test_charges_mae_e", "test_zpve_mae_meV"} <= metrics.keys()
    learned = load_property(tmp_path / "a" / "checkpoints" / "best.ckpt")
    assert learned is not None
    data = MoleculeDataModule(cutoff=3.5, limit_train=64, eval_batch_size=256, cache_dir=str(tmp_path / "cache"))
    data.setup()
    errors = []
    with torch.no_grad():
        for batch in data.test_dataloader():
            known = Structures(batch.z, batch.pos, batch.edge_index, batch.batch, batch.num_graphs)
            errors += (learned(known) - batch.y).abs().tolist()
    assert metrics["test_U0_mae_meV"] == pytest.approx(1e3 * np.mean(errors), rel=1e-6)
    assert command("test", *AUXILIARY) == 0
    again = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert again["test_charges_mae_e"] == metrics["test_charges_mae_e"]


def test_a_network_without_further_outputs(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model.model=tests.train.conftest.PairNetwork", "--model.model.init_args={}"]
    root = Path(__file__).resolve().parents[2]
    options = ["--data.target=U0", "--data.auxiliary.charges=1.0", *words]
    assert main(["fit", *options]) == 2
    said = capsys.readouterr().err
    assert "model.model must be a network with further outputs for data.auxiliary, got tests.train" in said, root
    assert command("fit", "--data.auxiliary.charge=1.0") == 2
    assert "auxiliary must be further labels of the data (charges, dipole, energy, mu" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::eqlayers.errors.EqlayersWarning")
def test_own_molecules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of any names, of which some molecules of the training part have no target."""
    monkeypatch.chdir(tmp_path)
    write_molecules()
    frames = ase.io.read("my.xyz", ":")
    for atoms in frames:
        atoms.arrays["part"] = 0.1 * atoms.numbers + atoms.positions[:, 1]
        atoms.info["refractive index"] = atoms.info["volume"] / len(atoms)
    del frames[0].info["gap"]
    ase.io.write("my.xyz", frames)
    assert main(["new", "my.xyz", "--target", "gap"]) == 0
    auxiliary = "--data.auxiliary={part: 1.0, refractive index: 0.5, volume: 0.1}"
    assert main(["fit", "my_gap.yaml", auxiliary, *TINY[:2], "--trainer.max_epochs=1"]) == 0
    metrics = json.loads(Path("runs/my_gap/metrics.json").read_text())
    names = ("gap", "part", "part_on_O", "refractive_index", "volume")
    assert all(metrics[f"test_{name}_mae_unit_of_the_file"] > 0 for name in names)
    assert metrics["num_train"] == 20
    assert "refractive index: mean" in Path("runs/my_gap/config.yaml").read_text()
