"""The Lightning module: loss, optimizer, schedule and metrics around any network of molecules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric, MetricCollection

from ..core.checks import check_choice
from ..core.errors import ConfigError, DataError, ShapeError
from ..data.statistics import Statistics
from ..data.targets import Target, check_target
from ..models.classes import describe_part
from .agreement import check_network
from .base import STAGES, TrainedModule, error_metrics
from .labels import Label, plain

LOSSES: dict[str, Callable[..., Tensor]] = {
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "mse": functional.mse_loss,
}


def metric_name(target: Target, kind: str = "mae") -> str:
    """Name of an error in logs and files: target, kind and unit.

    Example:
        >>> from eqlayers.data.targets import TARGETS
        >>> metric_name(TARGETS["U0"]), metric_name(TARGETS["alpha"], "rmse")
        ('U0_mae_meV', 'alpha_rmse_a0_3')
    """
    check_target(target)
    check_choice("kind", kind, ("mae", "rmse"))
    return f"{plain(target.name)}_{kind}_{plain(target.report_unit)}"


def target_of(module: LightningModule) -> Target:
    """The property that a module was set up for."""
    target = getattr(module, "target", None)
    if not isinstance(target, Target):
        raise ConfigError(
            f"a PropertyModule that a trainer has set up was expected, got {type(module).__name__} without. "
            "Use the run's callbacks with eqlayers.train.PropertyModule and a datamodule."
        )
    return target


def atom_shifts(model: nn.Module, statistics: Statistics, target: Target) -> dict[int, float]:
    """The shift of each atom's contribution, by species.

    The composition regression for an extensive target. The mean of the training part for an intensive one whose atoms
    are averaged; nothing where a vector is predicted, which has no constant part.
    """
    averaged = getattr(model, "pooling", None) == "mean" and getattr(model, "readout", "scalar") == "scalar"
    if target.extensive or not averaged:
        return dict(statistics.shifts)
    return dict.fromkeys(statistics.shifts, statistics.mean)


class PropertyModule(TrainedModule):
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
        checkpointing: Whether training computes parts of the network twice, for less memory; see
            :func:`eqlayers.models.recomputed`.

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
        checkpointing: bool = False,
    ) -> None:
        super().__init__(model, learning_rate, weight_decay, betas, warmup_steps, final_factor, checkpointing)
        check_choice("model.loss", loss, LOSSES)
        self.save_hyperparameters(ignore=["model"])
        self.model = model
        self.target: Target | None = None
        self.loss_scale: Tensor
        self.register_buffer("loss_scale", torch.ones((), dtype=torch.float64))
        self.errors = nn.ModuleDict({f"{stage}_errors": error_metrics() for stage in STAGES})

    def main_error(self) -> tuple[str, str]:
        """The target's mean absolute error and its unit."""
        target = target_of(self)
        return metric_name(target), target.report_unit

    def labels_of_test(self) -> dict[str, Label]:
        """The target."""
        target = target_of(self)
        unit = plain(target.report_unit)
        return {"y": Label(target.name, target.unit, target.report_unit, unit, target.report_factor)}

    def logged_names(self, data: Any) -> list[str]:
        """Names of the values that a fit on these data logs after every epoch; a callback can monitor one."""
        errors = [f"{stage}/{metric_name(data.target, kind)}" for stage in ("val", "train") for kind in ("mae", "rmse")]
        return ["val/mae", *errors, "train/loss", "train/loss_epoch"]

    # ---- set-up -----------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Take target and statistics from the data; a checkpoint loaded afterwards overwrites the statistics."""
        super().setup(stage)
        data = self.data_of(stage, "eqlayers.data.MoleculeDataModule(...)")
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

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Describe network and property, so that ``eqlayers predict structures.xyz -m best.ckpt`` reads it."""
        super().on_save_checkpoint(checkpoint)
        if self.target is not None and all(hasattr(self.model, name) for name in ("options", "species", "cutoff")):
            described = {"network": describe_part("the network", self.model), "name": self.target.name}
            checkpoint.setdefault("hyper_parameters", {})["property"] = described | {"unit": self.target.unit}

    # ---- steps ------------------------------------------------------------------------------------------------------

    def forward(self, batch: Any) -> Tensor:
        """Predictions `[G]` float64 in the target's unit for a batch of G molecules."""
        pos = batch.pos.to(self.dtype)
        with self.recomputing():
            prediction: Tensor = self.model(batch.z, pos, batch.edge_index, batch.batch, batch.num_graphs)
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
            self.log_error(f"{stage}/{metric_name(target, str(kind))}", metric, batch)
        return prediction, y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        prediction, y = self._step(batch, "train")
        loss: Tensor = LOSSES[self.hparams["loss"]](prediction / self.loss_scale, y / self.loss_scale)
        if not torch.isfinite(loss):
            raise self._not_finite(batch, prediction, y, batch_idx)
        self.log_loss("train/loss", loss, batch)
        return loss * self.share_of_step(batch, "y", batch.num_graphs)

    def _not_finite(self, batch: Any, prediction: Tensor, y: Tensor, batch_idx: int) -> DataError:
        if not torch.isfinite(y).all():
            what, fix = "targets", "Remove these molecules from the data."
            bad = ~torch.isfinite(y)
        else:
            what, bad = "predictions", ~torch.isfinite(prediction)
            fix = "Lower model.learning_rate, lengthen model.warmup_steps or lower trainer.gradient_clip_val."
        molecules = batch.idx[bad.cpu().to(batch.idx.device)][:8].tolist()
        return self.not_finite(f"{what} that are not, of molecules {molecules}", batch_idx, fix)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Errors on the validation part."""
        self._step(batch, "val")
        mae: Metric = self.errors["val_errors"]["mae"]  # type: ignore[index]
        self.log_error("val/mae", mae, batch, prog_bar=True, logger=False)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Errors on the test part; the values are kept for the report."""
        prediction, y = self._step(batch, "test")
        self.keep(batch, y_true=y, y_error=prediction - y)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Predictions of a batch with the names of its molecules, for the table of predictions."""
        fields = {"idx": batch.idx, "predicted": self(batch)}
        if getattr(batch, "y", None) is not None:
            fields["true"] = batch.y.double()
        return {name: values.tolist() for name, values in fields.items()}
