"""Training on energies, forces and stress: losses and errors by hand, resumption, files, and the command."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import write
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from eqlayers.cli.main import main
from eqlayers.data import StructureDataModule
from eqlayers.errors import ConfigError
from eqlayers.models import NequIP, load_potential
from eqlayers.train import checkpoint_path, read_checkpoint, trainer_options
from eqlayers.train.base import Plan, warmup_cosine
from eqlayers.train.history import read_history
from eqlayers.train.potential import PotentialModule
from tests.train.waters import displaced_waters, label_by_springs

pytestmark = pytest.mark.filterwarnings("ignore:.*are NaN or missing")

SMALL = {"species": [1, 8], "hidden": "4x0e + 4x1o", "lmax": 1, "layers": 2, "cutoff": 3.0, "radial_hidden": [8]}


def module(**options: object) -> PotentialModule:
    torch.manual_seed(0)
    made = PotentialModule(NequIP(**SMALL).double(), **options)  # type: ignore[arg-type]
    made.labels = ("energy", "forces", "stress")
    return made


def batch(missing: bool = False) -> SimpleNamespace:
    """Two waters in boxes without images within reach; of the second one forces may be missing."""
    made = torch.Generator().manual_seed(1)
    water = torch.tensor([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], dtype=torch.float64)
    pos = torch.cat([water, water * 1.1])
    one = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    forces = torch.randn(6, 3, generator=made, dtype=torch.float64)
    if missing:
        forces[3:] = torch.nan
    return SimpleNamespace(
        z=torch.tensor([8, 1, 1, 8, 1, 1]),
        pos=pos,
        edge_index=torch.cat([one, one + 3], 1),
        shifts=torch.zeros(12, 3, dtype=torch.float64),
        cell=torch.stack([10.0 * torch.eye(3, dtype=torch.float64)] * 2),
        batch=torch.tensor([0, 0, 0, 1, 1, 1]),
        num_graphs=2,
        energy=torch.tensor([-3.0, -2.5], dtype=torch.float64),
        forces=forces,
        stress=torch.randn(2, 3, 3, generator=made, dtype=torch.float64) * 1e-3,
        idx=torch.tensor([0, 1]),
    )


def logged(made: PotentialModule) -> dict[str, float]:
    """Values that a module logs, without a trainer."""
    kept: dict[str, float] = {}
    made.log = lambda name, value, **_: kept.update({name: value})  # type: ignore[method-assign,assignment]
    return kept


def test_the_loss_by_hand() -> None:
    made, data = module(energy_weight=2.0, forces_weight=3.0, stress_weight=5.0), batch()
    made.scale.fill_(0.7)
    logged(made)
    terms = {name: value.detach() for name, value in made(data).items()}
    energy = (terms["energy"] - data.energy).abs() / (3 * 0.7)
    forces = (terms["forces"] - data.forces).norm(dim=1) / 0.7
    stress = ((terms["stress"] - data.stress) * 1000.0 / (3 * 0.7)).flatten(1).norm(dim=1)
    want = 2 * energy.mean() + 3 * forces.mean() + 5 * stress.mean()
    assert float(made.training_step(data, 0).detach()) == pytest.approx(float(want), rel=1e-12)


@pytest.mark.parametrize(("loss", "by_hand"), [("mse", lambda e: e**2), ("huber", lambda e: 0.5 * e**2)])
def test_other_losses(loss: str, by_hand: object) -> None:
    made, data = module(loss=loss, forces_weight=0.0, stress_weight=0.0), batch()
    made.scale.fill_(100.0)  # within the quadratic part
    logged(made)
    error = (made(data)["energy"].detach() - data.energy) / 300.0
    assert float(made.training_step(data, 0).detach()) == pytest.approx(float(by_hand(error).mean()), rel=1e-12)  # type: ignore[operator]


def test_weights_by_species() -> None:
    data = batch()
    full, half = (
        module(energy_weight=0.0, stress_weight=0.0),
        module(energy_weight=0.0, stress_weight=0.0, species_weights={8: 0.0}),
    )
    for made in (full, half):
        logged(made)
    errors = (full(data)["forces"].detach() - data.forces).norm(dim=1)
    assert float(full.training_step(data, 0).detach()) == pytest.approx(float(errors.mean()))
    assert float(half.training_step(data, 0).detach()) == pytest.approx(float(errors[[1, 2, 4, 5]].sum() / 6))


def test_weights_by_config_type() -> None:
    """Energies, forces and stress have the weights of their groups in each part."""
    data = batch()
    data.group = torch.tensor([0, 1])
    parts = {"train_set": SimpleNamespace(groups=("bulk", "slab")), "val_set": SimpleNamespace(groups=("slab", "wire"))}
    for name in ("energy", "forces", "stress"):
        made = module(
            config_type_weights={"Default": 0.5, "slab": 3.0},
            **{f"{other}_weight": 0.0 for other in ("energy", "forces", "stress") if other != name},
        )
        logged(made)
        made._val_sums = {label: torch.zeros(2, dtype=torch.float64) for label in made.labels}
        made._group_weights = made._read_group_weights(SimpleNamespace(**parts))
        rows = {key: (value - label) * factor for key, value, label, factor in made.rows(data, made(data))}
        errors = rows[name].detach().norm(dim=-1)
        for stage, weights in (("train", [0.5, 3.0]), ("val", [3.0, 0.5])):
            weight = torch.tensor(weights, dtype=torch.float64)
            weighted = float((errors * (weight[data.batch] if name == "forces" else weight)).mean())
            assert float(made._step(data, stage, 0).detach()) == pytest.approx(weighted, rel=1e-12)
        assert float(made._val_sums[name][0] / made._val_sums[name][1]) == pytest.approx(weighted, rel=1e-12)


def test_weights_of_a_group_that_is_not_there(tmp_path: Path) -> None:
    frames = list(displaced_waters(20))
    for number, atoms in enumerate(frames):
        atoms.info |= {"config_type": "dimer" if number % 2 else "liquid", "REF_energy": -3.0 - 0.1 * number}
    write(tmp_path / "waters.xyz", frames)
    made = PotentialModule(NequIP(**SMALL), config_type_weights={"dimr": 2.0})
    data = StructureDataModule(str(tmp_path / "waters.xyz"), cutoff=3.0, cache_dir=str(tmp_path))
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with pytest.raises(ConfigError, match=r"model.config_type_weights must name groups .* dimer, liquid, .* got dimr"):
        Trainer(**options, default_root_dir=tmp_path).fit(made, data)  # type: ignore[arg-type]


def test_labels_that_are_missing_do_not_count() -> None:
    made, data = module(energy_weight=0.0, stress_weight=0.0), batch(missing=True)
    kept = logged(made)
    errors = (made(data)["forces"].detach() - data.forces)[:3]
    assert float(made.training_step(data, 0).detach()) == pytest.approx(float(errors.norm(dim=1).mean()))
    assert float(kept["train/forces_mae_meV_A"].compute()) == pytest.approx(1000 * float(errors.abs().mean()))  # type: ignore[attr-defined]


def test_weights_by_species_are_of_the_atoms_that_have_labels() -> None:
    data, made = batch(), module(energy_weight=0.0, stress_weight=0.0, species_weights={8: 0.0, 1: 2.0})
    data.forces[[0, 1]] = torch.nan
    logged(made)
    errors = (made(data)["forces"].detach() - data.forces).norm(dim=1)
    want = 2 * errors[[2, 4, 5]].sum() / 4  # atom 3 is oxygen
    assert float(made.training_step(data, 0).detach()) == pytest.approx(float(want))


def test_errors_are_in_the_units_that_their_names_say() -> None:
    made, data = module(), batch()
    kept = logged(made)
    made.training_step(data, 0)
    error = (made(data)["energy"].detach() - data.energy).abs()
    assert float(kept["train/energy_mae_meV"].compute()) == pytest.approx(1000 * float(error.mean()))  # type: ignore[attr-defined]
    assert float(kept["train/energy_per_atom_mae_meV"].compute()) == pytest.approx(1000 * float(error.mean()) / 3)  # type: ignore[attr-defined]
    assert set(kept) <= set(made.logged_names(None))


def test_the_second_stage_begins_where_it_is_told() -> None:
    made = module(second_stage=0.75, second_energy_weight=50.0, forces_weight=100.0, stress_weight=3.0)
    assert made.loss_weights()["energy"] == 1.0
    made.plan = Plan(10, 100, 0, 0.0)
    for step, energy in ((74, 1.0), (75, 50.0)):
        made.step = step
        weights = made.loss_weights()
        assert (weights["energy"], weights["forces"], weights["stress"]) == (energy, 100.0, 3.0), "others are inherited"
    other = module(second_stage=0.5, second_forces_weight=2.0, energy_weight=7.0)
    other.plan, other.step = Plan(10, 100, 0, 0.0), 60
    assert (other.loss_weights()["energy"], other.loss_weights()["forces"]) == (7.0, 2.0)


def test_bad_options() -> None:
    for options, message in (
        ({"loss": "l3"}, r"model\.loss must be one of"),
        ({"forces_weight": -1.0}, r"model\.forces_weight must be"),
        ({"second_stage": 2.0}, r"model\.second_stage must be"),
        ({"second_stage": 0.5}, r"model\.second_stage must have a weight"),
        ({"species_weights": {1: "x"}}, "the weight of H must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            module(**options)
    with pytest.raises(ConfigError, match=r"model\.model\.species must"):
        PotentialModule(torch.nn.Linear(1, 1))


# -- the command ------------------------------------------------------------------------------------------------------

CONFIG = """
task: potential
name: small
runs: {folder}
data:
  path: {folder}/train.xyz
  split: random
  train: 12
  val: 4
  cutoff: 3.0
  cache_dir: {folder}/cache
