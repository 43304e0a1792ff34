"""The command `eqlayers new my.xyz`, and the generated configuration of `eqlayers fit my.xyz`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import has_magic
from pathlib import Path
from typing import Any

from ...atoms.structure_files import files_of
from ...atoms.units import read_units
from ...cli.arguments import ArgumentParser
from ...core.errors import ConfigError
from ...core.files.read_write import atomic_write, check_output, parse_yaml, plain_name
from ...data.embedded import TRAJECTORIES
from ...data.qm9 import NO_UNIT
from ...data.readers import read_keys
from ..configuration import YAML, Command, as_value, check_configuration, near_files, read_configuration
from ..run import run_folder
from .choose import Choices, as_yaml, choose
from .facts import Facts, described

#: Printed line -> options of `eqlayers fit` that override its settings.
OPTIONS = {
    "cutoff": "--data.cutoff",
    "atoms": "--data.e0s",
    "pooling": "--data.extensive, --model.model.init_args.pooling",
    "split": "--data.split, --data.val, --data.test",
    "network": "--model.model, --model.model.init_args.hidden, .lmax, .layers",
    "training": "--trainer.max_epochs, --data.batch_size",
}
_EPILOG = "Options of the training are keys of the file that is written; `eqlayers fit my.xyz` trains without one."


def run(args: Sequence[str]) -> None:
    """Run `eqlayers new`."""
    about = "Look at structures and write a commented configuration for `eqlayers fit`."
    parser = ArgumentParser(prog="eqlayers new", description=about, epilog=_EPILOG)
    parser.add_argument("structures", metavar="STRUCTURES", help="a file that ASE reads, with energies or forces")
    about = "learn this property of molecules in place of a potential: a name in the file, such as gap"
    parser.add_argument("--target", metavar="NAME", help=about)
    parser.add_argument("--unit", default=NO_UNIT, help="its unit, which reports name; numbers stay as they are")
    parser.add_argument("-o", "--output", metavar="FILE", help="a .yaml; STRUCTURES.yaml in this folder by default")
    parser.add_argument("--overwrite", action="store_true", help="write over a file that is there")
    parser.add_argument("--keys", metavar="NAMES", help="names of labels in the file: '{energy: my_energy}'")
    parser.add_argument("--units", metavar="UNITS", help="their units: '{energy: Hartree, forces: Hartree/Bohr}'")
    parser.add_argument("--skip-bad", action="store_true", help="leave frames out that cannot be read, and list them")
    options = parser.parse_args(list(args))
    name = _name_of(options.structures, options.target)
    output = Path(options.output or f"{name}.yaml")
    fix = None if options.overwrite else "Write over it with --overwrite, or name another with --output."
    check_output(output, "--output", YAML, new=fix)
    keys, units = read_keys(_mapping("--keys", options.keys)), read_units(_mapping("--units", options.units))
    facts = Facts(options.structures, keys, units, options.target, options.skip_bad)
    choices = choose(facts, options.unit)
    typed = f"eqlayers new {shlex.join(args)}"
    with atomic_write(output) as file:
        file.write(as_yaml(facts, choices, name, typed, shlex.quote(str(output))).encode())
    print("\n".join(summary(facts, choices, {})))
    print(f"written: {output}; read it, then type: eqlayers fit {shlex.quote(str(output))}")


def _mapping(option: str, value: Any) -> Any:
    """Parse the value of an option as a mapping."""
    mapping = {} if value is None else as_value(value) if isinstance(value, str) else value
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{option} must be a mapping, got {value!r}. Write {option} '{{energy: ...}}'.")
    return mapping


def _name_of(structures: str, target: str | None = None) -> str:
    """Name of a run from the file name, or the folder of a pattern, and the property."""
    path = Path(structures)
    name = (path.parent.name if has_magic(path.name) else path.stem).lstrip(".") or "structures"
    if target is not None:
        name += "_" + re.sub(r"\W+", "_", target)
    return plain_name(name, "the name of STRUCTURES", "Rename the file.", "file")


def summary(facts: Facts, choices: Choices, options: Mapping[str, str]) -> list[str]:
    """Printed lines on the data and the chosen settings, each followed by the options that override it."""
    of = {name: setting.value for name, setting in choices.settings.items()}
    about = {name: setting.about for name, setting in choices.settings.items()}
    network = f"{of['model.model.class_path'].rpartition('.')[2]} {of['model.model.init_args.hidden']}"
    epochs = of["trainer.max_epochs"]
    atoms, setting = ("atoms", "data.e0s") if facts.target is None else ("pooling", "data.extensive")
    chosen = {
        "cutoff": f"{of['data.cutoff']:g} {about['data.cutoff'].rpartition(';')[0]}",
        atoms: f"{of[setting]}: {about[setting]}",
        "split": f"{of['data.split']}: {about['data.split']}",
        "network": f"{network}, lmax {of['model.model.init_args.lmax']}, {of['model.model.init_args.layers']} layers",
        "training": f"{epochs} epochs of {choices.steps} steps, {of['data.batch_size']} structures each",
    }
    lines = [described(facts)]
    for name, text in chosen.items():
        lines.append(f"{name:<8} {text}")
        if name in options:
            lines.append(f"{'':<8} {options[name]}")
    return lines + [f"noticed  {note}" for note in choices.noticed]


def with_structures(args: Sequence[str]) -> Command:
    """Parse a command line; structures as its first argument are replaced by a configuration.

    A new fit gets a generated configuration; an existing run is validated, tested or resumed with its own.
    """
    action, first, rest = args[0], args[1] if len(args) > 1 else "-", list(args[2:])
    if first.startswith("-") or first.endswith(YAML):
        return Command.of(args)
    if {"-h", "--help", "--help-all"} & set(args):
        return Command.of([action, "--task", "potential", "--model.model", "eqlayers.models.MACE", *rest])
    if not files_of(first)[0] and first not in TRAJECTORIES:
        raise ConfigError(
            f"{action} must have a configuration or a file of structures after it, got {first!r}, which is no file. "
            f"{near_files()}"
        )
    command = replace(Command.of([action, *rest]), typed=tuple(args))
    if command.files:
        raise ConfigError(
            f"{action} must have one of structures and configuration, got {first} and a configuration. Name the "
            "structures in the configuration, as data.path."
        )
    target = command.last("data.target")
    name = str(command.last("name") or _name_of(first, target))
    folder = run_folder(str(command.last("runs", "runs")), name)
    config = folder / "config.yaml"
    if action != "fit" or (command.has("resume") and config.is_file()):
        if not config.is_file():
            raise ConfigError(
                f"{action} must come after a fit, got no run of {first} in {folder}. Type `eqlayers fit "
                f"{shlex.quote(first)}`, or name the run with --name."
            )
        files = read_configuration(config)
        _check_same(first, Command(action, tuple(files)).last("data.path"), folder, action)
        return replace(command, files=tuple(files))
    keys, units = (_mapping(f"--{key}", command.last(key)) for key in ("data.keys", "data.units"))
    facts = Facts(first, keys, units, target, bool(command.last("data.skip_bad", False)))
    choices = choose(facts)
    of_potential = ("model.model", "data.cutoff") if command.last("start_from") is not None else ()
    settings = {key: setting for key, setting in choices.settings.items() if not key.startswith(of_potential)}
    print("defaults, each above the options that replace it:")
    print("\n".join(summary(facts, choices, OPTIONS)))
    words = shlex.join([first, *(() if target is None else ("--target", str(target)))])
    print(f"configuration: {config}; `eqlayers new {words}` writes one with comments, to edit", flush=True)
    text = as_yaml(facts, choices._replace(settings=settings), name, f"eqlayers {shlex.join(args)}")
    path = Path(f"{name}.yaml")
    return replace(command, files=tuple(check_configuration(path, *parse_yaml(text, path, "a configuration", ""))))


def _check_same(structures: str, of_run: Any, folder: Path, action: str) -> None:
    """Raise unless ``structures`` is ``of_run``, the data path of the run in a folder."""
    of_run = str(of_run)
    if of_run == structures or Path(of_run).resolve() == Path(structures).resolve():
        return
    fix = "Name another run with --name, or go on with the structures of this one."
    if action != "fit":
        fix = f"For other structures type `eqlayers predict {shlex.quote(structures)} -m {folder}/potential.pt`."
    raise ConfigError(f"{action} must name the structures of the run in {folder}, {of_run}, got {structures}. {fix}")
