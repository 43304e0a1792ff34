"""Checkpoints of training: atomic writes, best and last epochs, and checks that network, data and checkpoint fit."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn

from ..atoms.elements import read_species, symbols_of
from ..core.checks import check_path, check_type
from ..core.errors import ConfigError, DataError
from ..core.files.archives import read_tensors, tensors_of
from ..core.files.read_write import atomic_write, few
from ..data.datamodule import PARTS, SplitDataModule
from ..data.qm9 import Target
from ..models.saving import misfit
from .optimizers import OPTIMIZERS, check_optimizer

#: Key of a checkpoint -> type of its value, and whether it is required.
CONTENT: dict[str, tuple[type, bool]] = {
    "state_dict": (dict, True),
    "pytorch-lightning_version": (str, True),
    "epoch": (int, False),
    "global_step": (int, False),
    "loops": (dict, False),
    "callbacks": (dict, False),
    "optimizer_states": (list, False),
    "lr_schedulers": (list, False),
    "hyper_parameters": (dict, False),
    "current_model_state": (dict, False),
    "averaging_state": (dict, False),
    "eqlayers_data": (dict, False),
    "eqlayers_structures": (dict, False),
}
INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"
FIX = "Use the config.yaml beside the checkpoint's folder, or another checkpoint that `eqlayers fit` wrote."
ANOTHER = "Use another checkpoint of the run (best.ckpt, last.ckpt), or train again."


def read_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint; only tensors and plain Python values are unpickled.

    Args:
        path: The file.
        map_location: See :func:`torch.load`.

    Returns:
        The checkpoint's dictionary.

    Raises:
        ConfigError: There is no such file.
        DataError: The file is truncated, damaged, or not a checkpoint.

    Example:
        >>> read_checkpoint("no/such.ckpt")
        Traceback (most recent call last):
        ...
        eqlayers.errors.ConfigError: a checkpoint must be a file, got nothing at no/such.ckpt. ...
    """
    path = Path(check_path("a checkpoint", path, "the path of a file"))
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.ckpt")) if path.parent.is_dir() else []
        fix = f"{path.parent} has {few(near)}." if near else "Run `eqlayers fit` first, or pass another --ckpt_path."
        present = "a folder" if path.is_dir() else "nothing"
        raise ConfigError(f"a checkpoint must be a file, got {present} at {path}. {fix}")
    wrong = f"a checkpoint must be a file that `eqlayers fit` wrote, got {path} ({path.stat().st_size} bytes):"
    try:
        checkpoint: dict[str, Any] = read_tensors(path, map_location)
    except DataError as error:
        raise DataError(f"{wrong} {error}. {ANOTHER}") from None
    problem = _problem(checkpoint)
    if problem is not None:
        raise DataError(f"{wrong} {problem}. {ANOTHER}")
    return checkpoint


def _problem(checkpoint: Any) -> str | None:
    """Describe the first problem in the content of a checkpoint; None if it is valid."""
    if not isinstance(checkpoint, dict):
        return f"it holds a {type(checkpoint).__name__}, not a dictionary"
    missing = [key for key, (_, needed) in CONTENT.items() if needed and key not in checkpoint]
    if missing:
        return f"it has no {missing[0]!r}, but {', '.join(map(repr, list(checkpoint)[:5])) or 'nothing'}"
    for key, (expected, _) in CONTENT.items():
        if key in checkpoint and (not isinstance(checkpoint[key], expected) or isinstance(checkpoint[key], bool)):
            return f"its {key!r} must be a {expected.__name__}, it is a {type(checkpoint[key]).__name__}"
    for key in ("state_dict", "current_model_state", "eqlayers_structures"):
        other = [name for name, value in checkpoint.get(key, {}).items() if not isinstance(value, Tensor)]
        if other:
            return f"its {key!r} must hold tensors, {other[0]!r} is a {type(checkpoint[key][other[0]]).__name__}"
    for key in ("state_dict", "current_model_state", "optimizer_states"):
        if not all(torch.isfinite(tensor).all() for tensor in tensors_of(checkpoint.get(key))):
            return f"its {key!r} must hold finite numbers, some are NaN or infinite"
    if not re.match(r"\d+\.\d+", checkpoint["pytorch-lightning_version"]):
        return "its 'pytorch-lightning_version' is no version"
    options = checkpoint.get("hyper_parameters", {})
    if options.get("_instantiator", INSTANTIATOR) != INSTANTIATOR or "_class_path" in options:
        return "its 'hyper_parameters' name a function or class to be called that is not Lightning's own"
    facts = checkpoint.get("eqlayers_data")
    if facts is not None and not (facts.keys() == {"target"} and isinstance(facts["target"], str)):
        return "its 'eqlayers_data' must have a text for target, it has others"
    return None


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint writer that writes a temporary file in the same folder and renames it, so that no partial file exists.

    Lightning's writer uses the system's temporary folder, from which a move may be a copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path`` atomically; a failure keeps an existing file."""
        with atomic_write(Path(path)) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read and check a checkpoint; see :func:`read_checkpoint`."""
        return read_checkpoint(path, map_location)