model:
  model:
    class_path: eqlayers.models.NequIP
    init_args: {{species: [1, 8], hidden: 4x0e + 4x1o, lmax: 1, layers: 2, radial_hidden: [8]}}
trainer: {{accelerator: cpu, max_epochs: 2, log_every_n_steps: 1}}
"""


def waters(count: int) -> list[Atoms]:
    """Frames with the energies and forces of springs, some of them without forces."""
    frames = list(displaced_waters(count))
    for number, atoms in enumerate(frames):
        pulls = label_by_springs(atoms)
        if number % 5:
            atoms.arrays["REF_forces"] = pulls.sum(1)
    return frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("potential")
    write(made / "train.xyz", waters(20), format="extxyz")
    (made / "small.yaml").write_text(CONFIG.format(folder=made))
    assert main(["fit", "-c", str(made / "small.yaml")]) == 0
    return made


def test_a_run_leaves_a_potential_that_is_ready_for_use(folder: Path) -> None:
    run = folder / "small"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["num_test"] == 4
    assert metrics["test_forces_mae_meV_A"] > 0
    assert {"parity_energy.png", "parity_forces.png", "learning_curve.png"} <= {path.name for path in run.iterdir()}
    potential, again = load_potential(run / "potential.pt"), load_potential(run / "checkpoints" / "best.ckpt")
    for (name, value), (other, same) in zip(potential.state_dict().items(), again.state_dict().items(), strict=True):
        assert (name, torch.equal(value, same)) == (other, True)
    assert main(["check", str(run / "potential.pt")]) == 0


def test_what_does_not_fit_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(folder / "small.yaml")
    for options, message in (
        (["--model.model.init_args.species", "[1]"], "the network must know every species of the data"),
        (["--task", "potentials"], "task must be one of property, potential"),
        (["--early_stopping.monitor", "val/force"], "early_stopping.monitor must be one of"),
        (["--checkpoint.monitor", "val/force"], "checkpoint.monitor must be one of"),
    ):
        assert main(["fit", "-c", config, "--name", "bad", *options]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("default:the val part has no")
def test_validation_is_by_labels_that_it_has(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without forces in its part, the error of the forces is no number that epochs can be compared by."""
    frames = waters(24)[20:]
    for atoms in frames:
        atoms.arrays.pop("REF_forces", None)
    write(folder / "val.xyz", frames, format="extxyz")
    more = ["--data.train", "null", "--data.val", "null", "--data.val_path", str(folder / "val.xyz")]
    config = ["fit", "-c", str(folder / "small.yaml"), "--name", "watched", *more, "--test_after_fit", "false"]
    assert main([*config, "--trainer.max_epochs", "1"]) == 0
    assert "warning: the val part has no forces: no error of it is reported" in capsys.readouterr().err
    summary = json.loads((folder / "watched" / "summary.json").read_text())
    assert summary["error"] == "energy_per_atom_mae_meV"
    (row,) = json.loads((folder / "watched" / "history.json").read_text())
    assert row["val_mae"] > 0  # not NaN
    for atoms in frames:
        del atoms.info["REF_energy"]
    write(folder / "val.xyz", frames, format="extxyz")
    assert main([*config, "--name", "unlabelled"]) == 2
    assert "the validation part must have one of the labels of the training part, energy, forces, got" in (
        capsys.readouterr().err
    )


