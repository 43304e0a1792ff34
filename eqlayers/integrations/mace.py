"""The commands `eqlayers mace train|lammps`: programs of mace-torch with accelerated layers.

`eqlayers mace train` runs `mace_run_train` in this process. Three functions that `mace.cli.run_train` calls with a
model are patched during the run.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from ..cli.arguments import ArgumentParser
from ..core.checks import got
from ..core.dtypes import default_dtype
from ..core.errors import ConfigError
from ..core.files.read_write import atomic_write, check_output
from ..models import load_potential
from .from_mace import check_head, heads_of, load_model, to_mace
from .kinds.harmonics import RebuiltWarning
from .replace import accelerate, deaccelerate
from .report import Report

__all__ = ["run", "train", "write_lammps"]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: Options of MACE that replace e3nn's layers by layers of other packages.
_OTHER_LAYERS = ("enable_cueq", "only_cueq", "enable_oeq")


def run(args: Sequence[str]) -> int:
    """Run `eqlayers mace` with 'train' or 'lammps', and its options; the exit status 0."""
    about = "mace_run_train with these layers: all its options, and --eqlayers_radial, _tolerance, _backend"
    commands = {"train": (train, about), "lammps": (_lammps, "write the file that pair_style mliap of LAMMPS reads")}
    top = ArgumentParser(prog="eqlayers mace", description="MACE's programs with these layers inside.")
    listed = top.add_subparsers(dest="command", metavar="command", required=True)
    for name, (_, line) in commands.items():
        listed.add_parser(name, help=line, add_help=False)
    command = top.parse_known_args(list(args[:1]))[0].command
    if find_spec("mace") is None:
        raise ConfigError("`eqlayers mace` must run beside mace-torch, got no module mace. pip install mace-torch")
    commands[command][0](list(args[1:]))
    return 0


def train(args: Sequence[str]) -> Report:
    """Run `mace_run_train` with accelerated layers, which are inserted before the optimizer is created.

    Layers are inserted after LoRA, and removed from every model that MACE writes: `.model` files load without this
    package, and checkpoints are interchangeable with MACE's. Printed errors are MACE's.

    Args:
        args: Options of `mace_run_train`, including `--config`, and three more: `--eqlayers_radial table`,
            `--eqlayers_tolerance` and `--eqlayers_backend`; see :func:`eqlayers.accelerate`.

    Returns:
        The report, which is also in MACE's log.

    Raises:
        ConfigError: cuEquivariance or OpenEquivariance is requested, or the version of mace-torch is not supported.
        MismatchError: A layer gives different results.

    Example:
        >>> train(["--name", "water", "--train_file", "water.xyz", "--E0s", "average"])  # doctest: +SKIP
    """
    from mace import tools
    from mace.cli import run_train

    parser = tools.build_default_arg_parser()
    parser.add_argument("--eqlayers_radial", choices=["table"], help="radial networks by tables")
    about = "tolerance of these tables; 1e-4 by default"
    parser.add_argument("--eqlayers_tolerance", type=float, default=1e-4, help=about)
    parser.add_argument("--eqlayers_backend", help="name of a backend; the first that supports the layer by default")
    options = parser.parse_args(list(args))
    if requested := [name for name in _OTHER_LAYERS if getattr(options, name, False)]:
        raise ConfigError(
            f"the model must keep e3nn's layers to be accelerated, got --{requested[0]}. Leave it out, or run "
            "mace_run_train."
        )
    reports: list[Report] = []

    def insert(options: argparse.Namespace, model: nn.Module) -> Any:
        radial, tolerance = options.eqlayers_radial, options.eqlayers_tolerance
        report = accelerate(model, backend=options.eqlayers_backend, radial=radial, tolerance=tolerance)
        reports.append(report)
        logging.info("===========EQLAYERS===========\n%s", report)
        return theirs["get_params_options"](options, model)

    replaced: dict[str, Any] = {"get_params_options": insert, "deepcopy": _plain_copy}
    replaced["jit"] = SimpleNamespace(compile=_scripted)
    theirs: dict[str, Any] = {name: getattr(run_train, name, None) for name in replaced}
    if missing := [name for name, value in theirs.items() if value is None]:
        raise ConfigError(
            f"mace.cli.run_train must have {missing[0]}, got a mace-torch without it. Install mace-torch 0.3.16."
        )
    with mock.patch.multiple(run_train, **replaced), warnings.catch_warnings():
        warnings.simplefilter("ignore", RebuiltWarning)  # raised when fine-tuning loads a foundation model
        run_train.run(options)
    if not reports:
        raise ConfigError("mace_run_train must make an optimizer, got none. Install mace-torch 0.3.16.")
    return reports[0]


def _plain_copy(value: Any) -> Any:
    """A deep copy, with the original layers if it is a model, so that its files load without this package."""
    copied = copy.deepcopy(value)
    return deaccelerate(copied) if isinstance(copied, nn.Module) else copied


def _scripted(model: nn.Module) -> Any:
    """Compile a model by TorchScript for MACE's `_compiled.model`; log an error, which MACE ignores silently."""
    from e3nn.util import jit

    try:
        return jit.compile(model)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        logging.warning("the _compiled.model is not written: %s: %s", type(error).__name__, lines[0])
        raise


