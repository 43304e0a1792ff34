"""`eqlayers fit|validate|test|predict`: LightningCLI with this package's modules, data and run folder."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from ..atoms.elements import SYMBOLS, symbols_of
from ..cli.arguments import check_threads
from ..core.checks import check_choice, check_integer, check_number
from ..core.errors import ConfigError, DataError, EqlayersError, MissingPackageError
from ..core.files.lock import locked
from ..core.files.read_write import atomic_write
from ..data import MoleculeDataModule, PropertyDataModule, StructureDataModule
from ..models import MoleculeNetwork, NequIP, load_potential
from .averaging import EMA
from .base import TrainedModule, check_precision, is_dry_run
from .checkpoints import Stopping, read_checkpoint, while_restoring
from .configuration import SPECIES, Command, class_at, explain_parser_error
from .fine_tuning import trained_on, with_network
from .module import PropertyModule
from .parser import Parser
from .potential import PotentialModule
from .run import (
    checkpoint_path,
    first_checkpoint,
    first_process,
    quiet_lightning,
    remove_halves,
    remove_if_empty,
    run_folder,
    stopped,
    trainer_options,
)
from .summary import LayerSummary


class Task(NamedTuple):
    """A task: the module, its data, the network that the help shows, options of the trainer."""

    module: type[TrainedModule]
    data: type[LightningDataModule]
    network: type[torch.nn.Module]
    trainer: dict[str, Any]


TASKS = {
    "property": Task(PropertyModule, MoleculeDataModule, MoleculeNetwork, {}),
    # forces are derivatives in validation, too, where inference mode would forbid them
    "potential": Task(PotentialModule, StructureDataModule, NequIP, {"inference_mode": False}),
}


#: Options of runs, and of potentials: type, default, and help.
OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "name": (str, "default", "Name of the run: its folder below --runs."),
    "runs": (str, "runs", "Folder of all runs."),
    "threads": (int, 1, "CPU threads of torch; 0 for torch's choice."),
    "compile": (
        bool | Literal["auto"],
        "auto",
        "Trace the network's calls once, in some seconds, for faster steps; auto for 1,000 steps or more.",
    ),
    "ckpt_path": (str | None, None, "Checkpoint in place of the run's best.ckpt; a fit begins with it."),
    "test_after_fit": (bool, True, "Test the best weights after the fit."),
    "report": (bool, True, "Write report.html into the folder after a test."),
    "checkpoint.monitor": (
        str | None,
        None,
        "Value whose lowest is in best.ckpt; null for val/loss of potentials and val/mae of properties.",
    ),
}
OF_POTENTIALS: dict[str, tuple[Any, Any, str]] = {
    "start_from": (str | None, None, "Fine-tune: a potential whose weights a fit begins with."),
    "classes": (str | list[str] | None, None, "Classes of your own that start_from may name: my_network.Network."),
    "refit_shifts": (bool, True, "With start_from: fit shifts of known species to the new energies, too."),
    "committee": (int | None, None, "Number of potentials to train, of different seeds."),
    "committee_share": (float | None, None, "Fraction of the training part for each member; null for all."),
}


class SaveConfig(SaveConfigCallback):
    """Writes the complete configuration to `config.yaml` when training starts, after a checkpoint was restored.

    ``ckpt_path`` in it is null, as later commands find the run's own checkpoint.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write nothing: the checkpoint is restored later, and one that does not fit must change no configuration."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save `config.yaml`, with every default spelled out."""
        if trainer.is_global_zero:
            config = self.config.clone()
            config.ckpt_path = None
            with atomic_write(Path(trainer.default_root_dir) / "config.yaml") as file:
                file.write(self.parser.dump(config, skip_none=False).encode())


