"""Base of every module that is trained: precision, optimizer, schedule of the learning rate, checks of checkpoints."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ..core.checks import check_choice, check_flag, check_integer, check_module, check_number, check_type
from ..core.errors import ConfigError, DataError, EqlayersError
from ..models import recomputed
from ..models.compiled import WORTH_COMPILING, Compiles
from ..models.saving import build_part
from ..optim import parameter_groups
from .checkpoints import (
    FIX,
    Stopping,
    check_checkpoint,
    check_training,
    check_unseen,
    check_weights,
    data_facts,
    differences,
    follow_folder,
    identities,
    read_checkpoint,
)
from .optimizers import build_optimizer, check_optimizer
from .steps import LOSSES, LabelledModule

PRECISIONS = ("32-true", "64-true")


def check_precision(trainer: Trainer) -> None:
    """Refuse half precision, mixed or not.

    Energies, shifts and sums over atoms are in float64 anyway, and what is left for 16 bits is not safe: bfloat16 in
    the linear layers alone moves the energies of a trained potential by more than its error.
    """
    if trainer.precision not in PRECISIONS:
        raise ConfigError(
            f"trainer.precision must be {' or '.join(PRECISIONS)}, got {trainer.precision!r}. Leave it out: energies "
            "are summed in float64 anyway, and 16 bits elsewhere cost more accuracy than a good network has."
        )


def to_precision(trainer: Trainer, module: LightningModule) -> None:
    """Convert a module to the precision of its trainer; a second time does nothing.

    Lightning does it after a checkpoint was restored, when the digits are lost.
    """
    check_precision(trainer)
    trainer.precision_plugin.convert_module(module)


def is_dry_run(trainer: Trainer) -> bool:
    """Whether this is `trainer.fast_dev_run`: a few batches to see that everything works, and no file written."""
    return bool(getattr(trainer, "fast_dev_run", False))


class TrainedModule(LabelledModule):
    """Base of trained modules: a network in ``model``, an optimizer, and a schedule that rises and falls."""

    #: The logged value whose lowest is in `best.ckpt`, unless ``checkpoint.monitor`` names another.
    best_by = "val/mae"
    #: Whether a fit compiles the calls of the network; "auto" for a fit of enough steps.
    compiling: bool | str = False

    def __init__(
        self, model: nn.Module, optimizer: tuple[Any, ...], schedule: tuple[int, float], loss: str, checkpointing: bool
    ) -> None:
        super().__init__()
        self.plan: Plan | None = None
        self.saved_plan: Plan | None = None
        self._trained = self.of_start = torch.empty(0, dtype=torch.int64)  # hashes: before this start, of start_from
        self.trained_share: dict[str, float] = {}  # by part: the fraction of its structures that were trained on
        self._done = (0, 0)  # steps in whole epochs, and these epochs, before this start
        choice, learning_rate, weight_decay, betas = optimizer
        check_module("model", model)
        check_choice("model.loss", loss, LOSSES)
        check_number("model.learning_rate", learning_rate, above=0, fix="Use a value such as 1e-3.")
        check_flag("model.checkpointing", checkpointing)
        check_number("model.weight_decay", weight_decay, at_least=0, fix="Use a value such as 0.")
        warmup_cosine(schedule[0], 1, schedule[1])  # refuses what cannot be before the data are loaded
        check_optimizer(choice, betas)

    def setup(self, stage: str) -> None:
        """Take the precision before a checkpoint is restored, whose numbers would be rounded otherwise."""
        to_precision(self.trainer, self)

    def recomputing(self) -> AbstractContextManager[None]:
        """Context manager for calls of the network: with ``checkpointing``, the backward pass recomputes parts."""
        again = self.hparams["checkpointing"] and self.training
        return recomputed(check_module("model", self.model)) if again else nullcontext()

    def data_of(self, stage: str, fix: str) -> Any:
        """The data module of the trainer, which must have statistics."""
        data = getattr(self.trainer, "datamodule", None)
        if data is None or not hasattr(data, "statistics"):
            raise ConfigError(
                f"a datamodule with `statistics` was expected in trainer.{stage}, got none. Pass datamodule={fix}."
            )
        return data

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer, and a schedule that moves at every step."""
        hparams, model = self.hparams, check_module("model", self.model)
        settings = (hparams[name] for name in ("learning_rate", "betas", "weight_decay"))
        optimizer = build_optimizer(hparams["optimizer"], model, *settings)
        steps = self._planned_steps()
        schedule = warmup_cosine(hparams["warmup_steps"], steps, hparams["final_factor"])
        epochs = self.trainer.max_epochs or -1
        self.plan = Plan(epochs, int(steps), hparams["warmup_steps"], float(hparams["final_factor"]))
        scheduler: Any = {"scheduler": LambdaLR(optimizer, schedule), "interval": "step", "name": "learning_rate"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of the weights alone: gradients of positions would be computed again, and dropped."""
        groups = self.trainer.optimizers[0].param_groups  # a list, where parameters() walks through all modules
        weights = [weight for group in groups for weight in group["params"] if weight.requires_grad]
        super().backward(loss, *args, inputs=weights, **kwargs)

    def _planned_steps(self) -> float:
        """Steps of the training: those that are done, and those to come, whose batches may be of another size."""
        trainer, (steps, epochs) = self.trainer, self._done
        whole = trainer.estimated_stepping_batches
        if steps == 0 or trainer.max_epochs in (None, -1):
            return whole
        each = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        steps += max(0, trainer.max_epochs - epochs) * each
        return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)

    def on_train_epoch_end(self) -> None:
        """Check the last losses and steps."""
        self._check()

    def _check(self) -> None:
        """Raise DataError if a loss is not finite, or the optimizer skipped a step because of its gradients."""
        self.check_losses()
        for optimizer in [] if self._trainer is None else self._trainer.optimizers:
            skipped = getattr(optimizer, "skipped", None)
            if skipped is not None and int(skipped):
                raise DataError(
                    f"gradients must be finite, got others in {int(skipped)} steps until epoch {self.current_epoch}. "
                    "Lower model.learning_rate, clip gradients, or look for atoms too near to each other."
                )

    def called(self) -> nn.Module:
        """The module whose calls can be compiled."""
        return check_module("model", self.model)

    def _compile(self) -> None:
        """Compile the calls of the network, if that is configured and pays."""
        called, again, required = self.called(), self.hparams["checkpointing"], self.compiling is True
        steps = 0 if self.plan is None else self.plan.steps - self.trainer.global_step
        if required and (again or not isinstance(called, Compiles)):
            what = "model.checkpointing" if again else f"a network of the class {type(called).__name__}"
            raise ConfigError(
                f"compile must be auto or false where a network cannot be traced, got {what}. Set compile to false."
            )
        if isinstance(called, Compiles) and (required or (self.compiling and not again and steps >= WORTH_COMPILING)):
            called.compile(required=required)
            if self.trainer.is_global_zero:
                print("compile: the network is traced at the first step, which takes 1 to 10 seconds", flush=True)

    def on_train_start(self) -> None:
        """Compile, use this start's learning-rate plan where the checkpoint has another one, and print the change."""
        self._compile()
        if self.saved_plan is None or self.plan is None:
            return
        scheduler = self.trainer.lr_scheduler_configs[0].scheduler
        base = float(scheduler.base_lrs[0])
        if self.saved_plan != self.plan:  # the optimizer was restored with the rate of the old plan
            for group in scheduler.optimizer.param_groups:
                group["lr"] = self.plan.rate(base, self.trainer.global_step)
        if not self.trainer.is_global_zero:
            return
        groups, step = scheduler.optimizer.param_groups, self.trainer.global_step
        decay = max(group["weight_decay"] for group in groups)
        restored: dict[str, Any] = {"learning_rate": base, "weight_decay": decay}
        if self.hparams["betas"] is not None and "betas" in groups[0]:
            restored["betas"] = tuple(groups[0]["betas"])
        for name, value in restored.items():
            now = type(value)(self.hparams[name])
            if value != now:
                print(f"{name.replace('_', ' ')}: model.{name} stays {value}, with which the run was begun, not {now}")
        if (line := self.saved_plan.change(self.plan, step, base, self.hparams.get("second_stage"))) is not None:
            print(line, flush=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Record what the weights were trained on, and the plan of the learning rate."""
        self._check()  # before weights that are not finite are saved
        if self.plan is not None:
            checkpoint["eqlayers_plan"] = list(self.plan)
        if (data := self._data()) is not None:
            checkpoint["eqlayers_data"], parts = data_facts(data), identities(data)
            trained = torch.cat([parts.get("train", self._trained), self._trained])  # before this start as well
            checkpoint["eqlayers_structures"] = parts | {"train": trained.unique(), "start": self.of_start}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Compare what was saved with what is configured, before tensors of other shapes are met one by one."""
        plan: Any = checkpoint.get("eqlayers_plan")
        whole = isinstance(plan, (list, tuple)) and len(plan) == len(Plan._fields)
        self.saved_plan = Plan(*plan) if whole and all(isinstance(one, (int, float)) for one in plan) else None
        self.plan, self.step = self.plan or self.saved_plan, checkpoint.get("global_step", 0) - 1
        saved_data, structures, data = *map(checkpoint.get, ("eqlayers_data", "eqlayers_structures")), self._data()
        if saved_data and data is not None:
            check_checkpoint(saved_data, data)
        if structures and data is not None:
            self._trained, self.of_start = structures["train"], structures.get("start", self.of_start)
            parts = {"fit": ("val", "test"), "validate": ("val",)}.get(self.trainer.state.fn or "test", ("test",))
            self.say_seen(structures, data, parts)
        mine, saved = self.hparams.get("model"), checkpoint.get("hyper_parameters", {}).get("model")
        changes = ", ".join(differences("model.model", saved, mine)) if mine and saved else ""
        if changes:
            raise ConfigError(
                f"the checkpoint must hold the configured network; they differ (saved -> configured): {changes}. "
                "Use the config.yaml beside the checkpoint's folder, or train anew under another --name."
            )
        if self._trainer is not None and self.trainer.training:
            check_weights(self, checkpoint["state_dict"], self.strict_loading)  # another module's have no state either
            groups = parameter_groups(self.model, self.hparams["weight_decay"])  # type: ignore[arg-type]
            check_training(checkpoint, self.hparams["optimizer"], [p for group in groups for p in group["params"]])
            batches = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
            ended = bool(batches["is_last_batch"])
            within = 0 if ended else batches["current"]["ready"] // self.trainer.accumulate_grad_batches
            self._done = checkpoint["global_step"] - within, checkpoint["epoch"] + ended
            for one in self.trainer.callbacks:  # type: ignore[attr-defined]
                state = checkpoint["callbacks"].get(getattr(one, "state_key", None))
                if isinstance(one, Stopping) and state is not None:
                    state["patience"] = one.patience  # Lightning restores the old one
                if isinstance(one, ModelCheckpoint) and state is not None:
                    follow_folder(state, Path(str(self.trainer.ckpt_path)), Path(str(one.dirpath)))

    def say_seen(self, structures: Mapping[str, Tensor], data: Any, parts: Sequence[str]) -> None:
        """Print and record which parts hold structures that were trained on; see :func:`check_unseen`."""
        for name, (seen, sentence) in check_unseen(structures, data, parts).items():
            self.trained_share[name] = seen
            if sentence not in data.findings:
                data.findings.append(sentence)
                if self.trainer.is_global_zero:
                    print(sentence, flush=True)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Any, map_location: Any = None, *, strict: bool | None = None, **options: Any
    ) -> Any:
        """Make a module from a checkpoint of tensors and plain values; ``classes`` as of ``models.load_potential``."""
        if options.pop("weights_only", None) is False:
            raise ConfigError("weights_only must be True, as a checkpoint may run code, got False. Leave it out.")
        hparams, classes = read_checkpoint(checkpoint_path).get("hyper_parameters", {}), options.pop("classes", None)
        if "model" not in options and not isinstance(hparams.get("model"), dict):
            raise ConfigError(
                f"the checkpoint must name its network, got none in {checkpoint_path}. Pass it: "
                "load_from_checkpoint(path, model=...)."
            )
        for name in {"model", "repulsion"} & hparams.keys() - options.keys():  # Lightning would make any class
            options[name] = None if hparams[name] is None else build_part(name, hparams[name], classes)
        try:
            options["weights_only"] = True
            return super().load_from_checkpoint(checkpoint_path, map_location, strict=strict, **options)
        except EqlayersError:
            raise
        except (argparse.ArgumentError, TypeError, ValueError, KeyError, AttributeError, ImportError) as error:
            if isinstance(error.__cause__, EqlayersError):
                raise error.__cause__ from None
            raise DataError(
                f"the checkpoint must hold arguments of {cls.__name__} and of its network, got others in "
                f"{checkpoint_path} ({type(error).__name__}). {FIX}"
            ) from error

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load as torch does, after a comparison of the weights with the module's."""
        check_weights(self, state_dict, strict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)


def trained_module(module: Any) -> TrainedModule:
    """Return ``module`` if it is a TrainedModule, whose names and units callbacks read; else raise an error."""
    what = "a module of eqlayers.train"
    return check_type("what is trained", module, TrainedModule, what, "Use the run's callbacks with one.")


class Plan(NamedTuple):
    """Parameters of the learning-rate schedule; checkpoints store them, so that a resumed run can print a change."""

    epochs: int
    steps: int
    warmup_steps: int
    final_factor: float

    def rate(self, base: float, step: int) -> float:
        """The learning rate of an optimizer step."""
        return base * _factor(step, self.warmup_steps, self.steps, self.final_factor)

    def __str__(self) -> str:
        return f"{self.steps:,} steps" + (f" ({self.epochs:,} epochs)" if self.epochs > 0 else "")

    def change(self, now: Plan, step: int, base: float, second_stage: float | None = None) -> str | None:
        """A printed line on how the schedule changes from this plan to ``now`` at a step; None without a change."""
        if self == now:
            return None
        line = (
            f"schedule: {now}, before {self}; the learning rate goes on with {now.rate(base, step):.2e} and not "
            f"{self.rate(base, step):.2e}, and ends at {now.rate(base, now.steps):.2e}"
        )
        if second_stage is not None:
            line += f"; the second stage begins with step {math.ceil(second_stage * now.steps):,}"
        return line


def _factor(step: int, warmup_steps: int, total_steps: int, final: float) -> float:
    warmup = min(warmup_steps, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    if step >= total_steps:
        return final
    progress = (step - warmup) / (total_steps - warmup)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup_cosine(warmup_steps: int, total_steps: float, final: float = 0.0) -> Callable[[int], float]:
    r"""The factor on the base learning rate as a function of the step, for ``torch.optim.lr_scheduler.LambdaLR``.

    .. math::
        f(s) = \frac{s + 1}{w} \ (s < w), \qquad
        f(s) = f_\infty + (1 - f_\infty) \frac{1 + \cos(\pi (s - w) / (t - w))}{2} \ (s \ge w)

    The first step already moves (the factor is never 0), and from ``total_steps`` on the factor is ``final``.
    The cosine comes from SGDR (Loshchilov and Hutter, arXiv:1608.03983) without restarts. A plain function and not an
    object: ``LambdaLR`` would save an object's attributes in the checkpoint, and a run resumed with more epochs would
    silently keep the old length.

    Args:
        warmup_steps: Steps of the linear rise; those beyond ``total_steps`` are cut.
        total_steps: Steps of the whole training, finite.
        final: Factor at the end, between 0 and 1.

    Returns:
        ``step -> factor``.

    Raises:
        ConfigError: The training has no end, or a number is out of range.

    Example:
        >>> [round(warmup_cosine(2, 6)(step), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    warmup_steps = check_integer("model.warmup_steps", warmup_steps, 0)
    if total_steps == math.inf:
        raise ConfigError(
            "the cosine schedule must know the number of steps in advance, got a training without an end. "
            "Set trainer.max_epochs or trainer.max_steps (trainer.max_time may end it earlier)."
        )
    final = check_number("model.final_factor", final, at_least=0, at_most=1, fix="Use a value from 0 to 1.")
    total = int(check_number("total_steps", total_steps, at_least=0))
    return lambda step: _factor(step, warmup_steps, total, final)
