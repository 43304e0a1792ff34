"""The Lightning module: loss, optimizer, schedule and metrics around any network of molecules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.checks import check_choice
from ..core.errors import ConfigError, ShapeError
from ..data.datamodule import auxiliaries
from ..data.qm9 import Target, check_target
from ..data.statistics import Statistics
from ..data.structures import Label
from ..models.saving import describe_part
from .base import TrainedModule
from .checkpoints import check_network, check_outputs
from .steps import OF_LABELS, STAGES, Values, error_metrics, label_of, metric


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
    float64. Further labels of the data, ``auxiliary``, are added with their weights, each over its own deviation, and
    the parts of a sum over the target's. Logged are ``{train,val,test}/<target>_mae_<unit>`` (and ``rmse``) in the
    target's report unit; ``val/loss``; and ``val/mae``, the mean absolute error under a name that does not depend on
    the target, for checkpoints and early stopping.

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
        optimizer: 'soap' (:class:`eqlayers.optim.SOAP`), 'adamw', or ``class_path`` and ``init_args`` of another.

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
    #: Weights of further labels by name, and the one that only molecules without the target are trained on.
    auxiliary: Mapping[str, float] = {}
    without_target: str | None = None

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float = 1e-2,
        weight_decay: float = 0.0,
        betas: tuple[float, float] | None = None,
        warmup_steps: int = 100,
        final_factor: float = 0.0,
        loss: Literal["l1", "huber", "mse"] = "l1",
        checkpointing: bool = False,
        optimizer: str | dict[str, Any] = "soap",
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
        return {"y": label_of(target), **{key: each.label for key, each in auxiliaries(data).items()}}

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
        statistics, further = data.statistics, auxiliaries(data)
        self.auxiliary, self.without_target = getattr(data, "auxiliary", {}), getattr(data, "without_target", None)
        if further:
            check_outputs(self.model, data)
            self._scales = dict(zip(further, (scale for _, scale in statistics.auxiliary.values()), strict=True))
        self.labels = self.judged = self.watched = ("y", *further)
        for key in further:
            for name in [f"{stage}_{key}" for stage in STAGES if f"{stage}_{key}" not in self.errors]:
                self.errors[name] = error_metrics().to(self.device)
            for name in [f"{key}_{what}" for what in OF_LABELS if f"{key}_{what}" not in self.test_values]:
                self.test_values[name] = Values().to(self.device)
        if stage == "fit":
            self.loss_scale.fill_(statistics.scale)
            more = {"auxiliary": statistics.auxiliary} if further else {}
            self.model.set_statistics(  # type: ignore[operator]
                shifts=atom_shifts(self.model, statistics, data.target),
                scale=statistics.scale,
                mean_neighbors=statistics.mean_neighbors,
                **more,
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
        return self._predicted(batch)["y"]

    def _predicted(self, batch: Any) -> dict[str, Tensor]:
        """Predictions of a batch: "y", and the network's further outputs by name if there are such labels."""
        pos = batch.pos.to(self.dtype)
        call: Any = self.model.outputs if self.auxiliary else self.model
        with self.recomputing():
            outputs = call(batch.z, pos, batch.edge_index, batch.batch, batch.num_graphs)
        predictions: dict[str, Tensor] = outputs if self.auxiliary else {"y": outputs}
        prediction = predictions["y"]
        if prediction.shape != (batch.num_graphs,):
            raise ShapeError(
                f"the network must return [G] = [{batch.num_graphs}], one number a molecule, got "
                f"{list(prediction.shape)}. Pool over the atoms of each molecule and drop the channel axis."
            )
        return predictions | {"y": prediction.double()}

    def outputs(self, batch: Any, more: bool = False) -> Mapping[str, Tensor]:
        """Predictions of a batch by label."""
        if not self.auxiliary:
            return {"y": self(batch)}
        values = self._predicted(batch)
        return {key: values[name] for key, name in zip(self.labels, ("y", *self.auxiliary), strict=True)}

    def loss_weights(self) -> dict[str, float]:
        """1 of the target, and the weights of further labels."""
        return dict(zip(self.labels, (1.0, *self.auxiliary.values()), strict=True))

    def rows(self, batch: Any, predictions: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """Predictions and labels of molecules, over the deviation of the training part."""
        yield "y", predictions["y"][:, None], batch.y[:, None].double(), 1 / self.loss_scale
        for key in self.labels[1:]:
            value, label = (each.double().reshape(len(each), -1) for each in (predictions[key], batch[key]))
            yield key, value, label, label.new_full((), 1 / self._scales[key])

    def counted(self, name: str, labelled: Tensor, batch: Any) -> Tensor:
        """All labelled rows, but of a part of the target those alone of molecules without the target."""
        if self.without_target is None or name != self.labels[1 + [*self.auxiliary].index(self.without_target)]:
            return labelled
        return labelled & torch.isnan(batch.y)
