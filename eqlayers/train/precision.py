"""The dtypes of a training: float32 or float64 throughout, and why nothing shorter."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from ..core.errors import ConfigError

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
