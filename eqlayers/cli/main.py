"""The command `eqlayers`; commands import training and benchmarks only when they need them."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import ConfigError, EqlayersError, needs_packages
from .arguments import ArgumentParser, version_of

TRAINING = {
    "new": "look at structures and write a commented configuration: eqlayers new my.xyz",
    "fit": "train, then test the best weights",
    "validate": "errors on the validation part",
    "test": "errors on the test part, with table, metrics.json and pictures",
    "predict": "write predictions.csv; with -m, energies and forces of structures by a potential",
}

POTENTIALS = {
    "check": "measure what every potential must satisfy: eqlayers check MODEL",
    "relax": "move atoms to a minimum of the energy",
    "md": "molecular dynamics",
    "select": "the structures of a pool that are worth a label: eqlayers select pool.xyz -m committee/",
}

#: A warning of torch about a variable that mace-torch sets.
_READS_ALL = "Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD detected"

CACHE = {"info": "where they are and how much space they take", "clear": "remove all of them"}

EPILOG = """\
from structures to a potential in three commands:
  eqlayers new my.xyz                                                                      (writes my.yaml)
  eqlayers fit my.yaml                                                                     (or: eqlayers fit my.xyz)
  eqlayers check runs/my/potential.pt

training commands take a configuration file, and every key in it as an option:
  eqlayers fit configs/qm9_mini.yaml
  eqlayers fit configs/qm9_mini.yaml --model.learning_rate 2e-3 --name faster
  eqlayers fit configs/qm9_mini.yaml --resume                                              (go on)
  eqlayers fit configs/ethanol.yaml --committee 4                                          (a committee)
  eqlayers test configs/qm9_mini.yaml
  eqlayers fit --help                                                                      (the options)

potentials are files of save_potential or checkpoints, and these commands have their own help:
  eqlayers info model.pt
  eqlayers check model.pt
  eqlayers relax crystal.cif -m model.pt --cell
  eqlayers md relaxed.xyz -m model.pt --ensemble nvt --temperature 300 --steps 10000
  eqlayers predict structures.xyz -m model.pt -o predicted.xyz
  eqlayers select pool.xyz -m runs/ethanol --most 50                                       (what to label next)
  eqlayers convert my.model -o my.pt                                                       (from MACE, NequIP, and back)
  eqlayers deploy my.pt -o my.so                                                           (for C, without Python)
  eqlayers lammps build                                                                    (pair_style eqlayers, my.so)

benchmarks have subcommands, each with its own help:
  eqlayers bench run smoke
  eqlayers bench networks ours
  eqlayers bench --help

beside mace-torch, with the options of mace_run_train:
  eqlayers mace train --config water.yaml
  eqlayers mace lammps water.model water-mliap.pt                                          (or: runs/water/potential.pt)

