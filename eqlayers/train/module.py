"""The Lightning module: loss, optimizer, schedule and metrics around any network of molecules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.checks import check_choice
from ..core.errors import ConfigError, ShapeError
from ..data.qm9 import Target, check_target
from ..data.statistics import Statistics
from ..data.structures import Label
from ..models.saving import describe_part
from .base import TrainedModule
from .checkpoints import check_network
from .steps import STAGES, error_metrics, label_of, metric


def metric_name(target: Target, kind: str = "mae") -> str:
    """Name of an error in logs and files: target, kind and unit.

    Example:
        >>> from eqlayers.data.qm9 import TARGETS
        >>> metric_name(TARGETS["U0"]), metric_name(TARGETS["alpha"], "rmse")
        ('U0_mae_meV', 'alpha_rmse_a0_3')
    """
    check_target(target)
    check_choice("kind", kind, ("mae", "rmse"))
    return metric(label_of(target), kind)


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
    float64. Logged are ``{train,val,test}/<target>_mae_<unit>`` (and ``rmse``) in the target's report unit;
    ``val/loss``; and ``val/mae``, the mean absolute error under a name that does not depend on the target, for
    checkpoints and early stopping.

    Args:
        model: Network with ``forward(z, pos, edge_index, batch, num_graphs) -> [G]`` and
            ``set_statistics(shifts, scale, mean_neighbors)``, e.g. ``eqlayers.models.MoleculeNetwork``.
        learning_rate: Highest learning rate.
        weight_decay: Decoupled weight decay, of matrices only (see :func:`eqlayers.optim.parameter_groups`).
        betas: Decay rates of the two moments; by default (0.9, 0.999) of AdamW, (0.95, 0.98) of SOAP.
        warmup_steps: Optimizer steps of the linear rise of the learning rate.
        final_factor: Learning rate at the end as a fraction of ``learning_rate``; in between, half a cosine.
        loss: ``"l1"``, ``"huber"`` (quadratic within one ``scale``) or ``"mse"``.
        checkpointing: Whether training computes parts of the network twice, for less memory; see
            :func:`eqlayers.models.recomputed`.
        optimizer: 'adamw', 'soap' (:class:`eqlayers.optim.SOAP`), or ``class_path`` and ``init_args`` of another.

    Raises:
        ConfigError: An option is out of range.

    Example:
        >>> class Zero(nn.Module):
        ...     def forward(self, z, pos, edge_index, batch, num_graphs):
        ...         return torch.zeros(num_graphs, dtype=torch.float64)
        >>> PropertyModule(Zero(), learning_rate=2e-3).hparams["learning_rate"]
        0.002
    """

    predicted = "y"

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] | None = None,
        warmup_steps: int = 100,
        final_factor: float = 0.0,
        loss: Literal["l1", "huber", "mse"] = "l1",
        checkpointing: bool = False,
        optimizer: str | dict[str, Any] = "adamw",
    ) -> None:
        chosen = (optimizer, learning_rate, weight_decay, betas)
        super().__init__(model, chosen, (warmup_steps, final_factor), loss, checkpointing)
        self.save_hyperparameters(ignore=["model"])
        self.model = model
        self.target: Target | None = None
        self.loss_scale: Tensor
        self.register_buffer("loss_scale", torch.ones((), dtype=torch.float64))
        self.errors = nn.ModuleDict({f"{stage}_y": error_metrics() for stage in STAGES})
        self.labels = self.judged = self.watched = ("y",)

    def errors_of(self, data: Any) -> dict[str, Label]:
        """The label "y", with name and units of the target."""
        target = self.target or getattr(data, "target", None)
        if not isinstance(target, Target):
            raise ConfigError(
                "a PropertyModule must have a property, got none before its set-up. Use the run's callbacks with a "
                "datamodule that has a target."
            )
        return {"y": label_of(target)}

    def main_quantity(self) -> str:
        """The quantity "y"."""
        return "y"

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

    def outputs(self, batch: Any, more: bool = False) -> Mapping[str, Tensor]:
        """Predictions of a batch by label."""
        return {"y": self(batch)}

    def rows(self, batch: Any, predictions: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """Predictions and labels of molecules, over the deviation of the training part."""
        yield "y", predictions["y"][:, None], batch.y[:, None].double(), 1 / self.loss_scale
