"""The commands `eqlayers check|relax|md|predict|select|info`, which use saved potentials."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import ase.io
import torch
from ase.units import GPa

from ..atoms.elements import SYMBOLS, symbols_of
from ..cli.arguments import ArgumentParser
from ..cli.notices import lines
from ..core.errors import BackendError, ConfigError
from ..core.files.lock import locked
from ..core.files.read_write import flattened
from ..integrations.ase import Calculator
from ..models import Committee, Potential, load_committee, load_potential, read_potential
from ..models.committee import committee_files
from ..models.compiled import WORTH_COMPILING
from ..models.molecule import MoleculeProperty, load_property
from ..models.saving import Classes, describe_part
from ..native import NativePotential
from ..native.files import program_of
from ..nn import explain
from ..testing import check_potential
from .dynamics import ENSEMBLES, DynamicsOutcome, DynamicsSettings, run_dynamics
from .frames import check_different, check_trajectory, frames, last_frame, new_file, with_results
from .options import add_common, add_members, compile_for, loaded, native_for, one_option_each
from .predict import predict_options, run_predict
from .relaxation import OPTIMIZERS, relax
from .select import run_select, select_options

_FAILED, _STOPPED = 1, 130


def run(args: Sequence[str]) -> int:
    """Run a command from its arguments.

    Returns:
        Exit status: 0; 1 if a property does not hold or a relaxation did not converge; 130 after Ctrl-C.
    """
    about, add_options, command = COMMANDS[args[0]]
    parser = ArgumentParser(prog=f"eqlayers {args[0]}", description=about)
    add_options(parser)
    options = parser.parse_args(one_option_each(args[1:], first=args[0] in ("check", "info")))
    options.typed = list(args)
    return command(options)


def _add_compile(parser: argparse.ArgumentParser) -> None:
    about = f"native program on a CPU, recorded calls on a GPU; auto (default): for {WORTH_COMPILING:,} steps and more"
    parser.add_argument("--compile", choices=("auto", "true", "false"), default="auto", help=about)


def _check_options(parser: argparse.ArgumentParser) -> None:
    add_members(parser)
    about = "structures to check it with, at most four; a molecule and a crystal of its species by default"
    parser.add_argument("structures", nargs="?", metavar="STRUCTURES", help=about)
    parser.add_argument("--device", default="cpu", help="cpu by default; cuda checks the kernels of a GPU")
    parser.add_argument("--seed", type=int, default=0, help="seed of displacements and directions")


def _check(options: argparse.Namespace) -> int:
    files = committee_files([options.model, *options.members])
    kind = (torch.float64, options.device, options.classes)
    potentials = load_committee(files, *kind).potentials if files[1:] else [load_potential(files[0], *kind)]
    structures = None if options.structures is None else list(frames(options.structures, ":4"))
    failed = 0
    for file, potential in zip(files, potentials, strict=True):
        report = check_potential(potential, structures, seed=options.seed)
        failed += bool(report.failures)
        if len(files) > 1:
            print(f"member {file}")
        print(report)
        print(f"{len(report.rows) - len(report.failures)} of {len(report.rows)} properties hold", flush=True)
    if len(files) > 1:
        print(f"{len(files) - failed} of {len(files)} members have all properties, and so has their mean")
    return _FAILED if failed else 0


def _info(options: argparse.Namespace) -> int:
    files = committee_files([options.model, *options.members])
    print(lines(describe_members(files, options.classes) if files[1:] else describe(files[0], options.classes)))
    return 0


def describe(path: str | Path, classes: Classes | None = None) -> list[tuple[str, str]]:
    """Names and values of a file of a potential or of a property of molecules, in the order in which they are shown."""
    learned = NativePotential(path) if Path(path).suffix == ".so" else load_property(path, classes=classes)
    rows = [("file", f"{path}, {Path(path).stat().st_size / 2**20:.2f} MiB")]
    if isinstance(learned, NativePotential):
        return [*rows, ("program", repr(learned))]
    if learned is not None:
        rows.append(("predicts", f"{learned.name} ({learned.unit}), one number a molecule, not energies"))
        return rows + _network_rows({"network": describe_part("the network", learned.network)}, learned)
    saved, potential = read_potential(path), load_potential(path, classes=classes)
    rows += _network_rows({name: saved.description[name] for name in ("network", "repulsion")}, potential)
    for name, values in (("shifts", potential.shifts), ("scales", potential.scales)):
        listed = zip(potential.species, values.tolist(), strict=True)
        rows.append((name, ", ".join(f"{SYMBOLS[z - 1]} {value:.6g}" for z, value in listed) + " eV"))
    lone = "their shifts" if potential.subtract_isolated else "their shifts and what the network gives them"
    rows.append(("energies of lone atoms", lone))
    facts = {name: value for name, value in flattened(saved.facts).items() if value != {}}
    rows += [(name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in facts.items()]
    for device in ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
        rows.append((f"kernels on {device}", explain(potential, device, potential.dtype)))
    return [*rows, ("native program", _program(potential))]


def _program(potential: Potential) -> str:
    """Whether there is a native program of a potential, when commands run it, and what limits it."""
    if potential.properties != ("energy",):
        return f"none: it has the energy alone, and the potential has {', '.join(potential.properties)}"
    try:
        whole = program_of(potential, potential.dtype).stages.undivided
    except (ConfigError, BackendError) as error:
        return f"none: {error}"
    taken = f"on a CPU, for {WORTH_COMPILING:,} steps and more of md and relax, and as many structures of predict"
    return f"{taken}; it needs the whole structure, for {whole}: not for LAMMPS" if whole else taken


def _network_rows(parts: Mapping[str, Any], model: Potential | MoleculeProperty) -> list[tuple[str, str]]:
    """Printed rows for descriptions of modules by name, and for species, cutoff, parameters and dtype of a model."""
    return [
        *((name, "none" if part is None else _call(part)) for name, part in parts.items()),
        ("species", symbols_of(model.species)),
        ("cutoff", f"{model.cutoff:g} A"),
        ("parameters", f"{sum(p.numel() for p in model.parameters()):,}"),
        ("dtype", str(model.dtype).removeprefix("torch.")),
    ]


def describe_members(paths: Sequence[Path], classes: Classes | None = None) -> list[tuple[str, str]]:
    """Names and values of a committee: what all members share once, the rest by member."""
    each = [dict(describe(path, classes)) | {"native program": "none: of a committee"} for path in paths]
    rows = [("members", f"{len(paths)}")]
    for name in dict.fromkeys(name for one in each for name in one):
        values = [one.get(name, "-") for one in each]
        same = len(set(values)) == 1
        rows.append((name, values[0] if same else "\n".join(f"{n}: {value}" for n, value in enumerate(values, 1))))
    return rows


def _call(part: Mapping[str, Any]) -> str:
    """The constructor's call by which a file describes a module, with symbols of species."""
    arguments = dict(part["init_args"])
    if isinstance(arguments.get("species"), list):
        arguments["species"] = [SYMBOLS[z - 1] for z in arguments["species"]]
    options = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"{part['class_path']}({options})"


