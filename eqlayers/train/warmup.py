"""`eqlayers warmup`: the kernels of a training, compiled ahead of it by one step on real data."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule
from rich.console import Console
from rich.progress import track

from eqlayers_kernels.triton.run.aot import TARGETS

from ..cli.arguments import ArgumentParser
from ..core.errors import ConfigError
from ..nn import warmup
from .cli import TrainingCLI
from .cli import run as run_training

#: One batch of training and one of validation, on one device and with no file written.
ONE_STEP = {"fast_dev_run": 1, "devices": 1, "num_nodes": 1, "strategy": "auto"}
#: Precisions that Lightning replaces by another on CPUs.
NOT_ON_CPU = ("16-mixed", "16", 16)


class WarmupCLI(TrainingCLI):
    """`fit` cut down to a step of training and one of validation, which says what it compiled."""

    makes_run = False

    def __init__(self, args: Sequence[str], targets: Sequence[str]) -> None:
        self.targets = targets
        super().__init__(args)

    def own_options(self) -> dict[str, Any]:
        """No callbacks, loggers or checkpoints of a run."""
        precision = self.configured.get("precision")
        if self.targets and precision in NOT_ON_CPU:
            raise ConfigError(
                f"trainer.precision must be one that CPUs have for --target, where the step runs on one, got "
                f"{precision!r}. Run `eqlayers warmup` without --target on the GPU itself."
            )
        quiet = {"callbacks": [], "plugins": [], "logger": False, "enable_progress_bar": False}
        where = {"accelerator": "cpu"} if self.targets else {}
        return quiet | ONE_STEP | where | {"enable_model_summary": False}

    def before_fit(self) -> None:
        """Nothing: no run begins."""

    def fit(self, model: LightningModule, **options: Any) -> None:
        """Run the step, compile for the targets, and print what became of each kernel."""
        console = Console(stderr=True)

        def step() -> None:
            with console.status("one step of training and one of validation"):
                self.trainer.fit(model, **options)

        progress = partial(track, console=console, transient=True)
        print(warmup(step, self.targets, getattr(model, "model", None), progress))

    def after_fit(self) -> None:
        """Nothing: there are no best weights to test."""


@contextmanager
def only_warnings() -> Iterator[None]:
    """A block in which Lightning prints nothing of seed, mode and number of steps: this belongs to runs."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


def run(args: Sequence[str]) -> None:
    """Run the command."""
    parser = ArgumentParser(
        prog="eqlayers warmup",
        usage="eqlayers warmup CONFIG [--target PROCESSOR]... [--key value]...",
        description="Compile the kernels that `eqlayers fit` needs with a configuration, by one step on real data; no "
        "run begins, no weights are kept. Every key of the configuration is an option, as of `eqlayers fit`.",
    )
    about = f"compile for this processor too, even if it is absent; one of {', '.join(TARGETS)}; may be repeated"
    parser.add_argument("--target", action="append", default=[], choices=list(TARGETS), metavar="PROCESSOR", help=about)
    chosen, rest = parser.parse_known_args(args)
    if not rest:
        raise ConfigError(
            "a configuration file was expected as the first argument, got none. Name the one that `eqlayers fit` takes."
        )
    if not rest[0].startswith("-"):
        rest = ["--config", *rest]
    with only_warnings():
        run_training(["fit", *rest], partial(WarmupCLI, targets=chosen.target))