class TrainingCLI(LightningCLI):
    """One command of training; every key of the YAML is also an option.

    The run's folder is ``<runs>/<name>``. ``validate``, ``test`` and ``predict`` read its `checkpoints/best.ckpt`
    unless ``--ckpt_path`` names another file.
    """

    #: Data that were read for their species, before the network was made.
    read: LightningDataModule | None = None

    def __init__(self, command: Command) -> None:
        self.command, self.task_name = command, task_of(command)
        self.task = TASKS[self.task_name]
        if self.task_name == "property" and command.has("data.path"):
            self.task = self.task._replace(data=PropertyDataModule)
        with ExitStack() as self.while_it_runs:
            super().__init__(
                self.task.module,
                self.task.data,
                save_config_callback=SaveConfig,
                seed_everything_default=2026,
                # errors come here and can name the nearest key; an abbreviation would change with other options
                parser_kwargs={"exit_on_error": False, "allow_abbrev": False, "prog": f"eqlayers {self.command.name}"},
                parser_class=Parser,
                auto_configure_optimizers=False,
                run=False,
            )
            self.execute()

    # ---- options ----------------------------------------------------------------------------------------------------

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Options of the run, the callbacks that have settings, and the one cutoff of model and data."""
        about = f"What is learned: {' or '.join(TASKS)}; keys of `data` tell it as well."
        parser.add_argument("--task", type=str, default=self.task_name, help=about)
        further = OF_POTENTIALS if self.task_name == "potential" else {}
        for name, (type_, default, about) in (OPTIONS | further).items():
            parser.add_argument(f"--{name}", type=type_, default=default, help=about)
        parser.add_lightning_class_args(EMA, "ema")
        parser.add_lightning_class_args(Stopping, "early_stopping")
        parser.link_arguments("data.cutoff", "model.model.init_args.cutoff")
        network = self.command.network(self.task.network)
        parser.prepare_help(self.command, self.task_name, network)  # type: ignore[attr-defined]

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and turn an error of the parser into one with a fix."""
        known = [action.dest for action in parser._actions if action.default is not argparse.SUPPRESS]
        self.command.check(known)
        command = with_network(self.command) if self.task.module is PotentialModule else self.command
        self.species_of_data = command.needs_species()
        if self.species_of_data:  # until the data are read
            command = command.with_words([f"--{SPECIES}=[H]"])
        try:
            self.config = parser.parse_args(command.arguments)
        except (argparse.ArgumentError, TypeError, ValueError) as error:
            raise ConfigError(explain_parser_error(str(error), known, command)) from None
        self.command.check_cutoff(self.config.data.cutoff)
        if not isinstance(self.config.seed_everything, bool):
            check_integer("seed_everything", self.config.seed_everything, 0, 2**32 - 1)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return run_folder(self.config["runs"], self.config["name"])

    # ---- objects ----------------------------------------------------------------------------------------------------

    def instantiate_classes(self) -> None:
        """Make the objects; jsonargparse wraps errors that are assertions, too, as e3nn's and so ours are."""
        try:
            super().instantiate_classes()
        except (ModuleNotFoundError, ValueError) as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            if isinstance(cause, EqlayersError):
                raise cause from None
            package = re.search(r"'([\w-]+)", str(cause)) if isinstance(cause, ModuleNotFoundError) else None
            if package is None:
                raise
            path = re.search(r"class_path '([\w.]+)'", str(error))
            raise MissingPackageError(
                f"{path[1] if path else 'the configuration'} must find its package, got no {package[1]}. Type: pip "
                f"install {package[1]}.",
                name=package[1],
            ) from None
        if self.read is not None:
            self.datamodule = self.read

    def before_instantiate_classes(self) -> None:
        """Threads before any work; a checkpoint that cannot be read stops the command before the data are loaded."""
        threads = check_threads("threads", self.config["threads"], at_least=0)
        if threads:
            torch.set_num_threads(threads)
        options = self.config
        if self.command.name != "fit" and options.get("ckpt_path") is None:
            options["ckpt_path"] = str(checkpoint_path(self.folder))
            print(f"weights: {options['ckpt_path']}")
        self.was_there = self.folder.exists()
        writes = self.command.name == "fit" and not self.config.trainer.get("fast_dev_run")
        if writes and first_process():
            self.while_it_runs.enter_context(locked(self.folder))
        if writes:
            options["ckpt_path"] = first_checkpoint(self.folder, self.command.has("resume"), options.get("ckpt_path"))
            if self.command.has("resume") and first_process():
                print(f"resume: {options['ckpt_path'] or f'nothing in {self.folder}, so the run begins'}", flush=True)
        path = options.get("ckpt_path")
        checkpoint = {} if path is None else read_checkpoint(path)
        if self.species_of_data:
            recorded = checkpoint.get("hyper_parameters", {}).get("model")
            known = recorded.get("init_args", {}).get("species") if isinstance(recorded, Mapping) else None
            options.model.model.init_args.species = known or self._species(options)
        if options.data.get("auxiliary"):
            self._fill_outputs(options)

    def _fill_outputs(self, options: Namespace) -> None:
        """Give the network the further outputs of the data."""
        network, path = options.model.model.init_args, options.model.model.class_path
        if not {"auxiliary", "sum_of"} <= signature(class_at(path)).parameters.keys():
            raise ConfigError(
                f"model.model must be a network with further outputs for data.auxiliary, got {path}. Use "
                "eqlayers.models.MoleculeNetwork, or leave data.auxiliary out."
            )
        self.read = self.read or self.task.data(**options.data.as_dict())
        made = {name: each.pooling for name, each in self.read.further().items()}  # type: ignore[attr-defined]
        for name, value in (("auxiliary", made), ("sum_of", list(self.read.sum_of))):  # type: ignore[attr-defined]
            network[name] = network.get(name) or value or None  # compared with the data later

    def _species(self, options: Namespace) -> list[Any]:
        """The species of the data, which are kept for the training; for networks of others, atomic numbers."""
        self.read = self.task.data(**options.data.as_dict())
        numbers = self.read.species  # type: ignore[attr-defined]
        if first_process():
            print(f"species of the data: {symbols_of(numbers)}", flush=True)
        ours = options.model.model.class_path.startswith("eqlayers.")
        return [SYMBOLS[z - 1] if ours else z for z in numbers]

    def own_options(self) -> dict[str, Any]:
        """Further options of the trainer: the run's callbacks, loggers and checkpoint writer."""
        facts = {"seed": self.config["seed_everything"], "threads": torch.get_num_threads()}
        facts |= {"name": self.config["name"], "command": f"eqlayers {shlex.join(self.command.typed)}"}
        bar = self.config_init["trainer"].get("enable_progress_bar")
        fitting, page = self.command.name == "fit", self.config["report"]
        monitor = self.config["checkpoint.monitor"]
        options = trainer_options(self.folder, facts, bar, fitting, page, monitor) | self.task.trainer
        for callback in options["callbacks"]:
            if isinstance(callback, LayerSummary):
                callback.whole = self.command.has("verbose")
        return options

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The configured trainer with the run's own options."""
        configured, options = self.config_init["trainer"], self.own_options()
        if configured.get("gradient_clip_val") is not None:  # a negative one would turn the gradient around
            check_number("trainer.gradient_clip_val", configured["gradient_clip_val"], at_least=0)
        if configured.get("default_root_dir") is not None:
            raise ConfigError(
                "trainer.default_root_dir must be left out, as a run's folder is <runs>/<name>, got "
                f"{str(configured['default_root_dir'])!r}. Set --runs and --name."
            )
        for key in ("callbacks", "plugins"):
            more = configured.get(key) or []
            options[key] = [*options[key], *(more if isinstance(more, (list, tuple)) else [more])]
        if configured.get("logger") not in (None, True):
            options["logger"] = configured["logger"]
        if not options["logger"]:  # the monitor of the learning rate has nowhere to write
            options["callbacks"] = [one for one in options["callbacks"] if not isinstance(one, LearningRateMonitor)]
        try:
            trainer = super().instantiate_trainer(**options, **kwargs)
        except (TypeError, ValueError) as error:  # Lightning's own class for this is caught by run()
            if isinstance(error, EqlayersError):
                raise
            raise MisconfigurationException(str(error)) from error
        check_precision(trainer)
        return trainer

    def after_instantiate_classes(self) -> None:
        """Record the network's configuration in checkpoints: ``load_from_checkpoint(path)`` of the module suffices."""
        self._begin()
        self.model.compiling = self.config["compile"]
        self.model.hparams["model"] = self.config_dump["model"]["model"]
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Stopping):  # which checkpoints know by the value, for all commands
                callback.monitor = callback.monitor or self.config["checkpoint.monitor"] or self.model.best_by

    def _begin(self) -> None:
        """Start a fit with the weights of ``start_from``; the species of the data are added to the configured ones."""
        options = self.config
        if self.command.name != "fit" or options.get("start_from") is None or options.get("ckpt_path") is not None:
            return
        start = load_potential(options.start_from, classes=options.classes)
        self.model.begin_with(start, self.datamodule.species, options.refit_shifts)
        self.model.of_start = trained_on(options.start_from)
        network, recorded = options.model.model, self.config_dump["model"]["model"]
        if "species" in recorded.get("init_args", {}):
            network.init_args.species = recorded["init_args"]["species"] = list(self.model.potential.species)

    # ---- commands ---------------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Run the command."""
        of_run = {"model": self.model, "datamodule": self.datamodule, "ckpt_path": self.config["ckpt_path"]}
        if self.command.name == "fit":
            self.before_fit()
            self.fit(**of_run)
            self.after_fit()
        else:
            (self.test if self.command.name == "test" else getattr(self.trainer, self.command.name))(**of_run)

    def before_fit(self) -> None:
        """Say where results go, and remove halves of files there."""
        names = self.model.logged_names(self.datamodule)
        check_choice("checkpoint.monitor", self.config["checkpoint.monitor"] or self.model.best_by, names)
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Stopping):  # which ends nothing, or everything, for what it does not know
                check_choice("early_stopping.monitor", callback.monitor, names)
                check_integer("early_stopping.patience", callback.patience, 0)
        if self.trainer.is_global_zero:
            print(f"run: {self.folder}", flush=True)
        if not is_dry_run(self.trainer) and self.trainer.is_global_zero:
            remove_halves(self.folder)

    def fit(self, model: TrainedModule, **options: Any) -> None:
        """Fit, unless the resumed run has ended; remove a new folder if the fit fails before its first checkpoint."""
        path, again = options.get("ckpt_path"), "; it is tested again" if self.config["test_after_fit"] else ""
        stopping = next((one for one in self.trainer.callbacks if isinstance(one, Stopping)), None)  # type: ignore[attr-defined]
        saved = read_checkpoint(path) if self.command.has("resume") and path else {}
        states = saved.get("callbacks", {}).items()
        waited = [int(state.get("wait_count", 0)) for name, state in states if name.startswith("Stopping")]
        if saved and stopping and max(waited, default=0) >= max(stopping.patience, 1):
            print(f"the run ended as nothing got better for {stopping.patience} epochs{again}", flush=True)
            return
        done, last = saved.get("epoch", -1) + 1, self.trainer.max_epochs or -1
        if 0 < last <= done and first_process():
            print(f"the run has {done} epochs, and trainer.max_epochs is {last}{again}", flush=True)
        if 0 < last < done:  # which Lightning refuses
            return
        try:
            self.trainer.fit(model, **options)
        except BaseException:
            if self.trainer.is_global_zero and not self.was_there:
                remove_if_empty(self.folder)
            raise
        if self.trainer.is_global_zero and stopping and stopping.wait_count >= max(stopping.patience, 1):
            print(f"training ends: {stopping.monitor} got no better in {stopping.wait_count} validations", flush=True)

    def test(self, model: TrainedModule, **options: Any) -> None:
        """Test without Lightning's table: the report prints its own."""
        self.trainer.test(model, **options | {"verbose": False})

    def after_fit(self) -> None:
        """Test the best weights, if asked to; ``fast_dev_run`` keeps no checkpoint and tests the last weights."""
        if self.config["test_after_fit"]:
            path = None if is_dry_run(self.trainer) else str(checkpoint_path(self.folder))
            if path is not None and not Path(path).exists():
                raise ConfigError(
                    "a fit must validate at least once to have best weights to test, this one ended before. "
                    "Lengthen trainer.max_epochs, max_steps or max_time, or pass --test_after_fit false."
                )
            self.test(self.model, datamodule=self.datamodule, ckpt_path=path)