class SameLossCallback(Callback):
    """Base of callbacks that compare validation losses only if they have equal weights of their terms."""

    monitor: Any
    weights: dict[str, float] | None = None

    def changes(self, trainer: Trainer, module: LightningModule) -> bool:
        """Whether weights of the monitored loss changed since the last validation, as in a second stage."""
        if trainer.sanity_checking or self.monitor != "val/loss":
            return False
        before, self.weights = self.weights, module.loss_weights()  # type: ignore[operator]
        return before not in (None, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """State of the callback, with the weights of the compared loss."""
        return super().state_dict() | {"loss_weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best value and the weights of its loss."""
        super().load_state_dict(state_dict)
        self.weights = state_dict.get("loss_weights")


class Best(SameLossCallback, ModelCheckpoint):
    """Save the epoch with the lowest validation value as `best.ckpt`, and have the last epoch validated.

    When the second stage of a training starts, `best.ckpt` is saved as `first_stage.ckpt`, and the comparison restarts.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the monitored value to ``best_by`` of the module, unless it was given."""
        self.monitor = self.monitor or getattr(pl_module, "best_by", "val/mae")
        super().setup(trainer, pl_module, stage)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enable validation of the last epoch, also if ``trainer.check_val_every_n_epoch`` does not divide it."""
        plan = getattr(pl_module, "plan", None)
        epoch_steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        if plan is not None and trainer.check_val_every_n_epoch and trainer.global_step + epoch_steps == plan.steps:
            trainer.check_val_every_n_epoch = 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restart the comparison if the weights of the loss changed."""
        before = self.weights
        if self.changes(trainer, pl_module):
            self.best_k_models, self.best_model_score, self.kth_best_model_path = {}, None, ""
            best = Path(str(self.dirpath)) / "best.ckpt"
            # copied: a kill before the next save must leave best.ckpt, which may be one of this stage after a kill
            if trainer.is_global_zero and best.is_file() and _loss_weights_of(best) == before:
                with atomic_write(best.with_name("first_stage.ckpt")) as file:
                    file.write(best.read_bytes())
        super().on_validation_end(trainer, pl_module)


def _loss_weights_of(path: Path) -> dict[str, float] | None:
    """Weights of the loss that a best checkpoint was chosen by."""
    states = read_checkpoint(path).get("callbacks", {}).items()
    return next((state["loss_weights"] for name, state in states if name.startswith("Best")), None)


class Stopping(SameLossCallback, EarlyStopping):
    """Early stopping that restarts its patience when the weights of the loss change.

    Args:
        monitor: Name of a logged value; None for the value by which `best.ckpt` is chosen.
        patience: Number of validations without improvement.
        strict: Whether a validation without the value raises an error.
        **options: Options of :class:`lightning.pytorch.callbacks.EarlyStopping`.
    """

    def __init__(self, monitor: str | None = None, patience: int = 50, strict: bool = False, **options: Any) -> None:
        super().__init__(monitor, patience=patience, strict=strict, **options)  # type: ignore[arg-type]  # set by the fit

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restart the comparison if the weights of the loss changed."""
        if self.changes(trainer, pl_module):
            self.best_score, self.wait_count = torch.full_like(self.best_score, math.inf), 0


def best_and_last(folder: str | Path, monitor: str | None = None) -> list[ModelCheckpoint]:
    """Callbacks that write ``best.ckpt`` by the monitored value, and ``last.ckpt`` after every epoch.

    They are two because ``ModelCheckpoint(save_last=True)`` updates its last file only when the best one changes.

    Args:
        folder: Folder of the files.
        monitor: Name of a logged value; None for ``val/loss`` of a potential and ``val/mae`` of a property.

    Example:
        >>> [callback.filename for callback in best_and_last("checkpoints")]
        ['best', 'last']
    """
    if monitor is not None:
        check_type("monitor", monitor, str, "the name of a logged value, or None", "The error is val/mae.")
    shared: dict[str, Any] = dict.fromkeys(("enable_version_counter", "auto_insert_metric_name"), False)
    shared["dirpath"] = check_path("folder", folder)
    return [
        Best(filename="best", monitor=monitor, mode="min", save_top_k=1, **shared),
        ModelCheckpoint(filename="last", monitor=None, save_top_k=1, save_on_train_epoch_end=True, **shared),
    ]


# ---- checks before a checkpoint is restored --------------------------------------------------------------------------


def check_weights(module: nn.Module, saved: Mapping[str, Any], strict: bool = True) -> None:
    """Raise unless saved weights have the names, shapes and dtypes of a module's."""
    if (problem := misfit(module.state_dict(), saved, strict)) is not None:
        inner, name = getattr(module, "model", None), type(module).__name__
        name += f" around {type(inner).__name__}" if isinstance(inner, nn.Module) else ""
        raise DataError(f"the checkpoint must hold the weights of {name}, got {problem}. {FIX}")


def check_training(checkpoint: Mapping[str, Any], optimizer: Any, parameters: Sequence[Tensor]) -> None:
    """Raise unless a checkpoint can resume a training: counters, and moments of the parameters' shapes."""
    missing = [key for key in ("loops", "callbacks", "optimizer_states", "lr_schedulers") if key not in checkpoint]
    if missing:
        raise DataError(f"the checkpoint must hold the state of a training, got one without {missing[0]!r}. {FIX}")
    saved = checkpoint.get("hyper_parameters", {}).get("optimizer", optimizer)
    mine = name, _ = check_optimizer(optimizer, None)
    if mine != check_optimizer(saved, None):
        raise ConfigError(
            f"model.optimizer must be {saved!r}, with which the run was begun, got {optimizer!r}. Leave it out, or "
            "begin a new run from the weights: --start_from FILE."
        )
    try:
        (only,) = checkpoint["optimizer_states"]
        indices = [index for group in only["param_groups"] for index in group["params"]]
        states = only["state"] if name in OPTIMIZERS else {}
        moments = {index: values["exp_avg"].shape for index, values in states.items()}
        second = {index: values["exp_avg_sq"].shape for index, values in states.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"the checkpoint must hold the state of one {name} optimizer, got another content "
            f"({type(error).__name__}). {FIX}"
        ) from error
    expected = {index: parameter.shape for index, parameter in zip(indices, parameters, strict=False)}
    fits = len(indices) == len(parameters) and moments == second and moments.items() <= expected.items()
    if name in OPTIMIZERS and not fits:  # others may take a part of the network
        raise DataError(
            f"the checkpoint must hold the state of {name} of {len(parameters)} parameters, got one of {len(indices)}, "
            f"or of other shapes. {FIX}"
        )


def follow_folder(state: dict[str, Any], path: Path, folder: Path) -> None:
    """Update paths in the state of a ModelCheckpoint to the present folder of a run that was moved."""
    if path.resolve().parent != folder.resolve():  # the checkpoint of another run
        return
    keys = ("best_model_path", "kth_best_model_path", "last_model_path")
    state |= {key: state[key] and str(folder / Path(state[key]).name) for key in keys}
    best = {str(folder / Path(name).name): value for name, value in state["best_k_models"].items()}
    state |= {"dirpath": str(folder), "best_k_models": best}


def while_restoring(error: BaseException) -> bool:
    """Whether an error was raised while Lightning restored a checkpoint."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.endswith("checkpoint_connector.py") for frame, _ in frames)


#: Arguments that say how a network computes, which no weight depends on.
SAME_WEIGHTS = ("knots",)
#: Read-outs of one target each, which scalars can be fitted to as well.
SPECIAL = {
    "vector": ("mu", "a vector read-out predicts a norm"),
    "extent": ("r2", "the read-out of an extent has squared distances"),
}


def check_network(model: nn.Module, data: Any) -> None:
    """Raise unless the network can learn the target of the data: cutoff, species, pooling and read-out."""
    if not callable(getattr(model, "set_statistics", None)):
        raise ConfigError(
            f"the network must have set_statistics(shifts, scale, mean_neighbors), got {type(model).__name__}. "
            "Use eqlayers.models.MoleculeNetwork, or give your network this method."
        )
    mine, theirs = getattr(model, "cutoff", None), getattr(data, "cutoff", None)
    if mine is not None and theirs is not None and float(mine) != float(theirs):
        raise ConfigError(
            f"model and data must have one cutoff, got {mine} Angstrom in the model and {theirs} in the data. "
            "Set data.cutoff and model.model.init_args.cutoff to the same number."
        )
    known, present = getattr(model, "species", None), data.statistics.species
    if known is not None and not set(present) <= set(known):
        raise ConfigError(
            f"the network must know every species of the data, {symbols_of(present)}, got {symbols_of(known)}. "
            "Set model.model.init_args.species."
        )
    if getattr(data, "target", None) is not None:  # structures have energies, and networks of them no read-out
        _check_readout(model, data.target)


def check_outputs(model: nn.Module, data: Any) -> None:
    """Raise unless the network has the further outputs of the data, and the sum that is the target."""
    expected = {name: each.pooling for name, each in data.further().items()}
    if not callable(getattr(model, "outputs", None)):
        raise ConfigError(
            f"the network must have further outputs for data.auxiliary ({', '.join(expected)}), got "
            f"{type(model).__name__}, which has none. Use eqlayers.models.MoleculeNetwork, or leave data.auxiliary out."
        )
    mine, parts = dict(getattr(model, "auxiliary", {})), tuple(getattr(model, "sum_of", ()))
    if mine != expected or parts != data.sum_of:
        raise ConfigError(
            f"auxiliary and sum_of of the network must be {expected} and {list(data.sum_of)}, as of the data, got "
            f"{mine} and {list(parts)}. Leave both out of model.model.init_args, or set them so."
        )


def _check_readout(model: nn.Module, target: Target) -> None:
    readout, pooling = getattr(model, "readout", None), getattr(model, "pooling", None)
    for special, (name, what) in SPECIAL.items():
        if readout == special and target.name != name:
            raise ConfigError(
                f"{what}, so it is for the target {name}, got {target.name}. "
                "Set model.model.init_args.readout to scalar."
            )
    if target.name == "mu":
        return  # the one property that is the norm of a vector; scalars can be fitted to it as well
    needed = "sum" if target.extensive else "mean"
    if pooling is not None and pooling != needed:
        growth = "grows with the molecule" if target.extensive else "does not grow with the molecule"
        raise ConfigError(
            f"{target.name} {growth}, so atoms must be pooled by {needed}, got {pooling}. "
            f"Set model.model.init_args.pooling to {needed}."
        )


def data_facts(data: Any) -> dict[str, str]:
    """Facts about a data module that a checkpoint stores: the name of the target."""
    target = getattr(data, "target", None)
    return {"target": "energies of structures" if target is None else getattr(target, "name", target)}


def check_checkpoint(saved: Mapping[str, Any], data: Any) -> None:
    """Raise if a checkpoint was made for another target."""
    if saved["target"] != (now := data_facts(data)["target"]):
        raise ConfigError(
            f"the checkpoint predicts {saved['target']}, got data.target {now}. "
            f"Set data.target to {saved['target']}, or train another network under another --name."
        )


def identities(data: Any) -> dict[str, Tensor]:
    """A hash of each structure of each part of some data, the training part first; nothing of foreign data modules."""
    parts = {name: data.part(name) for name in PARTS} if isinstance(data, SplitDataModule) else {}
    return {name: torch.from_numpy(part.structures.identities[part.rows]) for name, part in parts.items() if len(part)}


def check_unseen(saved: Mapping[str, Tensor], data: Any, parts: Sequence[str]) -> dict[str, tuple[float, str]]:
    """Find structures of a validation or test part that the weights of a checkpoint were trained on.

    ``saved`` has hashes by part as the checkpoint stores them; "start" are structures that ``start_from`` was trained
    on. Copies that were in both parts when the checkpoint was written do not count, as `check_parts` reports them.

    Returns by part with such structures the fraction of them, and a sentence. ConfigError if a part that is drawn from
    the data set has structures of the checkpoint's training part.
    """
    repeated = {}
    for name, now in identities(data).items():
        ours, again, old = (torch.isin(now, saved.get(key, now[:0])) for key in (name, "train", "start"))
        number, seen = (int(which.sum()) if name in parts else 0 for which in (again & ~ours, again & ~ours | old))
        if number and data.is_drawn(name):
            raise ConfigError(
                f"the {name} part must hold no structure that the checkpoint was trained on, got {number} of "
                f"{len(now)}. Set data.path, data.split, data.split_seed and the sizes of the parts as the run's "
                "config.yaml has them, or train anew under another --name."
            )
        if seen:
            about = f"{seen} of {len(now)} {name} structures, {seen / len(now):.0%}, were trained on"
            repeated[name] = seen / len(now), f"{about}: errors on them say nothing of new structures"
    return repeated


def differences(path: str, saved: Any, mine: Any) -> list[str]:
    """The differences between two nested mappings of arguments, a text for each value that weights depend on."""
    if isinstance(saved, Mapping) and isinstance(mine, Mapping):
        keys = sorted((saved.keys() | mine.keys()).difference(SAME_WEIGHTS))
        return [line for key in keys for line in differences(f"{path}.{key}", saved.get(key), mine.get(key))]
    if path.endswith(".species") and saved and mine and read_species(saved) == read_species(mine):
        return []  # symbols are atomic numbers
    return [] if saved == mine else [f"{path}: {saved!r} -> {mine!r}"]