def test_only_epochs_with_a_validation_have_its_error(folder: Path) -> None:
    more = ["--trainer.max_epochs", "5", "--trainer.check_val_every_n_epoch", "2", "--test_after_fit", "false"]
    assert main(["fit", "-c", str(folder / "small.yaml"), "--name", "seldom", *more]) == 0
    history = read_history(folder / "seldom")
    assert [math.isfinite(row["val_mae"]) for row in history] == [False, True, False, True, True]  # and the last


@pytest.mark.filterwarnings("ignore::eqlayers.errors.EqlayersWarning")  # of few structures, and of copies
def test_test_structures_that_were_trained_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused where another split draws them; of a file of its own the share is printed, and in the metrics."""
    config, more = ["-c", str(folder / "small.yaml"), "--name", "kept"], ["--test_after_fit", "false"]
    assert main(["fit", *config, *more]) == 0
    saved = read_checkpoint(checkpoint_path(folder / "kept", "last"))["eqlayers_structures"]
    assert {name: len(hashes) for name, hashes in saved.items()} == {"train": 12, "val": 4, "test": 4, "start": 0}
    on = ["--resume", "--trainer.max_epochs", "3", *more]
    capsys.readouterr()
    for options in (["test", "--data.split_seed", "7"], ["fit", "--data.split_seed", "7", *on]):
        assert main([options[0], *config, *options[1:]]) == 2
        said = capsys.readouterr().err
        assert re.search(r"must hold no structure that the checkpoint was trained on, got \d of 4", said)
    assert main(["fit", *config, "--data.train", "10", *on]) == 2
    assert "the val part must hold no structure" in capsys.readouterr().err
    assert main(["fit", *config, *on]) == 0
    assert main(["test", *config]) == 0
    assert "trained on" not in capsys.readouterr().out
    assert main(["test", *config, "--data.test_path", str(folder / "train.xyz")]) == 0
    assert "12 of 20 test structures, 60%, were trained on" in capsys.readouterr().out
    assert json.loads((folder / "kept" / "metrics.json").read_text())["test_trained_share"] == 0.6
    assert "test structures, 60%, were trained on" in (folder / "kept" / "report.html").read_text()


def test_settings_that_a_checkpoint_overrides_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, quick = ["fit", "-c", str(folder / "small.yaml"), "--name", "held"], ["--test_after_fit", "false"]
    assert main([*config, *quick, "--trainer.max_epochs", "1"]) == 0
    assert "of the checkpoint hold" not in capsys.readouterr().out
    before = load_potential(checkpoint_path(folder / "held", "last")).shifts
    asked = ["--data.e0s", "{H: -1.5, O: -2.5}", "--model.weight_decay", "0.5", "--early_stopping.patience", "77"]
    assert main([*config, *quick, "--resume", *asked]) == 0
    said = capsys.readouterr().out
    assert (
        f"shifts and scale of the checkpoint hold, not the values of data.e0s: H: {float(before[0]):.6g} eV, O: "
        in said
    )
    assert "weight decay: model.weight_decay stays 0.0, with which the run was begun, not 0.5" in said
    after = read_checkpoint(checkpoint_path(folder / "held", "last"))
    assert torch.equal(load_potential(checkpoint_path(folder / "held", "last")).shifts, before)
    ((name, stopping),) = (pair for pair in after["callbacks"].items() if pair[0].startswith("Stopping"))
    assert "'val/loss'" in name, "it follows the value that chooses best.ckpt"
    assert stopping["patience"] == 77, "what is asked for holds where nothing speaks against it"


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Structures of one to four waters, some without energy and some without forces."""
    made, frames = np.random.default_rng(3), []
    for number, water in enumerate(displaced_waters(26)):
        atoms = water.copy()
        for place in range(1, 1 + number % 4):
            more = water.copy()
            more.positions += [3.0 * place, 0, 0]
            atoms += more
        if number % 5:
            atoms.info["REF_energy"] = float(made.standard_normal())
        if number % 3:
            atoms.arrays["REF_forces"] = made.standard_normal((len(atoms), 3))
        frames.append(atoms)
    folder = tmp_path_factory.mktemp("sizes")
    write(folder / "train.xyz", frames, format="extxyz")
    return folder