def write_lammps(
    model: nn.Module, path: str | os.PathLike[str], head: str | None = None, radial: str | None = None
) -> Report:
    """Write a file of a MACE model with accelerated layers for `pair_style mliap unified` of LAMMPS.

    LAMMPS must be built with ML-IAP and Python; its Python needs mace-torch and this package.

    Args:
        model: A MACE model; it is not changed. The file has its dtype.
        path: The file, written atomically.
        head: Name of a head; required for a model with several.
        radial: See :func:`eqlayers.accelerate`.

    Returns:
        The report.

    Raises:
        ConfigError: ``model`` is no MACE model, or the head does not exist.
        MismatchError: A layer gives different results; no file is written.

    Example:
        >>> write_lammps(torch.load("my.model", weights_only=False), "my-mliap.pt")  # doctest: +SKIP
    """
    from mace.calculators.lammps_mliap_mace import LAMMPS_MLIAP_MACE

    if not hasattr(model, "interactions") or not hasattr(model, "r_max"):
        raise ConfigError(f"model must be a MACE of mace-torch, got {got(model)}. Load one that MACE saved.")
    head = check_head(heads_of(model), head)
    report = accelerate(_plain_copy(model), radial=radial)
    fast: Any = report.model
    with default_dtype(fast.r_max.dtype):  # of buffers for charge and spin
        interface = LAMMPS_MLIAP_MACE(fast, head=head)
    with atomic_write(os.fspath(path)) as file:
        torch.save(interface, file)
    return report


def _lammps_model(path: str) -> nn.Module:
    """Load a MACE model from a file of mace-torch, or convert a potential of this package."""
    if path.endswith((".pt", ".pth", ".ckpt")):
        return to_mace(load_potential(path))
    model = load_model(path)
    if isinstance(model, torch.jit.ScriptModule):  # it has no layers to replace
        raise ConfigError(f"MODEL must hold a MACE model, got {got(model)}. Name the .model that training wrote.")
    return model


def _lammps(args: Sequence[str]) -> None:
    parser = ArgumentParser(prog="eqlayers mace lammps", description="Write the file that pair_style mliap reads.")
    parser.add_argument("model", metavar="MODEL", help="a .model of MACE, or a potential (.pt, .ckpt) of a MACE")
    parser.add_argument("output", metavar="OUTPUT", help="the file for LAMMPS")
    parser.add_argument("--head", help="name of a head, of a model with several")
    parser.add_argument("--dtype", choices=_DTYPES, help="dtype of the file; the model's by default")
    parser.add_argument("--radial", choices=["table"], help="radial networks by tables")
    options = parser.parse_args(list(args))
    output = check_output(options.output, "OUTPUT")
    model = _lammps_model(options.model)
    model = model if options.dtype is None else model.to(_DTYPES[options.dtype])
    print(write_lammps(model, output, options.head, options.radial))
    print(f"wrote {output}; the Python of LAMMPS needs mace-torch and eqlayers to read it")