def _calculator(options: argparse.Namespace, atoms: ase.Atoms) -> Calculator:
    calculator = Calculator(loaded(options))
    if options.compile == "false" or (options.compile == "auto" and options.steps < WORTH_COMPILING):
        compile_for(calculator.potential, atoms)
        return calculator
    if program := native_for(calculator.potential):
        return Calculator(program)
    calculator.potential.compile(required=options.compile == "true")
    return calculator


def _model_row(options: argparse.Namespace, calculator: Calculator) -> tuple[str, str]:
    """Printed row for the model: files, number of members, dtype and device."""
    dtype = str(calculator.potential.dtype).removeprefix("torch.")
    members = f", {len(calculator.potential)} members" if isinstance(calculator.potential, Committee) else ""
    native = isinstance(calculator.potential, NativePotential)
    compiled = ", a native program" if native else ", compiled" if calculator.potential.is_compiled else ""
    return ("model", f"{' '.join(options.model)}{members} in {dtype} on {options.device}{compiled}")


def _relax_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("structure", metavar="STRUCTURE", help="a file; its last structure is taken")
    add_common(parser)
    _add_compile(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="relaxed structure; STRUCTURE_relaxed.xyz by default")
    parser.add_argument("--trajectory", metavar="FILE", help="a .traj or .xyz of all steps")
    parser.add_argument("--cell", action="store_true", help="relax the cell as well")
    parser.add_argument("--pressure", type=float, default=0.0, help="GPa, with --cell; 0 by default")
    parser.add_argument("--fmax", type=float, default=0.01, help="largest force at the end, eV/A; 0.01 by default")
    parser.add_argument("--steps", type=int, default=500, help="largest number of steps; 500 by default")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="fire", help="fire by default")


