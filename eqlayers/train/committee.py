"""`eqlayers fit --committee 4`: several trainings with seeds that follow each other, and the test of them together."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich.console import Console

from ..core.checks import check_integer, check_number
from ..core.errors import ConfigError
from ..core.files.lock import locked
from ..core.files.read_write import atomic_write, read_json, read_yaml
from ..data import StructureDataModule
from ..models import load_committee
from ..models.committee import MARK, member_name, read_mark
from ..models.saving import classes_of
from ..pages.page import Table, number
from . import cli
from .base import is_dry_run
from .configuration import Command
from .history import write_json
from .potential import PotentialModule
from .run import (
    checkpoint_path,
    first_process,
    refuse_results,
    remove_if_empty,
    results_of,
    run_folder,
    stopped,
    trainer_options,
)
from .steps import SHOWN

FIX = "Train the members again, or leave the file out."


def is_committee(command: Command) -> bool:
    """Whether a command is of a committee: an option or a configuration has a number of members."""
    for_help = any(re.match(r"-h$|--help|--print_config|--\S+\.help", word) for word in command.words)
    return not for_help and command.last("committee") is not None


class Committee:
    """A command of a committee: its folder, number of members, and share of the training part of each member."""

    def __init__(self, command: Command) -> None:
        if (task := cli.task_of(command)) != "potential":
            raise ConfigError(f"committee must be of the task potential, got {task}. Leave out --committee.")
        if (checkpoint := command.last("ckpt_path")) is not None:
            raise ConfigError(
                f"ckpt_path must be left out with --committee, got {checkpoint}. Each member has its own; --resume "
                "goes on with all."
            )
        self.command, self.share = command, command.last("committee_share")
        self.number = check_integer("committee", command.last("committee"), 2, 1000, fix="4 is usual.")
        if self.share is not None:
            self.share = check_number("committee_share", self.share, above=0, at_most=1, fix="0.8 is usual.")
        self.folder = run_folder(str(command.last("runs", "runs")), str(command.last("name", "default")))
        self.was_there = self.folder.exists()

    def member(self, index: int) -> Command:
        """The command of a member, counted from 1; a seed is the committee's plus index - 1."""
        added = {"runs": str(self.folder), "name": member_name(index), "committee": "null", "committee_share": "null"}
        defaults = signature(StructureDataModule).parameters
        seed = self.command.last("seed_everything", 2026)
        if str(seed).lower() not in ("true", "false"):
            added["seed_everything"] = self._next("seed_everything", seed, index)
        for key in ("seed", "limit_seed") if self.share else ("seed",):
            first_seed = self.command.last(f"data.{key}", defaults[key].default)
            added[f"data.{key}"] = self._next(f"data.{key}", first_seed, index)
        if self.share:
            if (limit := self.command.last("data.limit_train")) is not None:
                raise ConfigError(
                    f"data.limit_train must be left out with committee_share, got {limit}. Keep one of them."
                )
            added["data.limit_train"] = str(float(self.share))
        return self.command.with_words(f"--{key}={value}" for key, value in added.items())

    def _next(self, key: str, seed: Any, index: int) -> str:
        return str(check_integer(key, seed, 0, 2**32 - 1 - self.number) + index - 1)

    def check_folder(self) -> None:
        """Refuse results without --resume, and --resume of a single run or of more members."""
        resume, mark = self.command.has("resume"), read_mark(self.folder)
        if not resume:
            refuse_results("a committee", self.folder)
        if resume and mark is None and (results := results_of(self.folder)):
            raise ConfigError(
                f"--resume must go on with a committee, got {self.folder} with {results[0].name} of one run. Leave out "
                "--committee, or give the committee another --name."
            )
        if mark is not None and mark["members"] > self.number:
            raise ConfigError(
                f"committee must be {mark['members']} or more to go on with {self.folder}, got {self.number}. Raise it."
            )


class MemberCLI(cli.TrainingCLI):
    """A training command of one member of a committee."""

    def __init__(self, command: Command, committee: Committee) -> None:
        self.committee = committee
        super().__init__(command)

    def before_fit(self) -> None:
        """Mark the committee's folder when the configuration, the data and the network of a member are right."""
        super().before_fit()
        if not is_dry_run(self.trainer) and self.trainer.is_global_zero:
            write_json(self.committee.folder / MARK, {"members": self.committee.number})