kernels that were compiled for CPUs are kept on disk:
  eqlayers cache info
  eqlayers cache clear
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `eqlayers` with some arguments (by default ``sys.argv``).

    Returns:
        Exit status: 0, 1 for a check that fails or a relaxation that does not converge, 2 for input that cannot be
        used, 130 after Ctrl-C, or 141 if the reader of the output is gone.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    from ..core.memory import keep_memory

    keep_memory()  # a setting of the whole process
    try:
        if args and (args[0] in {*TRAINING, "bench", "convert", "deploy", "lammps", "mace"} or of_potentials(args)):
            return compute(args)
        parsed = parser().parse_args(args)
        if parsed.version:
            from .. import __version__

            print(f"eqlayers {__version__}")
        elif parsed.command == "info":
            import_old_e3nn()
            info()
        elif parsed.command == "cache":
            cache(parsed.action)
        else:
            parser().print_help()
    except EqlayersError as error:
        print(f"eqlayers: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # such as by `| head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 the interpreter flushes it at the end
        return 141
    except OSError as error:
        print(
            f"eqlayers: error: files and folders of a command must be there and yours to write, got {error}. Check "
            "path, permissions and free space.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt as error:
        print("; ".join(["eqlayers: interrupted", *map(str, error.args)]), file=sys.stderr)
        return 130
    return 0


def import_old_e3nn(package: str = "e3nn") -> None:
    """Import e3nn 0.4 if it is installed: torch.load accepts slices in its constants only as safe globals."""
    if (version_of(package) or "").startswith("0.4."):
        from importlib import import_module

        from torch.serialization import safe_globals

        with safe_globals([slice]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", _READS_ALL)
            import_module(f"{package}.o3")


def compute(args: Sequence[str]) -> int:
    """Run a command with progress of kernel compilation, and warnings as lines; return the exit status."""
    import_old_e3nn()
    from .notices import shown, warnings_as_lines

    with shown(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _READS_ALL)
        if args[0] == "mace":  # its programs log warnings
            from ..integrations import mace

            return mace.run(args[1:])
        with warnings_as_lines():
            if args[0] == "convert":
                from ..integrations import convert

                return convert.run(args[1:])
            if args[0] == "deploy":
                from ..native import command

                return command.run(args[1:])
            if args[0] == "lammps":
                from ..lammps.plugin import run as lammps

                return lammps(args[1:])
            if of_potentials(args):
                with needs_packages("potentials", "train"):
                    from ..simulate import cli
                return cli.run(args)
            return bench(args[1:]) if args[0] == "bench" else train(args)


def train(args: Sequence[str]) -> int:
    """Run a training command; return the exit status."""
    with needs_packages("training", "train"):
        from ..train import cli, committee
        from ..train.new import command as new
    if args[0] == "new":
        new.run(args[1:])
    else:
        command = new.with_structures(args)
        (committee.run if committee.is_committee(command) else cli.run)(command)
    return 0


def of_potentials(args: Sequence[str]) -> bool:
    """Whether a command line uses a saved potential; `predict` and `info` have other meanings without a model.

    Example:
        >>> of_potentials(["predict", "a.xyz", "-m", "model.pt"]), of_potentials(["predict", "-c", "qm9.yaml"])
        (True, False)
        >>> of_potentials(["info", "model.pt"]), of_potentials(["info"])
        (True, False)
    """
    name, *rest = args or [""]
    options = {word.partition("=")[0] for word in rest}
    if name == "predict":
        return not options.isdisjoint({"-m", "--model"}) and options.isdisjoint({"-c", "--config"})
    return name in POTENTIALS or (name == "info" and any(not word.startswith("-") for word in rest))


def bench(args: Sequence[str]) -> int:
    """Run a benchmark command; return the exit status."""
    with needs_packages("benchmarks", "bench"):
        from ..bench.cli import run

        run(args, molecules)
    return 0


def molecules(options: Mapping[str, Any]) -> Any:
    """A training batch of molecules for `eqlayers bench`, whose modules must not import the data."""
    from ..bench.step import Batch

    with needs_packages("`bench step` and `networks ours`", "train"):
        from ..data import MoleculeDataModule
    try:
        data = MoleculeDataModule(**options)
    except TypeError as error:
        raise ConfigError(
            f"data: expected options of MoleculeDataModule, got {dict(options)}: {error}. Correct them."
        ) from error
    data.setup()
    batch, statistics = next(iter(data.train_dataloader())), data.statistics
    return Batch(
        *(batch.z, batch.pos, batch.edge_index, batch.batch, batch.num_graphs, batch.y),
        *(statistics.shifts, statistics.scale, statistics.mean_neighbors),
    )


def info() -> None:
    """Print versions, devices, and the backend of a small layer on each device, with reasons for the others."""
    import platform

    import torch

    from .. import __version__
    from ..nn import TensorProduct

    print(f"eqlayers {__version__}, python {platform.python_version()}, {platform.machine()}")
    for package in ("torch", "triton", "e3nn", "lightning", "torch-geometric"):
        print(f"  {package}{f' {known}' if (known := version_of(package)) else ': not installed'}")
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    print(f"cpu: {torch.get_num_threads()} threads")
    for device in devices[1:]:
        print(f"{device}: {torch.cuda.get_device_name(device)}")
    layer = TensorProduct("8x0e+8x1o", "1x1o", "8x1o+8x0e", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", True)])
    for device in devices:
        print(layer.explain(device))


def cache(action: str) -> None:
    """Print facts about the cache of compiled kernels ('info'), or delete its files ('clear')."""
    from eqlayers_kernels.c.build import cache as disk

    if action == "info":
        contents = disk.info()
        print(f"folder   {contents.directory or 'none'}")
        print(f"kernels  {contents.entries}")
        print(f"size     {contents.size / 2**20:.1f} MiB of at most {contents.limit / 2**20:.0f} MiB")
        print(f"problem  {contents.problem or 'none'}")
        return
    try:
        removed = disk.clear()
        print(f"removed {removed} {'kernel' if removed == 1 else 'kernels'} from {disk.directory()}")
    except OSError as error:
        raise EqlayersError(
            f"the folder of compiled kernels must be yours to empty, got: {error}. Become its owner with write "
            f"permission for yourself alone, or set EQLAYERS_CACHE_DIR to another folder."
        ) from error


def parser() -> argparse.ArgumentParser:
    """The parser of commands without parsers of their own, and of the general help."""
    top = ArgumentParser(
        prog="eqlayers",
        description="O(3)-equivariant layers for PyTorch.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    commands = top.add_subparsers(dest="command", metavar="command")
    rest = {
        "bench": "measure speed and memory beside peers: "
        "run, report, first-gpu, layers, step, networks, overhead, accelerate",
        "convert": "a model of MACE or NequIP as a potential, and back: eqlayers convert my.model -o my.pt",
        "deploy": "a potential as a native program for C, without Python: eqlayers deploy my.pt -o my.so",
        "lammps": "programs of deploy in LAMMPS, without Python: lammps build compiles pair_style eqlayers",
        "mace": "MACE's own programs with these layers: mace train, as mace_run_train; mace lammps, a file for LAMMPS",
        "info": "versions, devices, and the backends that can run here; info MODEL: what a potential is",
    }
    for name, about in (TRAINING | POTENTIALS | rest).items():
        commands.add_parser(name, help=about)
    about = "kernels compiled for CPUs and kept on disk: info, clear"
    cached = commands.add_parser("cache", help=about, description=about)
    cached.add_argument("action", choices=CACHE, help="; ".join(f"{name}: {what}" for name, what in CACHE.items()))
    return top


if __name__ == "__main__":  # python -m eqlayers.cli.main
    sys.exit(main())