def _continuing_command(options: argparse.Namespace, output: Path) -> str:
    """The command line that continues a relaxation from ``output``, with another file for the trajectory."""
    words, following = [], iter(options.typed)
    for word in following:
        name, equals, value = word.partition("=")
        if name in ("-o", "--output"):
            next(following, None) if not equals else None
        elif word.startswith("-o"):  # `-oFILE`
            continue
        elif name == "--trajectory":
            path = Path(value if equals else next(following))
            words += [name, str(path.with_stem(f"{path.stem}_on"))]
        else:
            words.append(str(output) if word == options.structure else word)
    return shlex.join(words)


def _relax(options: argparse.Namespace) -> int:
    atoms, source = last_frame(options.structure), Path(options.structure)
    name = options.output or str(source.with_name(f"{source.stem}_relaxed.xyz"))
    output = check_trajectory(name, "--output", new=False)
    check_different(("STRUCTURE", source), ("--output", output), ("--trajectory", options.trajectory))
    calculator = _calculator(options, atoms)
    names = ("cell", "pressure", "fmax", "steps", "optimizer", "trajectory")
    end = relax(atoms, calculator, **{name: getattr(options, name) for name in names})
    with new_file(output) as write:
        write(with_results(end.atoms, calculator.results))
    rows = [
        ("structure", f"{options.structure}, {end.atoms.get_chemical_formula()}"),
        _model_row(options, calculator),
        ("energy", f"{end.energies[0]:.6f} -> {end.energies[1]:.6f} eV"),
        ("force", f"{end.forces[0]:.4g} -> {end.forces[1]:.4g} eV/A at most"),
    ]
    if options.cell:
        rows.append(("stress", f"{end.stress / GPa:.4g} GPa at most is left along periodic axes"))
        rows.append(("force on the cell", f"{end.cell_force:.4g} eV/A, which --fmax {options.fmax:g} bounds as well"))
        rows.append(("volume", f"{atoms.get_volume():.4f} -> {end.atoms.get_volume():.4f} A^3"))
    if "forces_deviation" in calculator.results:  # of a committee
        forces, energy = calculator.results["forces_deviation"].max(), calculator.results["energy_deviation"]
        rows.append(("deviation", f"{forces:.4g} eV/A of forces at most, {energy:.4g} eV of the energy"))
    after = f"after {end.steps} steps"
    rows.append(("state", f"{'converged' if end.converged else 'stopped' if end.stopped else 'not converged'} {after}"))
    rows.append(("output", str(output)))
    print(lines(rows))
    if not end.converged:
        print(f"To go on: eqlayers {_continuing_command(options, output)}")
    return 0 if end.converged else _STOPPED if end.stopped else _FAILED


def _md_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("structure", metavar="STRUCTURE", help="a file; its last structure and velocities are taken")
    add_common(parser)
    _add_compile(parser)
    default = DynamicsSettings()
    about = "; ".join(f"{name}: {ensemble.about}" for name, ensemble in ENSEMBLES.items())
    parser.add_argument("--ensemble", choices=ENSEMBLES, default=default.ensemble, help=f"{about}; nve by default")
    helps = {
        "steps": "in all, those before a restart among them",
        "timestep": "fs",
        "temperature": "K, of the thermostat and of velocities where the file has none",
        "pressure": "GPa",
        "friction": "1/ps, of Langevin's thermostat",
        "interval": "steps between frames and between lines of the log",
        "seed": "of velocities and of noise",
    }
    for name, about in helps.items():
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{about}; {value:g} by default")
    about = "stop where the members of a committee deviate by more in the force on an atom, eV/A"
    parser.add_argument("--max-deviation", type=float, metavar="X", help=about)
    about = "a .traj, which keeps every digit, or .xyz; STRUCTURE_md.traj by default"
    parser.add_argument("-o", "--output", metavar="FILE", help=about)
    parser.add_argument("--log", metavar="FILE", help="table of time, energies and temperature")
    parser.add_argument("--restart", action="store_true", help="continue from the last frame of the output")
    about = "write a picture and a page of energies and temperature beside the output; true by default"
    parser.add_argument("--report", choices=("true", "false"), default="true", help=about)


