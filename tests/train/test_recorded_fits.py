"""Whole fits whose calls are recorded train the same weights, and read no number in a step.

A stand-in records on the CPU: every step computes in the memory of the recording, which other recordings overwrite.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("ase")

from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.io import write
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from eqlayers.cli.main import main
from eqlayers.data.embedded import embedded_trajectory
from eqlayers.train import checkpoint_path, read_checkpoint, steps
from eqlayers.train.averaging import EMA
from eqlayers.train.module import PropertyModule
from eqlayers.train.potential import PotentialModule
from tests.stand_in import StandIn, record_on_cpu
from tests.train.frames import DATA, write_frames

pytestmark = pytest.mark.kernels
TINY = {"hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1, "radial_hidden": [4]}
TRAINER = {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1}
NEQUIP = "eqlayers.models.NequIP"
SOAP = {"class_path": "soap", "init_args": {"capturable": True}}


def config(data: dict[str, Any], species: list[int], model: dict[str, Any], **network: Any) -> dict[str, Any]:
    """A short training of a small potential."""
    network = {"class_path": NEQUIP, "init_args": TINY | {"species": species} | network}
    model = {"model": network, "warmup_steps": 2, "optimizer": SOAP} | model
    return {"task": "potential", "report": False, "data": data, "model": model, "trainer": TRAINER}


def of_frames(**model: Any) -> dict[str, Any]:
    """A training on ethanol, whose last batch is smaller."""
    return config(DATA | {"train": 7}, [1, 6, 8], model)


ALLOY = {"path": "alloy.xyz", "cutoff": 3.5, "batch_size": 3, "train": 8, "val": 2, "test": 2}
DIPOLES = DATA | {"path": "dipoles.npz", "units": DATA["units"] | {"dipole": "Debye"}}
MOLECULES = {
    "dataset": "mini",
    "target": "U0",
    "auxiliary": {"charges": 1.0, "zpve": 0.5},
    "limit_train": 20,
    "batch_size": 6,
}
#: Configurations for all losses and all that a step can be made of.
WAYS: dict[str, dict[str, Any]] = {
    "l1": of_frames(),
    "huber": of_frames(loss="huber", species_weights={"H": 2.0}),
    "mse, second stage": of_frames(loss="mse", second_stage=0.5, second_energy_weight=10.0),
    "stress, groups": config(ALLOY, [29, 79], {"config_type_weights": {"bulk": 2.0}}),
    "missing labels": config(ALLOY | {"path": "partly.xyz", "batch_size": 1}, [29, 79], {}),
    "dipoles": config(DIPOLES, [1, 6, 8], {}, properties=["dipole"]),
    "adamw": of_frames(optimizer="adamw", weight_decay=0.1),
    "molecules": {
        "task": "property",
        "report": False,
        "data": MOLECULES,
        "model": {
            "model": {"class_path": "eqlayers.models.MoleculeNetwork", "init_args": TINY},
            "warmup_steps": 2,
            "optimizer": SOAP,
        },
        "trainer": TRAINER,
    },
}
OPTIONS = {
    "l1": ["--trainer.accumulate_grad_batches", "2", "--trainer.gradient_clip_val", "0.1", "--ema.decay", "0.5"],
    "adamw": ["--ema.decay", "0.5", "--trainer.gradient_clip_val", "0.1"],
}
#: Operators of a step outside of the recordings: the loss, errors, clipping, the optimizer and the average.
MOST = {"l1": 305, "huber": 330, "mse, second stage": 295, "stress, groups": 360, "missing labels": 360}
MOST |= {"dipoles": 220, "adamw": 195, "molecules": 405}
READS = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "is_nonzero", "equal", "_unique2")


class NoReads(TorchDispatchMode):
    """Raises an error where an operator reads numbers, for which Python would wait for a GPU."""

    operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        NoReads.operators += 1
        places = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        masks = [t for t in places if t is not None and t.dtype == torch.bool]
        assert name not in READS, f"{name} reads numbers"
        assert not masks, f"{name} reads a mask"
        return func(*args, **kwargs or {})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few frames of the embedded trajectory, and of a crystal."""
    monkeypatch.chdir(tmp_path)
    write_frames(tmp_path)
    with np.load("frames.npz") as frames, np.load(embedded_trajectory("ethanol_md")) as stored:
        np.savez("dipoles.npz", **frames, dipole=stored["dipole"][:40])
    listed = list(crystals(12))
    write("alloy.xyz", listed)
    for number, atoms in enumerate(listed):
        for name in ("forces", "stress") if number in (1, 2, 6) else ():
            del atoms.calc.results[name]
    write("partly.xyz", listed)


def crystals(number: int) -> Iterator[Atoms]:
    """Moved crystals, some of them larger."""
    for seed in range(number):
        atoms = bulk("Cu", cubic=True) * (1, 1, 1 + seed % 2)
        atoms.numbers[0] = 79
        atoms.rattle(0.1, seed=seed)
        atoms.info["config_type"] = "bulk" if seed % 3 else "other"
        atoms.calc = EMT()
        atoms.get_stress()
        yield atoms


