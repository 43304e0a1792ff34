"""Checks of a checkpoint before it is restored: a damaged checkpoint is refused before it does harm."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ..core.errors import ConfigError, DataError, EqlayersError
from ..models.saving import misfit
from .checkpoints import read_checkpoint

_FIX = "Use the config.yaml beside the checkpoint's folder, or another checkpoint that `eqlayers fit` wrote."


def check_weights(module: nn.Module, saved: Mapping[str, Any], strict: bool = True) -> None:
    """Raise unless saved weights have the names, shapes and kinds of a module's."""
    if (problem := misfit(module.state_dict(), saved, strict)) is not None:
        raise DataError(f"the checkpoint must hold the weights of {_name(module)}, got {problem}. {_FIX}")


def _name(module: nn.Module) -> str:
    inner = getattr(module, "model", None)
    return type(module).__name__ + (f" around {type(inner).__name__}" if isinstance(inner, nn.Module) else "")


def check_training(checkpoint: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
    """Raise unless a training can go on: counters are there, and the optimizer's moments belong to the parameters."""
    missing = [key for key in ("loops", "callbacks", "optimizer_states", "lr_schedulers") if key not in checkpoint]
    if missing:
        raise DataError(f"the checkpoint must hold the state of a training, got one without {missing[0]!r}. {_FIX}")
    try:
        (only,) = checkpoint["optimizer_states"]
        indices = [index for group in only["param_groups"] for index in group["params"]]
        moments = {index: values["exp_avg"].shape for index, values in only["state"].items()}
        second = {index: values["exp_avg_sq"].shape for index, values in only["state"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"the checkpoint must hold the state of one AdamW optimizer, got another content ({type(error).__name__}). "
            f"{_FIX}"
        ) from error
    expected = {index: parameter.shape for index, parameter in zip(indices, parameters, strict=False)}
    fits = len(indices) == len(parameters) and moments == second and moments.items() <= expected.items()
    if not fits:
        raise DataError(
            f"the checkpoint must hold AdamW's state of {len(parameters)} parameters, got one of {len(indices)}, or of "
            f"other shapes. {_FIX}"
        )


def while_restoring(error: BaseException) -> bool:
    """Whether an error arose while Lightning put the content of a checkpoint back into its objects."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.endswith("checkpoint_connector.py") for frame, _ in frames)


class Restored(LightningModule):
    """A module whose checkpoints are checked before anything is taken from them."""

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Any, map_location: Any = None, *, strict: bool | None = None, **options: Any
    ) -> Any:
        """Make a module from a checkpoint; only tensors and plain Python values are read from it."""
        if options.pop("weights_only", None) is False:
            raise ConfigError("weights_only must be True, as a checkpoint may run code, got False. Leave it out.")
        hparams = read_checkpoint(checkpoint_path).get("hyper_parameters", {})
        if "model" not in options and not isinstance(hparams.get("model"), dict):
            raise ConfigError(
                f"the checkpoint must name its network, got none in {checkpoint_path}. Pass it: "
                "load_from_checkpoint(path, model=...)."
            )
        try:
            return super().load_from_checkpoint(
                checkpoint_path, map_location, strict=strict, weights_only=True, **options
            )
        except EqlayersError:
            raise
        except (argparse.ArgumentError, TypeError, ValueError, KeyError, AttributeError, ImportError) as error:
            if isinstance(error.__cause__, EqlayersError):
                raise error.__cause__ from None
            raise DataError(
                f"the checkpoint must hold arguments of {cls.__name__} and of its network, got others in "
                f"{checkpoint_path} ({type(error).__name__}). {_FIX}"
            ) from error

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load as torch does, after a comparison of the weights with the module's."""
        check_weights(self, state_dict, strict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)