def _md(options: argparse.Namespace) -> int:
    source = Path(options.structure)
    output = options.output or str(source.with_name(f"{source.stem}_md.traj"))
    input_file = None if options.restart else source  # with --restart, STRUCTURE may be the trajectory itself
    check_different(("STRUCTURE", input_file), ("--output", output), ("--log", options.log))
    settings = DynamicsSettings(**{field.name: getattr(options, field.name) for field in fields(DynamicsSettings)})
    reports = [Path(output).with_suffix(suffix) for suffix in (".png", ".html")] if options.report == "true" else []
    for path in reports if not options.restart else ():
        if path.exists():
            raise ConfigError(
                f"--report must write new files, got {path}, which is there. Move it, name another --output, or pass "
                "--report false."
            )
    atoms = last_frame(source)
    calculator = _calculator(options, atoms)
    if options.restart and ENSEMBLES[settings.ensemble].forgets:
        print(f"{settings.ensemble}: thermostat and barostat begin anew; positions and velocities go on")
    if not options.restart and atoms.get_momenta().any():
        print(f"velocities from {source}")
    with locked(Path(output), trajectory=True):
        end = run_dynamics(atoms, calculator, settings, output, options.log, options.restart)
    moved = end.atoms
    rows = [
        ("structure", f"{options.structure}, {moved.get_chemical_formula()}"),
        _model_row(options, calculator),
        ("steps", f"{end.first} to {end.last} of {settings.steps}, {settings.timestep:g} fs each"),
        ("energy", f"{moved.get_potential_energy():.6f} + {moved.get_kinetic_energy():.6f} eV"),
        ("temperature", f"{moved.get_temperature():.1f} K"),
        ("output", output),
    ]
    if ENSEMBLES[settings.ensemble].periodic:
        pressure = -moved.get_stress(include_ideal_gas=True)[:3].mean() / GPa
        rows.insert(5, ("pressure", f"{pressure:.4g} GPa in {moved.get_volume():.3f} A^3"))
    if end.deviation is not None:
        rows.insert(-1, ("deviation", f"{end.deviation:.4g} eV/A of forces at most, in this run"))
    print(lines(rows))
    try:
        if reports:
            from .course import write_course  # here: other commands need no matplotlib

            facts = {name: dict(rows)[name] for name in ("structure", "model", "steps")}
            facts["command"] = f"eqlayers {shlex.join(options.typed)}"
            if written := write_course(output, settings, facts):
                print(f"{'report':11}  {', '.join(map(str, written))}")
    finally:  # the line on how to continue comes last, even if the page fails
        code = _report_end(options, end, settings, output)
    return code


def _report_end(options: argparse.Namespace, end: DynamicsOutcome, settings: DynamicsSettings, output: str) -> int:
    """Print how a run of dynamics ended and how to continue it; return the exit status."""
    if options.restart and end.first == end.last:
        print(f"No steps are left: --steps is the total number, and {end.last} are done.")
    if end.exceeded is not None:
        atom, deviation = end.exceeded
        print(
            f"Stopped at step {end.last}: the members deviate by {deviation:.4g} eV/A in the force on atom {atom} "
            f"({end.atoms.symbols[atom]}), more than --max-deviation {settings.max_deviation:g}. {output} ends "
            "with this frame: label it and train with it."
        )
        return _FAILED
    if not end.stopped:
        return 0
    typed = [word for word in options.typed if word != "--restart"]
    print(f"Stopped at step {end.last}; every frame is kept. To go on: eqlayers {shlex.join([*typed, '--restart'])}")
    return _STOPPED


#: Name -> help text, function that adds the options to a parser, function that returns the exit status.
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]] = {
    "check": ("measure what every potential must satisfy", _check_options, _check),
    "relax": ("move atoms, and the cell with --cell, to a minimum of the energy", _relax_options, _relax),
    "md": ("molecular dynamics, which Ctrl-C stops and --restart goes on with", _md_options, _md),
    "predict": ("energies, forces and stress of many structures", predict_options, run_predict),
    "select": ("structures of a pool about which a committee disagrees most", select_options, run_select),
    "info": ("what a potential is, and which kernels run it where", add_members, _info),
}