@contextmanager
def without_reads(most: int) -> Iterator[None]:
    """A context in which steps outside of the network read no numbers, in the last one by so many operators."""
    patch, entered = pytest.MonkeyPatch(), []

    def watched(cls: type, name: str) -> None:
        whole: Callable[..., Any] = getattr(cls, name)

        def run(*args: Any, **options: Any) -> Any:
            entered.append(name)
            NoReads.operators = 0 if name == "run" else NoReads.operators
            with NoReads() if entered.count(name) > 2 else nullcontext():  # the first steps make their memory
                return whole(*args, **options)

        patch.setattr(cls, name, run)

    def unwatched(cls: type, name: str) -> None:
        whole: Callable[..., Any] = getattr(cls, name)

        def run(*args: Any, **options: Any) -> Any:
            with _disable_current_modes():
                return whole(*args, **options)

        patch.setattr(cls, name, run)

    watched(_AutomaticOptimization, "run")
    watched(EMA, "on_train_batch_end")
    for cls in (PotentialModule, PropertyModule):
        unwatched(cls, "outputs")  # the network, whose checks read numbers on a CPU; a trace of it cannot
    patch.setattr("eqlayers.train.potential.Potential.kind_of", without_check)
    patch.setitem(steps.CHECKED_EVERY, "cpu", 3)
    try:
        yield
    finally:
        patch.undo()
    assert len(entered) > 3, "nothing was watched"
    assert 50 < NoReads.operators <= most, f"a step outside of recordings has {NoReads.operators} operators"


def without_check(potential: Any, z: torch.Tensor) -> torch.Tensor:
    """Indices of species, which are checked on a CPU alone."""
    return potential.species_index[z.clamp(0, len(potential.species_index) - 1)]


def fit(name: str, way: str, compile_: str, *options: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights and history of a run."""
    Path("run.yaml").write_text(yaml.safe_dump(WAYS[way]))
    words = ["fit", "-c", "run.yaml", "--name", name, "--compile", compile_, *OPTIONS.get(way, ()), *options]
    assert main(words) == 0
    weights = read_checkpoint(checkpoint_path(Path("runs") / name, "last"))["state_dict"]
    return weights, json.loads((Path("runs") / name / "history.json").read_text())


@pytest.mark.filterwarnings("ignore:(forces|stresses) of 3 structures are NaN")
@pytest.mark.parametrize("way", WAYS)
def test_a_recorded_fit_trains_the_same_weights_and_reads_nothing(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = ["--trainer.precision", "64-true", *([] if way == "molecules" else ["--data.dtype", "float64"])]
    plain, other = fit("plain", way, "false", *exact)
    record_on_cpu(monkeypatch)
    with without_reads(MOST[way]):
        weights, history = fit("recorded", way, "true", *exact)
    assert 2 <= StandIn.made <= 20  # a few sizes, in both passes
    for name, one in weights.items():
        torch.testing.assert_close(one, plain[name], rtol=1e-8, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
    for row, one in zip(history, other, strict=True):
        assert row["val_mae"] == pytest.approx(one["val_mae"], rel=1e-8)
    assert np.isfinite(row["val_mae"])


def test_a_resumed_recorded_fit_is_the_unbroken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch)
    whole, _ = fit("whole", "huber", "true")
    fit("parts", "huber", "true", "--trainer.max_steps", "3")
    parts, _ = fit("parts", "huber", "true", "--resume", "--trainer.max_steps", "-1")
    assert all(torch.equal(one, parts[name]) for name, one in whole.items())


def test_a_loss_that_is_not_finite_is_found_later_with_its_structures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between two checks further steps are made; no weights are saved after it."""
    record_on_cpu(monkeypatch)
    monkeypatch.setitem(steps.CHECKED_EVERY, "cpu", 100)
    rows, seen = PotentialModule.rows, []

    def broken(self: Any, batch: Any, predictions: Any) -> Any:
        for number, (name, value, label, factor) in enumerate(rows(self, batch, predictions)):
            if self.training and number == 0:
                seen.append(batch.idx.tolist())
                if len(seen) == 2:
                    value = value * torch.tensor([1.0] * (len(value) - 1) + [torch.inf])[:, None]
            yield name, value, label, factor

    monkeypatch.setattr(PotentialModule, "rows", broken)
    Path("run.yaml").write_text(yaml.safe_dump(WAYS["l1"]))
    assert main(["fit", "-c", "run.yaml", "--name", "broken", "--compile", "true"]) == 2
    error = capsys.readouterr().err
    assert f"the loss at epoch 0, batch 1, step 1 must be finite, got inf for the structures [{seen[1][-1]}]" in error
    assert len(seen) > 2
    assert not list(Path("runs/broken").rglob("*.ckpt"))


def test_skipped_steps_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Gradients that are not finite although the loss is."""
    monkeypatch.setitem(steps.LOSSES, "l1", lambda error: error.abs().sum(-1) + (0 * error).sqrt().sum(-1))
    Path("run.yaml").write_text(yaml.safe_dump(WAYS["l1"]))
    assert main(["fit", "-c", "run.yaml", "--name", "skipped", "--compile", "false"]) == 2
    assert "gradients must be finite, got others in 3 steps until epoch 0. Lower model" in capsys.readouterr().err
