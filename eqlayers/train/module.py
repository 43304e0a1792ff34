"""The Lightning module: loss, optimizer, schedule and metrics around any network of molecules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric, MetricCollection
from torchmetrics.utilities import dim_zero_cat

from ..checks import check_choice, check_items, check_module, check_number, got
from ..data.statistics import Statistics
from ..data.targets import Target, check_target
from ..errors import ConfigError, DataError, ShapeError
from .agreement import check_checkpoint, check_network, data_facts
from .restore import Restored, check_training, check_weights
from .schedule import warmup_cosine

__all__ = ["PropertyModule", "atom_shifts", "metric_name", "parameter_groups"]

LOSSES: dict[str, Callable[..., Tensor]] = {
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "mse": functional.mse_loss,
}
STAGES = ("train", "val", "test")


def metric_name(target: Target, kind: str = "mae") -> str:
    """Name of an error in logs and files: target, kind and unit.

    Example:
        >>> from eqlayers.data.targets import TARGETS
        >>> metric_name(TARGETS["U0"]), metric_name(TARGETS["alpha"], "rmse")
        ('U0_mae_meV', 'alpha_rmse_a0_3')
    """
    check_target(target)
    check_choice("kind", kind, ("mae", "rmse"))
    return f"{target.name}_{kind}_{re.sub('[^A-Za-z0-9]+', '_', target.report_unit).strip('_')}"


def logged_names(target: Target) -> list[str]:
    """Names of what a fit logs after every epoch, of which one can be monitored."""
    errors = [f"{stage}/{metric_name(target, kind)}" for stage in ("val", "train") for kind in ("mae", "rmse")]
    return ["val/mae", *errors, "train/loss", "train/loss_epoch"]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into those with and without weight decay.

    Biases, and parameters with fewer than two axes (norms, scales), are not decayed. The flat weights of e3nn's and of
    eqlayers' layers are matrices written as one axis and are decayed.

    Args:
        model: The network.
        weight_decay: Decay of the first group.

    Returns:
        Two groups for :class:`torch.optim.AdamW`; empty ones are left out.

    Example:
        >>> groups = parameter_groups(nn.Linear(3, 2), 0.1)
        >>> [(group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in groups]
        [(0.1, [(2, 3)]), (0.0, [(2,)])]
    """
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for module in model.modules():
        flat = hasattr(module, "irreps_out")
        for name, parameter in module.named_parameters(recurse=False):
            matrix = parameter.ndim >= 2 or (flat and name.startswith("weight"))
            (decayed if matrix and "bias" not in name else exempt).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def target_of(module: LightningModule) -> Target:
    """The property that a module was set up for.

    Raises:
        ConfigError: It has not been set up by a trainer with data.
    """
    target = getattr(module, "target", None)
    if not isinstance(target, Target):
        raise ConfigError(
            f"a PropertyModule that a trainer has set up was expected, got {type(module).__name__} without. "
            "Use the run's callbacks with eqlayers.train.PropertyModule and a datamodule."
        )
    return target


def is_dry_run(trainer: Trainer) -> bool:
    """Whether this is `trainer.fast_dev_run`: a few batches to see that everything works, and no file written."""
    return bool(getattr(trainer, "fast_dev_run", False))


def atom_shifts(model: nn.Module, statistics: Statistics, target: Target) -> dict[int, float]:
    """The shift of each atom's contribution, by species.

    The composition regression for an extensive target. The mean of the training part for an intensive one whose atoms
    are averaged; nothing where a vector is predicted, which has no constant part.

    Args:
        model: The network; its ``pooling`` and ``readout`` are read if it has them.
        statistics: Of the training part.
        target: The property.

    Returns:
        Shifts by atomic number, in the target's unit.
    """
    averaged = getattr(model, "pooling", None) == "mean" and getattr(model, "readout", "scalar") == "scalar"
    if target.extensive or not averaged:
        return dict(statistics.shifts)
    return dict.fromkeys(statistics.shifts, statistics.mean)


class Values(Metric):
    """All values of a stage in float64, gathered from every process; torchmetrics' own CatMetric keeps float32."""

    full_state_update = False
    values: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("values", default=[], dist_reduce_fx="cat")

    def update(self, values: Tensor) -> None:
        """Append values `[G]`."""
        self.values.append(values.double())

    def compute(self) -> Tensor:
        """All values `[N]`."""
        return dim_zero_cat(self.values)


