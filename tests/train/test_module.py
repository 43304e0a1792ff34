"""The module: names, groups, statistics, float64 metrics, and refusals."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from eqlayers.data import TARGETS
from eqlayers.errors import ConfigError, DataError, ShapeError
from eqlayers.train import PropertyModule, metric_name
from eqlayers.train.module import atom_shifts


def test_metric_names_are_plain_words() -> None:
    names = [metric_name(target, kind) for target in TARGETS.values() for kind in ("mae", "rmse")]
    assert len(set(names)) == 2 * len(TARGETS)
    assert all(name.replace("_", "").isalnum() for name in names)
    assert metric_name(TARGETS["Cv"]) == "Cv_mae_cal_mol_K"


def test_shifts_by_kind_of_target(make_data: Callable[..., Any]) -> None:
    data = make_data()
    data.setup()
    model = torch.nn.Module()
    assert atom_shifts(model, data.statistics, TARGETS["U0"]) == data.statistics.shifts
    intensive = replace(data.statistics, shifts=dict.fromkeys(data.statistics.shifts, 0.0), mean=2.5)
    assert set(atom_shifts(model, intensive, TARGETS["gap"]).values()) == {0.0}
    model.pooling, model.readout = "mean", "scalar"  # type: ignore[assignment]
    assert set(atom_shifts(model, intensive, TARGETS["gap"]).values()) == {2.5}
    assert atom_shifts(model, data.statistics, TARGETS["U0"]) == data.statistics.shifts
    model.readout = "vector"  # type: ignore[assignment]
    assert set(atom_shifts(model, intensive, TARGETS["mu"]).values()) == {0.0}


def test_untrained_zero_network_has_the_composition_error(make_run: Callable[..., Any]) -> None:
    """With a read-out of zero the prediction is the sum of the shifts: the composition regression up to rounding."""
    trainer, module, data = make_run(max_epochs=1, learning_rate=1e-30)
    for parameter in module.model.out[2].parameters():
        torch.nn.init.zeros_(parameter)
    trainer.fit(module, datamodule=data)
    (result,) = trainer.test(module, datamodule=data, verbose=False)
    train, test = data.train_set.taken, data.test_set.taken
    fit = np.linalg.lstsq(train.counts(train.species), train.y)[0]
    expected = np.abs(test.y - test.counts(train.species) @ fit).mean() * 1000
    assert result["test/U0_mae_meV"] == pytest.approx(expected, rel=1e-11)


def test_kept_values_are_float64(make_run: Callable[..., Any]) -> None:
    trainer, module, data = make_run(max_epochs=1)
    trainer.fit(module, datamodule=data)
    (result,) = trainer.test(module, datamodule=data, verbose=False)
    idx, true, error = (module.test_values[name].compute().numpy() for name in ("idx", "y_true", "y_error"))
    labels = {int(sample.idx): float(sample.y) for sample in data.test_set}
    assert [labels[int(i)] for i in idx] == true.tolist()
    assert result["test/U0_mae_meV"] == pytest.approx(np.abs(error).mean() * 1000, rel=1e-11)
    assert result["test/U0_rmse_meV"] == pytest.approx(np.sqrt(np.square(error).mean()) * 1000, rel=1e-11)


@pytest.mark.parametrize("loss", ["l1", "huber", "mse"])
def test_loss_is_of_scaled_residuals(loss: str, make_run: Callable[..., Any]) -> None:
    trainer, module, data = make_run(loss=loss, max_epochs=1, limit_val_batches=1)
    kept: list[tuple[float, torch.Tensor]] = []

    class Keep(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                self.residual = (pl_module(batch) - batch.y) / data.statistics.scale

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
            kept.append((float(outputs["loss"]), self.residual))

    trainer.callbacks.append(Keep())
    trainer.fit(module, datamodule=data)
    formulas = {
        "l1": lambda r: r.abs().mean(),
        "mse": lambda r: (r**2).mean(),
        "huber": lambda r: torch.where(r.abs() < 1, 0.5 * r**2, r.abs() - 0.5).mean(),
    }
    assert len(kept) == 3
    for value, residual in kept:
        assert value == pytest.approx(float(formulas[loss](residual)), rel=1e-12)


def test_a_loss_that_is_not_finite_names_the_molecules(make_run: Callable[..., Any]) -> None:
    trainer, module, data = make_run()
    data.setup()
    bad = int(data.train_set[5].idx)
    original = module.training_step

    def step(batch: Any, batch_idx: int) -> torch.Tensor:
        batch.y[batch.idx == bad] = 1.7e308
        return original(batch, batch_idx)

    module.training_step = step
    with pytest.raises(DataError, match=rf"must be finite, got inf for the structures \[{bad}\]"):
        trainer.fit(module, datamodule=data)


def test_diverged_weights_give_advice(make_run: Callable[..., Any]) -> None:
    trainer, module, data = make_run(num_sanity_val_steps=0)
    torch.nn.init.constant_(module.model.out[2].weight, torch.inf)
    with pytest.raises(DataError, match=r"batch 0, step 0 must .*got nan for .*Lower model.learning_rate"):
        trainer.fit(module, datamodule=data)


def test_wrong_output_shape(make_run: Callable[..., Any]) -> None:
    trainer, module, data = make_run()
    forward = module.model.forward
    module.model.forward = lambda *args: forward(*args).unsqueeze(-1)
    with pytest.raises(ShapeError, match=r"must return \[G\] = \[\d+\], .* got \[\d+, 1\]"):
        trainer.fit(module, datamodule=data)


def test_cutoffs_must_agree(make_run: Callable[..., Any], make_data: Callable[..., Any]) -> None:
    trainer, module, data = make_run(data=make_data(cutoff=4.0))
    with pytest.raises(ConfigError, match=r"got 5.0 Angstrom in the model and 4.0 in the data. Set data.cutoff"):
        trainer.fit(module, datamodule=data)


def test_species_must_be_known(make_run: Callable[..., Any], network_class: Any) -> None:
    trainer, _, data = make_run()
    with pytest.raises(ConfigError, match=r"H, C, N, O, F, got H, C"):
        trainer.fit(PropertyModule(network_class(species=(1, 6))), datamodule=data)


def test_data_are_needed(make_run: Callable[..., Any]) -> None:
    trainer, module, data = make_run()
    data.setup()
    with pytest.raises(ConfigError, match="datamodule"):
        trainer.fit(module, train_dataloaders=data.train_dataloader(), val_dataloaders=data.val_dataloader())


@pytest.mark.parametrize(
    ("options", "match"), [({"loss": "l2"}, "l1, huber, mse, got 'l2'"), ({"learning_rate": 0.0}, "learning_rate")]
)
def test_bad_options(options: dict[str, Any], match: str, network_class: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        PropertyModule(network_class(), **options)
