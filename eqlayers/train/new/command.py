"""`eqlayers new my.xyz`, and the configuration that `eqlayers fit my.xyz` makes."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import has_magic
from pathlib import Path
from typing import Any

from ...atoms.structure_files import files_of
from ...atoms.units import read_units
from ...cli.arguments import ArgumentParser
from ...core.errors import ConfigError
from ...core.files.read_write import atomic_write, check_output, plain_name
from ...core.files.yaml_files import read_yaml
from ...data.embedded import TRAJECTORIES
from ...data.readers import read_keys
from ...data.targets import NO_UNIT
from ..configuration import last_value, near_files, typed_value
from ..run import run_folder
from .choose import Choices, as_yaml, choose
from .look import Look, described, look

_YAML = (".yaml", ".yml")
#: Options of `eqlayers fit` that replace the settings of a line.
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
    """`eqlayers new`."""
    parser = ArgumentParser(
        prog="eqlayers new",
        description="Look at structures and write a commented configuration for `eqlayers fit`.",
        epilog=_EPILOG,
    )
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
    there = None if options.overwrite else "Write over it with --overwrite, or name another with --output."
    check_output(output, "--output", _YAML, new=there)
    keys, units = read_keys(_mapping("--keys", options.keys)), read_units(_mapping("--units", options.units))
    facts = look(options.structures, keys, units, options.target, options.skip_bad)
    choices = choose(facts, options.unit)
    typed = f"eqlayers new {shlex.join(args)}"
    with atomic_write(output) as file:
        file.write(as_yaml(facts, choices, name, typed, shlex.quote(str(output))).encode())
    print("\n".join(summary(facts, choices, {})))
    print(f"written: {output}; read it, then type: eqlayers fit {shlex.quote(str(output))}")


def _mapping(option: str, text: str | None) -> Any:
    mapping = {} if text is None else typed_value(text)
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{option} must be a mapping, got {text!r}. Write {option} '{{energy: ...}}'.")
    return mapping


def _name_of(structures: str, target: str | None = None) -> str:
    """The name of a run: of the file, or the folder of a pattern, and the property if there is one; none is hidden."""
    place = Path(structures)
    name = (place.parent.name if has_magic(place.name) else place.stem).lstrip(".") or "structures"
    if target is not None:
        name += "_" + re.sub(r"\W+", "_", target)
    return plain_name(name, "the name of STRUCTURES", "Rename the file.", "file")


def summary(facts: Look, choices: Choices, options: Mapping[str, str]) -> list[str]:
    """The findings and choices in a few lines, each above the options that replace it."""
    of = {name: setting.value for name, setting in choices.settings.items()}
    about = {name: setting.about for name, setting in choices.settings.items()}
    network = f"{of['model.model.class_path'].rpartition('.')[2]} {of['model.model.init_args.hidden']}"
    atoms, setting = ("atoms", "data.e0s") if facts.target is None else ("pooling", "data.extensive")
    said = {
        "cutoff": f"{of['data.cutoff']:g} {about['data.cutoff'].rpartition(';')[0]}",
        atoms: f"{of[setting]}: {about[setting]}",
        "split": f"{of['data.split']}: {about['data.split']}",
        "network": f"{network}, lmax {of['model.model.init_args.lmax']}, {of['model.model.init_args.layers']} layers",
        "training": f"{choices.epochs} epochs of {choices.steps} steps, {of['data.batch_size']} structures each",
    }
    lines = [described(facts)]
    for name, text in said.items():
        lines.append(f"{name:<8} {text}")
        if name in options:
            lines.append(f"{'':<8} {options[name]}")
    return lines + [f"noticed  {one}" for one in [*facts.file.notes, *facts.noticed, *choices.noticed]]


# ---- structures in the place of a configuration -------------------------------------------------------------------


@contextmanager
def for_structures(args: Sequence[str]) -> Iterator[list[str]]:
    """A command line with a configuration in the place of a file of structures that comes first.

    A fit of new structures gets one with these defaults; a run that is there is validated, tested or gone on with by
    its own.
    """
    first = args[1] if len(args) > 1 else "-"
    if first.startswith("-") or first.endswith(_YAML):
        yield list(args)
        return
    if {"-h", "--help", "--help-all"} & set(args):
        yield [args[0], "--task", "potential", "--model.model", "eqlayers.models.MACE", *args[2:]]
        return
    if not files_of(first)[0] and first not in TRAJECTORIES:
        raise ConfigError(
            f"{args[0]} must have a configuration or a file of structures after it, got {first!r}, which is no file. "
            f"{near_files()}"
        )
    rest = list(args[2:])
    if any(word in ("-c", "--config") or word.startswith("--config=") for word in rest):
        raise ConfigError(
            f"{args[0]} must have one of structures and configuration, got {first} and a configuration. Name the "
            "structures in the configuration, as data.path."
        )
    options = ["fit", *rest]
    target = last_value(options, "data.target")
    name = str(last_value(options, "name") or _name_of(first, target))
    folder = run_folder(str(last_value(options, "runs", "runs")), name)
    kept = folder / "config.yaml"
    if args[0] != "fit" or ("--resume" in rest and kept.is_file()):
        if not kept.is_file():
            raise ConfigError(
                f"{args[0]} must come after a fit, got no run of {first} in {folder}. Type `eqlayers fit "
                f"{shlex.quote(first)}`, or name the run with --name."
            )
        _check_same(first, kept, args[0])
        yield [args[0], "-c", str(kept), *rest]
        return
    keys, units = (_mapping(f"--{key}", last_value(options, key)) for key in ("data.keys", "data.units"))
    facts = look(first, keys, units, target, bool(last_value(options, "data.skip_bad", False)))
    choices = choose(facts)
    of_potential = ("model.model", "data.cutoff") if last_value(options, "start_from") is not None else ()
    kept_settings = {key: one for key, one in choices.settings.items() if not key.startswith(of_potential)}
    print("defaults, each above the options that replace it:")
    print("\n".join(summary(facts, choices, OPTIONS)))
    again = shlex.join([first, *(() if target is None else ("--target", str(target)))])
    print(f"configuration: {kept}; `eqlayers new {again}` writes one with comments, to edit", flush=True)
    with tempfile.TemporaryDirectory(prefix="eqlayers-") as place:
        path = Path(place) / f"{name}.yaml"
        taken = choices._replace(settings=kept_settings)
        path.write_text(as_yaml(facts, taken, name, f"eqlayers {shlex.join(args)}"))
        yield [args[0], "-c", str(path), *rest]


def _check_same(structures: str, kept: Path, command: str) -> None:
    """Refuse structures that a run was not fitted to: its own would be read in their place."""
    of_run = str((read_yaml(kept).get("data") or {}).get("path"))
    if of_run == structures or Path(of_run).resolve() == Path(structures).resolve():
        return
    fix = "Name another run with --name, or go on with the structures of this one."
    if command != "fit":
        fix = f"For other structures type `eqlayers predict {shlex.quote(structures)} -m {kept.parent}/potential.pt`."
    raise ConfigError(
        f"{command} must name the structures of the run in {kept.parent}, {of_run}, got {structures}. {fix}"
    )
