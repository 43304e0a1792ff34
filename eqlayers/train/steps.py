"""Labels of a training: names of their errors, losses, and the steps that compute both, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.utilities import dim_zero_cat

from ..core.errors import DataError
from ..data import LABELS as ALL
from ..data.qm9 import Target
from ..data.structures import Label, plain

STAGES = ("train", "val", "test")


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


class MeanError(Metric):
    """The mean of a power of errors, and the root of the mean, added up in float64.

    The mean is over labels that there are. The errors of torchmetrics count all rows, or read numbers from the device.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power
        self.set_dtype(torch.float64)
        for name in ("total", "count"):
            self.add_state(name, default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, errors: Tensor, count: Tensor) -> None:
        """Add errors ``[rows, columns]``, of which so many are of a label and the others are 0."""
        norm = torch.linalg.vector_norm(errors, self.power)
        self.total += norm if self.power == 1 else norm**self.power
        self.count += count

    def compute(self) -> Tensor:
        """The mean error; NaN without labels."""
        return (self.total / self.count) ** (1 / self.power)


def error_metrics() -> MetricCollection:
    """Mean absolute and root mean squared error."""
    return MetricCollection({"mae": MeanError(1), "rmse": MeanError(2)}, compute_groups=False)


def atoms_of(batch: Any) -> Tensor:
    """The number of atoms ``[G]`` of each structure, without ``bincount``, which reads numbers from a GPU."""
    ones = torch.ones_like(batch.batch)
    return ones.new_zeros(batch.num_graphs).index_add(0, batch.batch, ones)


class Loss(NamedTuple):
    """The loss of a step, and of each label the rows that count with their losses, to name structures in an error."""

    total: Tensor
    parts: list[tuple[str, Tensor, Tensor]]
    batch: Any
    where: str


#: Steps after which losses are checked, by type of device: to read a number, Python waits for a GPU.
CHECKED_EVERY = {"cpu": 1}
CHECKED_EVERY_ON_OTHERS = 20