def _task_of_data(data: Any) -> str | None:
    """The task whose data module alone takes a key of ``data``; None if no key tells."""
    keys = {task: set(signature(what.data.__init__).parameters) for task, what in TASKS.items()}
    for task, names_of_task in keys.items():
        others: set[str] = set().union(*(names for other, names in keys.items() if other != task))
        if isinstance(data, dict) and (names_of_task - others) & data.keys():
            return task
    return None


def task_of(command: Command) -> str:
    """The task that a command names, or that the keys of the data in its files belong to."""
    of_data = [task for source in command.files for data in source.get("data") if (task := _task_of_data(data))]
    return check_choice("task", command.last("task", (of_data or ["property"])[-1]), TASKS)


def run(command: Command, cli: Callable[[Command], TrainingCLI] = TrainingCLI) -> None:
    """Run one command of the training command line."""
    try:
        with quiet_lightning():
            cli(command)
    except MisconfigurationException as error:
        raise ConfigError(
            f"the options of trainer must fit together, got: {str(error).rstrip('.')}. Change them."
        ) from error
    except EqlayersError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if not while_restoring(error):
            raise
        raise DataError(
            f"the checkpoint must hold the state of a run of this configuration, got one that cannot be restored "
            f"({type(error).__name__}). Use another checkpoint of the run (best.ckpt, last.ckpt), or train again."
        ) from error
    except SIGTERMException:
        raise stopped("SIGTERM", 143, command.typed) from None
    except (KeyboardInterrupt, SystemExit) as error:  # the trainer makes the second of the first
        if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__context__)):
            raise
        raise stopped("Ctrl-C", 130, command.typed) from None