class PropertyModule(Restored):
    """Trains a network on one property of molecules.

    The loss is taken on ``(prediction - y) / scale`` with the residual's standard deviation of the training part, in
    float64. Logged are ``{train,val,test}/<target>_mae_<unit>`` (and ``rmse``) in the target's report unit, and
    ``val/mae``, the same number under a name that does not depend on the target, for checkpoints and early stopping.

    Args:
        model: Network with ``forward(z, pos, edge_index, batch, num_graphs) -> [G]`` and
            ``set_statistics(shifts, scale, mean_neighbors)``, e.g. ``eqlayers.models.MoleculeNetwork``.
        learning_rate: Highest learning rate of AdamW.
        weight_decay: Decoupled weight decay, of matrices only (see :func:`parameter_groups`).
        betas: Decay rates of AdamW's two moments.
        warmup_steps: Optimizer steps of the linear rise of the learning rate.
        final_factor: Learning rate at the end as a fraction of ``learning_rate``; in between, half a cosine.
        loss: ``"l1"``, ``"huber"`` (quadratic within one ``scale``) or ``"mse"``.

    Raises:
        ConfigError: An option is out of range.

    Example:
        >>> class Zero(nn.Module):
        ...     def forward(self, z, pos, edge_index, batch, num_graphs):
        ...         return torch.zeros(num_graphs, dtype=torch.float64)
        >>> PropertyModule(Zero(), learning_rate=2e-3).hparams["learning_rate"]
        0.002
    """

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        warmup_steps: int = 100,
        final_factor: float = 0.0,
        loss: Literal["l1", "huber", "mse"] = "l1",
    ) -> None:
        super().__init__()
        check_module("model", model)
        check_choice("model.loss", loss, LOSSES)
        check_number("model.learning_rate", learning_rate, above=0, fix="Use a value such as 1e-3.")
        check_number("model.weight_decay", weight_decay, at_least=0, fix="Use a value such as 0.")
        warmup_cosine(warmup_steps, 1, final_factor)  # refuses what cannot be before the data are loaded
        rates = check_items("model.betas", betas, "two numbers", "(0.9, 0.999) is usual.")
        if len(rates) != 2 or not all(0 <= check_number("model.betas", rate, at_least=0) < 1 for rate in rates):
            raise ConfigError(f"model.betas must be two numbers from 0 to 1, got {got(betas)}. (0.9, 0.999) is usual.")
        self.save_hyperparameters(ignore=["model"])
        self.model = model
        self.target: Target | None = None
        self.loss_scale: Tensor
        self.register_buffer("loss_scale", torch.ones((), dtype=torch.float64))
        self.errors = nn.ModuleDict({f"{stage}_errors": self._error_metrics() for stage in STAGES})
        self.test_values = nn.ModuleDict({name: Values() for name in ("idx", "true", "predicted")})

    @staticmethod
    def _error_metrics() -> MetricCollection:
        return MetricCollection(
            {"mae": _float64(MeanAbsoluteError()), "rmse": _float64(MeanSquaredError(squared=False))},
            compute_groups=False,
        )

    # ---- set-up -----------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Take target and statistics from the data; a checkpoint loaded afterwards overwrites the statistics."""
        data = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise ConfigError(
                f"a datamodule with `target` and `statistics` was expected in trainer.{stage}, got none. "
                "Pass datamodule=eqlayers.data.MoleculeDataModule(...)."
            )
        self.target = data.target
        check_network(self.model, data)
        if stage == "fit":
            statistics = data.statistics
            self.loss_scale.fill_(statistics.scale)
            self.model.set_statistics(  # type: ignore[operator]
                shifts=atom_shifts(self.model, statistics, data.target),
                scale=statistics.scale,
                mean_neighbors=statistics.mean_neighbors,
            )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW, and a schedule that moves at every step."""
        hparams = self.hparams
        optimizer = torch.optim.AdamW(
            parameter_groups(self.model, hparams["weight_decay"]),
            lr=hparams["learning_rate"],
            betas=tuple(hparams["betas"]),
        )
        schedule = warmup_cosine(
            hparams["warmup_steps"], self.trainer.estimated_stepping_batches, hparams["final_factor"]
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, schedule), "interval": "step", "name": "learning_rate"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Record what the weights were trained on."""
        if self._trainer is not None and getattr(self.trainer, "datamodule", None) is not None:
            checkpoint["eqlayers_data"] = data_facts(self.trainer.datamodule)  # type: ignore[attr-defined]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Compare what was saved with what is configured, before tensors of other shapes are met one by one."""
        saved_data = checkpoint.get("eqlayers_data")
        if saved_data and self._trainer is not None and getattr(self.trainer, "datamodule", None) is not None:
            check_checkpoint(saved_data, self.trainer.datamodule)  # type: ignore[attr-defined]
        mine, saved = self.hparams.get("model"), checkpoint.get("hyper_parameters", {}).get("model")
        if mine and saved and mine != saved:
            changes = ", ".join(_differences("model.model", saved, mine))
            raise ConfigError(
                f"the checkpoint must hold the configured network; they differ (saved -> configured): {changes}. "
                "Use the config.yaml beside the checkpoint's folder, or train anew under another --name."
            )
        if self._trainer is not None and self.trainer.training:
            check_weights(self, checkpoint["state_dict"], self.strict_loading)  # another module's have no state either
            groups = parameter_groups(self.model, self.hparams["weight_decay"])
            check_training(checkpoint, [p for group in groups for p in group["params"]])

    # ---- steps ------------------------------------------------------------------------------------------------------

    def forward(self, batch: Any) -> Tensor:
        """Predictions `[G]` float64 in the target's unit for a batch of G molecules."""
        prediction: Tensor = self.model(batch.z, batch.pos, batch.edge_index, batch.batch, batch.num_graphs)
        if prediction.shape != (batch.num_graphs,):
            raise ShapeError(
                f"the network must return [G] = [{batch.num_graphs}], one number a molecule, got "
                f"{list(prediction.shape)}. Pool over the atoms of each molecule and drop the channel axis."
            )
        return prediction.double()

    def _step(self, batch: Any, stage: str) -> tuple[Tensor, Tensor]:
        target = target_of(self)
        prediction, y = self(batch), batch.y.double()
        factor = target.report_factor
        errors: MetricCollection = self.errors[f"{stage}_errors"]  # type: ignore[assignment]
        errors.update(prediction.detach() * factor, y * factor)
        for kind, metric in errors.items(keep_base=True):
            self.log(
                f"{stage}/{metric_name(target, str(kind))}",
                metric,
                on_step=False,
                on_epoch=True,
                batch_size=batch.num_graphs,
            )
        return prediction, y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        prediction, y = self._step(batch, "train")
        loss: Tensor = LOSSES[self.hparams["loss"]](prediction / self.loss_scale, y / self.loss_scale)
        if not torch.isfinite(loss):
            raise self._not_finite(batch, prediction, y, batch_idx)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=batch.num_graphs)
        return loss

    def _not_finite(self, batch: Any, prediction: Tensor, y: Tensor, batch_idx: int) -> DataError:
        where = f"epoch {self.current_epoch}, batch {batch_idx}, step {self.global_step}"
        if not torch.isfinite(y).all():
            what, fix = "targets", "Remove these molecules from the data."
            bad = ~torch.isfinite(y)
        else:
            what, bad = "predictions", ~torch.isfinite(prediction)
            fix = "Lower model.learning_rate, lengthen model.warmup_steps or lower trainer.gradient_clip_val."
        molecules = batch.idx[bad.cpu().to(batch.idx.device)][:8].tolist()
        return DataError(
            f"the loss at {where} must be finite, got {what} that are not, of molecules {molecules}. {fix}"
        )

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Errors on the validation part."""
        self._step(batch, "val")
        mae: Metric = self.errors["val_errors"]["mae"]  # type: ignore[index]
        self.log("val/mae", mae, on_step=False, on_epoch=True, prog_bar=True, logger=False, batch_size=batch.num_graphs)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Errors on the test part; the values are kept for the report."""
        prediction, y = self._step(batch, "test")
        for name, values in (("idx", batch.idx), ("true", y), ("predicted", prediction)):
            self.test_values[name].update(values)  # type: ignore[operator]

    def on_test_epoch_start(self) -> None:
        """Forget the values of an earlier test."""
        for metric in self.test_values.values():
            metric.reset()  # type: ignore[operator]

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Predictions of a batch with the names of its molecules, for the table of predictions."""
        fields = {"idx": batch.idx, "predicted": self(batch)}
        if getattr(batch, "y", None) is not None:
            fields["true"] = batch.y.double()
        return {name: values.tolist() for name, values in fields.items()}


def _float64(metric: Metric) -> Metric:
    """Sums in float64: total energies are 1e5 times the errors."""
    return metric.set_dtype(torch.float64)


def _differences(path: str, saved: Any, mine: Any) -> list[str]:
    if isinstance(saved, dict) and isinstance(mine, dict):
        keys = sorted(saved.keys() | mine.keys())
        return [line for key in keys for line in _differences(f"{path}.{key}", saved.get(key), mine.get(key))]
    return [] if saved == mine else [f"{path}: {saved!r} -> {mine!r}"]