class CommitteeTestCLI(MemberCLI):
    """The test of all members together, with the data of the first."""

    def own_options(self) -> dict[str, Any]:
        """Results go to the committee's folder."""
        facts = {"name": self.committee.folder.name, "committee": self.committee.number}
        facts["command"] = f"eqlayers {shlex.join(self.command.typed)}"
        bar = self.config_init["trainer"].get("enable_progress_bar")
        return trainer_options(self.committee.folder, facts, bar, False, self.config["report"]) | self.task.trainer

    def test(self, model: Any, **options: Any) -> None:
        """Test the mean of the members; the checkpoint of the first is not needed for it."""
        assert isinstance(model, PotentialModule)
        together: Any = load_committee(self.committee.folder, classes=classes_of(model.potential))
        model.potential = together  # whose deviations are tested as well
        self.trainer.test(model, datamodule=self.datamodule, verbose=False)


def run(command: Command) -> None:
    """Run a command for every member, and test them together after a fit or a test."""
    committee = Committee(command)
    fits = command.name == "fit"
    with locked(committee.folder) if fits and first_process() else nullcontext():
        if fits and first_process():
            committee.check_folder()
        try:
            for index in range(1, committee.number + 1):
                if first_process():
                    print(f"member {index} of {committee.number}", flush=True)
                cli.run(committee.member(index), partial(MemberCLI, committee=committee))
                if torch.distributed.is_available() and torch.distributed.is_initialized():
                    torch.distributed.barrier()  # until the first process has written the files that all read next
            tested = command.last("test_after_fit", True) is True if fits else command.name == "test"
            if tested and not (fits and command.last("trainer.fast_dev_run")):
                _test(committee)
        except KeyboardInterrupt:  # between two members
            raise stopped("Ctrl-C", 130, command.typed) from None
        except BaseException:
            if fits and first_process() and not committee.was_there:
                remove_if_empty(committee.folder)
            raise


def _test(committee: Committee) -> None:
    """Test the mean of the members, and print the table of all."""
    folders = [committee.folder / member_name(index) for index in range(1, committee.number + 1)]
    if not all((folder / "potential.pt").is_file() for folder in folders):
        print("the committee is not tested: its members have no potential.pt, as networks without `options` have none")
        return
    if first_process():
        print("the committee", flush=True)
    member = committee.member(1)  # any member has the network
    command = replace(member, name="test").with_words([f"--ckpt_path={checkpoint_path(folders[0])}"])
    cli.run(command, partial(CommitteeTestCLI, committee=committee))
    if first_process():
        _write_config(committee, folders[0])
        Console().print(_table(committee, folders).rich("test errors (MAE)"))


def _write_config(committee: Committee, first: Path) -> None:
    """Write the configuration of the committee, with every default: the first member's with other names."""
    if not (first / "config.yaml").is_file():
        return
    config = read_yaml(first / "config.yaml", "a configuration", FIX)
    config |= {"name": committee.folder.name, "runs": str(committee.folder.parent), "committee": committee.number}
    config |= {"committee_share": committee.share, "ckpt_path": None}
    if committee.share:
        config["data"] = config["data"] | {"limit_train": None}
    with atomic_write(committee.folder / "config.yaml") as file:
        file.write(yaml.safe_dump(config, sort_keys=False).encode())


def _table(committee: Committee, folders: Sequence[Path]) -> Table:
    """Errors of the members, the mean of these errors, and the errors of the committee."""
    read = partial(read_json, what="the errors of a run", fix=FIX)
    each, together = [read(folder / "metrics.json") for folder in folders], read(committee.folder / "metrics.json")
    error = re.compile(r"test_(energy_per_atom|forces|stress|dipole|polarizability)_mae_(.+)")
    parts = {key: match.groups() for key in together if (match := error.fullmatch(key))}
    names = {key: (name.replace("_", " "), SHOWN.get(unit, unit)) for key, (name, unit) in parts.items()}
    known = {key: [metrics[key] for metrics in each if isinstance(metrics.get(key), float)] for key in names}
    means = {key: float(np.mean(values)) if values else None for key, values in known.items()}
    rows = dict(zip([folder.name for folder in folders], each, strict=True))
    rows |= {"mean of the members": means, "committee": together}
    headings = ["", *(f"{name} ({unit})" for name, unit in names.values())]
    return Table(headings, [(label, *(number(metrics.get(key)) for key in names)) for label, metrics in rows.items()])