class LabelledModule(LightningModule):
    """Base of trained modules: losses and errors of labels, for predictions and labels as rows `[rows, columns]`.

    A module derives from it and says which labels it learns, what its network predicts, and in which unit an error is
    in the loss: `errors_of`, `main_quantity`, `outputs` and `rows`.
    """

    #: Labels that are learned; learned labels that new structures have, not replayed ones alone; learned labels that
    #: new structures and the validation part have.
    labels: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    #: The label that `predict` writes into a table.
    predicted = "energy"
    #: Errors of each stage and quantity.
    errors: nn.ModuleDict
    #: Number of the last optimizer step of the training.
    step = 0
    #: Steps after which losses are checked to be finite.
    checked_every = 1

    def __init__(self) -> None:
        super().__init__()
        names = [*TESTED, *(f"{label}_{what}" for label in (*LABELS, "y") for what in OF_LABELS)]
        self.test_values = nn.ModuleDict({name: Values() for name in names})
        self._val_sums: dict[str, Tensor] = {}  # by label: the sum of losses on the validation part, and their number
        self._logged: set[tuple[str, str]] = set()  # metrics that the trainer has in this epoch, by stage and name
        self._unchecked: list[Loss] = []

    # ---- what a module says -----------------------------------------------------------------------------------------

    def errors_of(self, data: Any) -> dict[str, Label]:
        """Quantities whose errors are logged on these data, such as "energy_per_atom", with their labels."""
        raise NotImplementedError

    def main_quantity(self) -> str:
        """The quantity whose error is shown for every epoch and is `val/mae`."""
        raise NotImplementedError

    def outputs(self, batch: Any, more: bool = False) -> Mapping[str, Tensor]:
        """Predictions of a batch by label; with ``more``, also what a test keeps besides."""
        raise NotImplementedError

    def rows(self, batch: Any, predictions: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """Name, prediction, label and factor to the unit of the loss of each label, ``[rows, columns]``."""
        raise NotImplementedError

    def counted(self, name: str, labelled: Tensor, batch: Any) -> Tensor:
        """Whether each row counts, of which ``labelled`` says whether it has a label."""
        return labelled

    def weigh(self, name: str, losses: Tensor, batch: Any, stage: str) -> Tensor:
        """Losses of rows times weights of atoms and structures."""
        return losses

    def loss_weights(self) -> dict[str, float]:
        """Weights of the labels in the loss of the last step; `best.ckpt` begins anew where they change."""
        return dict.fromkeys(self.labels, 1.0)

    def _data(self) -> Any:
        """The data module of the trainer, or None."""
        return None if self._trainer is None else getattr(self.trainer, "datamodule", None)

    # ---- names ------------------------------------------------------------------------------------------------------

    def label(self, quantity: str) -> Label:
        """The label of a quantity, in the units of the data."""
        return self.errors_of(self._data())[quantity]

    def metric(self, quantity: str, kind: str = "mae", data: Any = None) -> str:
        """Name of an error of a quantity, without its stage."""
        labels = self.errors_of(self._data() if data is None else data)
        return metric(labels[quantity], kind, "_per_atom" * quantity.endswith("_per_atom"))

    def main_error(self) -> tuple[str, str]:
        """Name of the error that is shown for every epoch, without its stage, and its unit."""
        quantity = self.main_quantity()
        return self.metric(quantity), self.label(quantity).errors

    def labels_of_test(self) -> dict[str, Label]:
        """Labels whose errors a test reports, by their name in the data."""
        return {name: self.label(name) for name in self.judged}

    def logged_names(self, data: Any) -> list[str]:
        """Names of the values that a fit on these data logs after every epoch; a callback can monitor one."""
        names = [self.metric(name, kind, data) for name in self.errors_of(data) for kind in ("mae", "rmse")]
        names = [f"{stage}/{name}" for stage in ("val", "train") for name in names]
        return ["val/mae", "val/loss", "train/loss", "train/loss_epoch", *names]

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _step(self, batch: Any, stage: str, batch_idx: int) -> Tensor:
        """The loss of a batch. No number is read: rows without a label have an error of 0, and are not counted."""
        predictions, weights = self.outputs(batch), self.loss_weights()
        total, size = torch.zeros((), dtype=torch.float64, device=self.device), LOSSES[self.hparams["loss"]]
        parts: list[tuple[str, Tensor, Tensor]] = []
        for name, value, label, factor in self.rows(batch, predictions):
            labelled = torch.isfinite(label).all(-1)
            self._log_errors(stage, name, value.detach(), label, labelled, batch)
            counted = self.counted(name, labelled, batch)
            unweighted = size(torch.where(counted[:, None], value - label, 0.0) * factor)
            parts.append((name, counted, unweighted.detach()))
            losses, count = self.weigh(name, unweighted, batch, stage), counted.sum(dtype=torch.float64)
            mean = losses.sum() / count.clamp(min=1)  # without rows 0, of which every parameter has a gradient
            if stage == "val":
                self._val_sums[name] += torch.stack([losses.detach().sum().double(), count])
            total = total + weights[name] * mean * self.share_of_step(batch, name, count)
        if "energy" in predictions and "energy" not in self.labels:  # processes wait for a gradient of all parameters
            total = total + 0.0 * predictions["energy"].sum()
        where = f"epoch {self.current_epoch}, batch {batch_idx}, step {self.global_step}"
        self._unchecked.append(Loss(total.detach(), parts, batch, where))
        if len(self._unchecked) >= self.checked_every:
            self.check_losses(together=stage == "train")
        return total

    def check_losses(self, together: bool = True) -> None:
        """Raise DataError if a loss since the last check is not finite; with its structures.

        On a GPU, steps between two checks may have been made with weights that are not finite: they are not saved.
        ``together``: whether all processes check now, so that all end: one of them saves weights.
        """
        unchecked, self._unchecked = self._unchecked, []
        if not unchecked:
            return
        finite = torch.isfinite(torch.stack([loss.total for loss in unchecked])).tolist()
        wrong = next((loss for loss, good in zip(unchecked, finite, strict=True) if not good), None)
        several = self._trainer is not None and self.trainer.world_size > 1 and self.checked_every > 1
        if together and several and not self.trainer.strategy.reduce_boolean_decision(wrong is None) and wrong is None:
            raise DataError("the loss must be finite, got another one in another process. Read its error.")
        if wrong is not None:
            total, parts, batch, where = wrong
            axes = {"N": torch.arange(batch.num_graphs, device=batch.batch.device), "A": batch.batch}
            bad = [axes[self.label(name).axis][counted & ~torch.isfinite(losses)] for name, counted, losses in parts]
            raise DataError(
                f"the loss at {where} must be finite, got {float(total)} for the structures "
                f"{batch.idx[torch.cat(bad).unique()][:8].tolist()}. Lower model.learning_rate, lengthen "
                "model.warmup_steps or lower trainer.gradient_clip_val; look for atoms too near to each other."
            )

    def _log_errors(self, stage: str, name: str, value: Tensor, label: Tensor, labelled: Tensor, batch: Any) -> None:
        error = torch.where(labelled[:, None], value.double() - label.double(), 0.0) * self.label(name).factor
        pairs, count = {name: error}, labelled.sum() * error.shape[1]
        if name == "energy":
            pairs["energy_per_atom"] = error / atoms_of(batch)[:, None]
        for quantity, rows in pairs.items():
            errors: MetricCollection = self.errors[f"{stage}_{quantity}"]  # type: ignore[assignment]
            errors.update(rows, count)
            if (stage, quantity) in self._logged:
                continue  # the trainer asks a metric for its value at the end of the epoch; a call takes it 0.3 ms
            self._logged.add((stage, quantity))
            for kind, one in errors.items(keep_base=True):
                self.log_error(f"{stage}/{self.metric(quantity, str(kind))}", one, batch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        self.step = self.global_step
        loss = self._step(batch, "train", batch_idx)
        size = {"batch_size": batch.num_graphs, "sync_dist": True}  # of all processes together
        self.log("train/loss", loss.detach(), on_step=True, on_epoch=True, prog_bar=True, **size)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Errors on the validation part."""
        self._step(batch, "val", batch_idx)
        errors: MetricCollection = self.errors[f"val_{self.main_quantity()}"]  # type: ignore[assignment]
        self.log_error("val/mae", errors["mae"], batch, prog_bar=True, logger=False)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Errors on the test part; the values are kept for the report."""
        predictions, values = self.outputs(batch, more=True), {}
        for name, value, label, _ in self.rows(batch, predictions):
            labelled = torch.isfinite(label).all(-1)
            self._log_errors("test", name, value.detach(), label, labelled, batch)
            rows = [label, value.detach().double() - label.double()]
            single = self.label(name).shape == ()
            values[f"{name}_true"], values[f"{name}_error"] = (r[:, 0] if single else r for r in rows)
        for name in self.test_values.keys() & predictions.keys():  # energies of atoms, and deviations
            values[name] = predictions[name].detach()
        values |= {"z": batch.z, "idx": batch.idx, "group": batch.group, "atoms": atoms_of(batch)}
        for name, value in values.items():
            self.test_values[name].update(value)  # type: ignore[operator]

    def on_train_epoch_start(self) -> None:
        """Log the metric objects again in this epoch."""
        self._logged.clear()
        self.checked_every = CHECKED_EVERY.get(self.device.type, CHECKED_EVERY_ON_OTHERS)

    def on_validation_epoch_start(self) -> None:
        """Check the last losses of the training, and begin the sums of the loss."""
        self.check_losses()
        self._logged.clear()
        self._val_sums = {name: torch.zeros(2, dtype=torch.float64, device=self.device) for name in self.labels}

    def on_validation_epoch_end(self) -> None:
        """Log the loss of all structures, whatever the batches were and which of them have a label."""
        self.check_losses(together=False)  # parts of processes may have other numbers of batches
        weights, loss = self.loss_weights(), torch.zeros((), dtype=torch.float64, device=self.device)
        for name, sums in self._val_sums.items():
            total, count = self.trainer.strategy.reduce(sums, reduce_op="sum")
            loss += weights[name] * total / count.clamp(min=1)
        self.log("val/loss", loss, sync_dist=True)

    def share_of_step(self, batch: Any, label: str, count: Any) -> Any:
        """The factor on the mean over ``count`` rows of a label in a batch, so that a step has the mean over its rows.

        Lightning takes the mean over the batches whose gradients it adds up, and over processes, as if each had as
        many rows. With this factor, several small batches have the gradient of one large batch.
        """
        rows = getattr(batch, "step_rows", None) if self.training else None
        return 1.0 if rows is None else count / rows[label] if rows[label] else 0.0

    def log_error(self, name: str, metric: Metric, batch: Any, **more: Any) -> None:
        """Log a metric object, whose value the trainer computes at the end of an epoch."""
        self.log(name, metric, on_step=False, on_epoch=True, batch_size=batch.num_graphs, **more)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Predictions of a batch with the rows of its structures, for the table of predictions."""
        name, groups = self.predicted, getattr(getattr(self._data(), "test_set", None), "groups", ())
        fields = {"idx": batch.idx, "predicted": self.outputs(batch)[name]}
        if (label := getattr(batch, name, None)) is not None:
            fields["true"] = label.double()
        named = {"group": [groups[index] for index in batch.group.tolist()]} if len(groups) > 1 else {}
        return {key: values.tolist() for key, values in fields.items()} | named

    def on_test_epoch_start(self) -> None:
        """Forget the values of an earlier test."""
        self._logged.clear()
        for values in self.test_values.values():
            values.reset()  # type: ignore[operator]


#: What a test keeps of each structure, and of each label, of a committee deviations as well.
TESTED = ("z", "atoms", "group", "idx", "energies")
OF_LABELS = ("true", "error", "deviation")
#: Labels of potentials.
LABELS = {name: label for name, label in ALL.items() if name != "y"}
#: Unit in names of metrics -> as people have it.
SHOWN = {label.unit: label.errors for label in LABELS.values()}
_LOGGED = ("forces", "energy_per_atom", "dipole", "polarizability", "energy", "stress")
#: Quantities whose errors are logged, with their labels; the first that the data have is the main one.
ERRORS = {name: LABELS[name.removesuffix("_per_atom")] for name in _LOGGED}


def _huber(error: Tensor) -> Tensor:
    size = error.norm(dim=-1)
    return torch.where(size < 1, 0.5 * size**2, size - 0.5)


#: Losses of the rows of an error, in units of the scale.
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": lambda error: error.norm(dim=-1),
    "huber": _huber,
    "mse": lambda error: error.square().mean(-1),
}


def metric(label: Label, kind: str, part: str = "") -> str:
    """Name of an error in logs and files: label, kind and unit."""
    return f"{plain(label.name)}{part}_{kind}_{label.unit}"


def label_of(target: Target) -> Label:
    """The label ``y`` with name and units of a property."""
    unit, factor = target.report_unit, target.report_factor
    return ALL["y"]._replace(name=target.name, values=target.unit, errors=unit, unit=plain(unit), factor=factor)