LOADER = {"batch_size": 8, "eval_batch_size": 32, "max_edges": None, "num_workers": 0, "val": 3}


class Recorder(Callback):
    """Keeps the learning rate of each step, and loss and error of each validation."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.validations: list[tuple[float, float]] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            values = trainer.callback_metrics
            self.validations.append((float(values["val/loss"]), float(values["val/mae"])))


def in_float64(folder: Path, **options: Any) -> Trainer:
    """A trainer of a run, with a recorder as its last callback."""
    common: dict[str, Any] = {"accelerator": "cpu", "precision": "64-true", "inference_mode": False}
    parts = trainer_options(folder, progress=False, monitor=options.pop("monitor", None))
    parts["callbacks"].append(Recorder())
    return Trainer(**parts, **common, **options)


def structures(sizes: Path, **loader: Any) -> StructureDataModule:
    """21 structures to train on."""
    common: dict[str, Any] = {"cutoff": 3.0, "dtype": "float64", "cache_dir": str(sizes / "cache")}
    return StructureDataModule(str(sizes / "train.xyz"), train=21, **common, **loader)


def recorded(
    sizes: Path, folder: Path, epochs: int, ckpt_path: str | None = None, **options: Any
) -> tuple[dict[str, Any], Recorder]:
    """The last checkpoint of a fit in float64, and what was recorded."""
    loader = {name: options.pop(name, default) for name, default in LOADER.items()}
    common = {"learning_rate": 1e-2, "warmup_steps": 0, "final_factor": 1.0}
    common |= options.pop("model", {})
    torch.manual_seed(0)
    made = PotentialModule(NequIP(**SMALL), **common)  # type: ignore[arg-type]
    trainer = in_float64(folder, max_epochs=epochs, **options)
    trainer.fit(made, datamodule=structures(sizes, **loader), ckpt_path=ckpt_path)
    (kept,) = (one for one in trainer.callbacks if isinstance(one, Recorder))  # type: ignore[attr-defined]
    return read_checkpoint(checkpoint_path(folder, "last")), kept


def trained(*args: Any, **options: Any) -> dict[str, Any]:
    """The last checkpoint of a fit."""
    return recorded(*args, **options)[0]


QUIET = pytest.mark.filterwarnings("ignore::eqlayers.errors.EqlayersWarning", "ignore:.*(workers|logging|fork)")


@QUIET
def test_gradients_that_are_added_up_are_those_of_the_larger_batch(sizes: Path, tmp_path: Path) -> None:
    """Sizes and labels differ between the batches of a step, and the last step of an epoch is smaller."""
    adamw = {"optimizer": "adamw"}  # eigenvectors of SOAP enlarge the differences by rounding
    large = trained(sizes, tmp_path / "large", 2, model=adamw)
    small = trained(sizes, tmp_path / "small", 2, model=adamw, batch_size=4, accumulate_grad_batches=2)
    assert small["global_step"] == large["global_step"] == 6
    for name, value in large["state_dict"].items():
        torch.testing.assert_close(small["state_dict"][name], value, rtol=1e-10, atol=1e-12, msg=name)


@QUIET
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_with_batches_of_bounded_edges_goes_on_to_the_same_end(workers: int, sizes: Path, tmp_path: Path) -> None:
    loader: dict[str, Any] = {"max_edges": 90, "batch_size": 4, "num_workers": workers}
    whole = trained(sizes, tmp_path / "whole", 3, **loader)
    trained(sizes, tmp_path / "parts", 2, **loader)
    last = str(checkpoint_path(tmp_path / "parts", "last"))
    parts = trained(sizes, tmp_path / "parts", 3, last, **loader)
    assert parts["global_step"] == whole["global_step"] > 4
    assert all(torch.equal(parts["state_dict"][name], value) for name, value in whole["state_dict"].items())


@QUIET
def test_a_run_that_goes_on_with_larger_batches_has_a_rate_to_the_end(sizes: Path, tmp_path, capsys) -> None:
    """11 steps in each of 2 epochs and then 3 in each of 5, where 7 epochs of 3 steps would be over."""
    model = {"final_factor": 0.0, "second_stage": 0.75, "second_energy_weight": 10.0}
    trained(sizes, tmp_path, 2, batch_size=2, model=model)
    capsys.readouterr()
    last = str(checkpoint_path(tmp_path, "last"))
    end, kept = recorded(sizes, tmp_path, 7, last, model=model)
    said = capsys.readouterr().out
    assert "schedule: 37 steps (7 epochs), before 22 steps (2 epochs); the learning rate goes on with 3.54e-03" in said
    assert "the second stage begins with step 28" in said
    assert end["global_step"] == 37
    want = [1e-2 * warmup_cosine(0, 37)(step) for step in range(22, 37)]
    assert kept.rates == pytest.approx(want, rel=1e-12)
    assert min(kept.rates) > 0
    rates = [row["learning_rate"] for row in read_history(tmp_path)]
    assert rates[-2:] == pytest.approx([1e-2 * warmup_cosine(0, 37)(n) for n in (34, 37)], rel=1e-12)


@QUIET
def test_no_gradient_of_positions_is_computed_to_be_dropped(sizes: Path, tmp_path: Path) -> None:
    """Lengths depend on positions: their gradient is computed for the forces, and not once more for the weights."""
    calls: list[list[int]] = []

    def watch(network: torch.nn.Module, args: Any) -> None:
        if network.training:
            calls.append(of_step := [])
            args[1].lengths.register_hook(lambda _: of_step.append(1))

    made = PotentialModule(NequIP(**SMALL))  # type: ignore[arg-type]
    made.potential.network.register_forward_pre_hook(watch)
    trainer = in_float64(tmp_path, max_epochs=1)
    trainer.fit(made, datamodule=structures(sizes, batch_size=8))
    assert trainer.global_step == 3
    assert calls[-3:] == [[1]] * 3  # there is a step before, of the summary


@QUIET
def test_the_loss_of_a_validation_does_not_depend_on_its_batches(sizes: Path, tmp_path: Path) -> None:
    """Labels are missing in some of the structures."""
    made, losses = module(), []
    for size in (1, 2, 5):
        data = structures(sizes, val=5, eval_batch_size=size)
        (values,) = in_float64(tmp_path).validate(made, datamodule=data, verbose=False)
        losses.append(values["val/loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-12)
    rows: dict[str, Any] = {"energy": [], "forces": []}
    (data := structures(sizes, val=5)).setup()
    for one in data.val_dataloader():  # type: ignore[union-attr]
        for name, value, label, factor in made.rows(one, made(one)):
            error = ((value - label) * factor).norm(dim=1)
            rows[name] += error[torch.isfinite(label).all(1)].tolist()
    assert losses[0] == pytest.approx(float(np.mean(rows["energy"]) + np.mean(rows["forces"])), rel=1e-12)


@QUIET
@pytest.mark.parametrize("monitor", [None, "val/mae"])
def test_the_best_epoch_is_the_one_of_the_lowest_loss_of_its_stage(monitor: str | None, sizes: Path, tmp_path) -> None:
    model = {"learning_rate": 0.05, "second_stage": 0.5, "second_energy_weight": 30.0}
    _, kept = recorded(sizes, tmp_path, 8, val=5, monitor=monitor, model=model)
    losses, errors = (list(values) for values in zip(*kept.validations, strict=True))
    best = read_checkpoint(checkpoint_path(tmp_path))["epoch"]
    first = losses.index(min(losses[:4])), 4 + losses[4:].index(min(losses[4:]))
    assert errors.index(min(errors)) not in first, "the test needs another epoch with the lowest error"
    assert first[0] == losses.index(min(losses)), "losses with larger weights are larger"
    stage = checkpoint_path(tmp_path, "first_stage")
    assert best == errors.index(min(errors)) if monitor else (read_checkpoint(stage)["epoch"], best) == first
