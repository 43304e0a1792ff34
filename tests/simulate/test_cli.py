"""The commands of potentials, in this process: what they write, print and return, and what bad input is answered."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian, FixedLine, FixedPlane
from ase.db import connect
from ase.units import Bohr, kcal, mol

from eqlayers.atoms.units import LABEL_NAMES, LABEL_UNITS
from eqlayers.cli.main import main, of_potentials
from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential, load_potential, save_potential
from eqlayers.simulate import cli
from eqlayers.testing import ToyNetwork

pytestmark = pytest.mark.usefixtures("place")


def out(capsys: pytest.CaptureFixture[str], line: str, status: int = 0) -> str:
    """The text that a command prints."""
    assert main(shlex.split(line)) == status, capsys.readouterr().err
    return capsys.readouterr().out


def rows(text: str) -> dict[str, str]:
    return dict(re.split(r"  +", line, maxsplit=1) for line in text.splitlines() if "  " in line.strip())


def test_check_passes_and_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = out(capsys, "check toy.pt")
    assert text.splitlines()[-1] == "23 of 23 properties hold"
    assert out(capsys, "check toy.pt crystal.xyz --seed 3").splitlines()[-1] == "22 of 22 properties hold"
    forward = ToyNetwork.forward
    monkeypatch.setattr(ToyNetwork, "forward", lambda self, kind, *rest: forward(self, kind, *rest) / len(kind))
    text = out(capsys, "check toy.pt crystal.xyz", status=1)
    assert "FAIL two copies: energy" in text


OWN = """
import os
from eqlayers.testing import ToyNetwork
os.mkdir("imported")

class Network(ToyNetwork):
    pass
"""
COMMANDS = {
    "check": "check own.pt",
    "info": "info own.pt",
    "relax": "relax water.xyz -m own.pt",
    "md": "md water.xyz -m own.pt --steps 1 --report false",
    "predict": "predict water.xyz -m own.pt -o out.xyz",
    "committee": "predict water.xyz -m own.pt toy.pt -o out.xyz",
    "check of a committee": "check own.pt toy.pt",
    "info of a committee": "info own.pt toy.pt",
    "select": "select water.xyz -m own.pt toy.pt -o out.xyz",
    "convert": "convert own.pt -o new.pt",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_network_of_ones_own_must_be_named(command: str, capsys, monkeypatch, potential: Potential) -> None:
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "my_network", raising=False)
    Path("my_network.py").write_text(OWN)
    content = torch.load("toy.pt", weights_only=True)
    content["potential"]["network"]["class_path"] = "my_network.Network"
    torch.save(content, "own.pt")
    assert main(shlex.split(COMMANDS[command])) == 2
    assert "nothing was imported. If the class is your own, name it: --classes my_network.Network," in (
        capsys.readouterr().err
    )
    assert not Path("imported").exists()
    words = shlex.split(COMMANDS[command])
    status = 1 if command == "relax" else 0  # in one step
    more = ["--steps", "1"] if command == "relax" else []
    assert main([words[0], "--classes", "my_network.Network", *words[1:], *more]) == status, capsys.readouterr().err
    assert Path("imported").exists()


def test_relax_writes_the_minimum(capsys: pytest.CaptureFixture[str], potential: Potential) -> None:
    found = rows(out(capsys, "relax water.xyz -m toy.pt --fmax 1e-3 --optimizer bfgs --trajectory way.traj"))
    assert found["model"] == "toy.pt in float64 on cpu"
    assert re.fullmatch(r"converged after \d+ steps", found["state"])
    assert found["output"] == "water_relaxed.xyz"
    relaxed = ase.io.read("water_relaxed.xyz")
    assert found["energy"].endswith(f"-> {relaxed.get_potential_energy():.6f} eV")
    relaxed.calc = Calculator(potential)
    assert np.abs(relaxed.get_forces()).max() < 1.001e-3
    assert len(ase.io.read("way.traj", ":")) > 2


def test_relax_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """All that was typed but the files of the first part, which stay as they are."""
    typed = "relax crystal.xyz -m toy.pt --cell --pressure 5 --steps 2 --fmax=0.02 --trajectory way.xyz -o 'a b.xyz'"
    text = out(capsys, typed, status=1)
    assert rows(text)["state"] == "not converged after 2 steps"
    force, limit = re.fullmatch(
        r"(\S+) eV/A, which --fmax (\S+) bounds as well", rows(text)["force on the cell"]
    ).groups()
    assert float(force) > float(limit) == 0.02
    assert re.search(r"^volume +4\.9130 -> ", text, re.MULTILINE)
    options = "-m toy.pt --cell --pressure 5 --steps 2 --fmax=0.02 --trajectory way_on.xyz"
    assert text.splitlines()[-1] == f"To go on: eqlayers relax 'a b.xyz' {options}"
    assert np.abs(ase.io.read("a b.xyz").cell.lengths() - 1.7).max() > 1e-4
    before = {name: Path(name).read_bytes() for name in ("a b.xyz", "way.xyz")}
    again = out(capsys, text.splitlines()[-1].removeprefix("To go on: eqlayers ").replace("--steps 2", "--steps 500"))
    assert rows(again)["state"].startswith("converged")
    assert float(rows(again)["force on the cell"].split()[0]) <= 0.02
    assert {name: Path(name).read_bytes() for name in before} == before


def test_md_restarts_and_says_how(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    line = "md water.xyz -m toy.pt --ensemble nvt --steps 12 --interval 5 --timestep 0.5 --log md.log"
    whole = out(capsys, f"{line} -o whole.traj")
    assert rows(whole)["steps"] == "0 to 12 of 12, 0.5 fs each"

    calculate, calls = AseCalculator.calculate, []

    def interrupting(*args: object, **options: object) -> None:
        calls.append(True)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGINT)
        calculate(*args, **options)

    monkeypatch.setattr(AseCalculator, "calculate", interrupting)
    stopped = out(capsys, line, status=130)
    command = stopped.splitlines()[-1]
    assert re.match(
        r"Stopped at step \d+; every frame is kept\. To go on: eqlayers md water\.xyz .* --restart$", command
    )
    again = out(capsys, command.partition("eqlayers ")[2])
    assert rows(again)["energy"] == rows(whole)["energy"]
    frames = [ase.io.read(path, "-1") for path in ("whole.traj", "water_md.traj")]
    np.testing.assert_allclose(frames[1].positions, frames[0].positions, atol=1e-11)
    assert frames[1].info["step"] == 12


def test_a_trajectory_has_one_run_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys; from pathlib import Path; from eqlayers.core.files.lock import locked; path = Path(sys.argv[1])\n"
    )
    script += "with locked(path, trajectory=True): print('held', flush=True), sys.stdin.read()"
    command = [sys.executable, "-c", script, "a.traj"]
    more = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **more) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert main(shlex.split("md water.xyz -m toy.pt -o a.traj --steps 1 --report false")) == 2
        assert f"a trajectory must have one run at a time, got a.traj, where process {other.pid}" in (
            capsys.readouterr().err
        )
        assert not Path("a.traj").exists()
        other.communicate()
    assert main(shlex.split("md water.xyz -m toy.pt -o a.traj --steps 1 --report false")) == 0
    assert not list(Path().glob(".*.lock"))


def test_md_says_what_it_takes_and_forgets(capsys: pytest.CaptureFixture[str]) -> None:
    line = "md crystal.xyz -m toy.pt --ensemble npt --temperature 20 --pressure 1 -o npt.traj --steps"
    first = out(capsys, f"{line} 3")
    assert re.search(r"^pressure +\S+ GPa in \S+ A\^3$", first, re.MULTILINE)
    assert "anew" not in first
    again = out(capsys, f"{line} 6 --restart")
    assert again.startswith("npt: thermostat and barostat begin anew; positions and velocities go on\n")
    assert rows(again)["steps"].startswith("3 to 6 of 6")
    assert out(capsys, "md npt.traj -m toy.pt --steps 2 --dtype float32").startswith("velocities from npt.traj\n")


def test_a_restart_of_a_finished_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    line = "md water.xyz -m toy.pt --timestep 0.5 --steps"
    assert "Nothing" not in out(capsys, f"{line} 4")
    assert "Nothing" not in out(capsys, f"{line} 6 --restart")
    text = out(capsys, f"{line} 5 --restart")
    assert text.splitlines()[-1] == "No steps are left: --steps is the total number, and 6 are done."
    # the trajectory itself is as good a name of the structure
    assert (
        rows(out(capsys, "md water_md.traj -m toy.pt --steps 8 --restart -o water_md.traj"))["steps"][:8] == "6 to 8 o"
    )
    assert main(shlex.split("md crystal.xyz -m toy.pt --steps 9 --restart -o water_md.traj")) == 2
    assert "a restart must be of the atoms of the trajectory, got O4, where water_md.traj" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["traj", "xyz"])
def test_a_relaxed_structure_is_written_whole(capsys, monkeypatch, suffix: str) -> None:
    out(capsys, f"relax water.xyz -m toy.pt -o a.{suffix}")
    before = Path(f"a.{suffix}").read_bytes()
    assert ase.io.read(f"a.{suffix}").get_potential_energy() < -460

    def fail(file: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    assert main(shlex.split(f"relax crystal.xyz -m toy.pt -o a.{suffix}")) == 2
    assert "no space left" in capsys.readouterr().err
    assert Path(f"a.{suffix}").read_bytes() == before
    assert not list(Path().glob("*.tmp"))


def test_predict_writes_results_and_compares_with_known_ones(capsys, potential: Potential) -> None:
    structures = [ase.io.read(name) for name in ("water.xyz", "crystal.xyz", "water.xyz")]
    structures[2].rattle(0.1, seed=4)
    ase.io.write("many.xyz", structures)
    text = out(capsys, "predict many.xyz -m toy.pt -o first.xyz --batch-size 2")
    assert rows(text) == {
        "structures": "3 of many.xyz", "labels": "no labels were found to compare with", "output": "first.xyz"
    }  # fmt: skip
    found = ase.io.read("first.xyz", ":")
    for atoms, result in zip(structures, found, strict=True):
        atoms.calc = Calculator(potential)
        assert result.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), rel=1e-7)
        np.testing.assert_allclose(result.get_forces(), atoms.get_forces(), atol=1e-6)  # of the digits in the file
    np.testing.assert_allclose(found[1].get_stress(), structures[1].get_stress(), atol=1e-6)
    save_potential(Potential(ToyNetwork(2, 3.5), [1, 8], {1: -13.6, 8: -432.3}, 0.5).double(), "shifted.pt")
    text = out(capsys, "predict first.xyz -m shifted.pt -o second.xyz")
    assert "no labels were found" in text, "a prediction is no reference"
    for atoms, result in zip(structures, found, strict=True):
        atoms.calc, atoms.info["REF_energy"] = None, result.get_potential_energy()
        atoms.arrays["dft_forces"] = np.where(np.arange(len(atoms))[:, None], result.get_forces(), np.nan)
    ase.io.write("labelled.xyz", structures)
    text = out(capsys, "predict labelled.xyz -m shifted.pt -o second.xyz --overwrite")
    assert rows(text)["labels"] == "compared with REF_energy, dft_forces"
    mean = re.search(r"^error of energy +mean (\S+), root mean square (\S+) meV/atom$", text, re.MULTILINE)
    assert mean is not None
    assert float(mean[1]) == pytest.approx((100 + 300 + 100) / 3, rel=1e-3)  # one oxygen of three, and four of four
    assert float(mean[2]) == pytest.approx((110000 / 3) ** 0.5, rel=1e-3)
    forces = re.search(r"^error of forces +mean (\S+),", text, re.MULTILINE)
    assert forces is not None
    assert float(forces[1]) < 1e-4


BAD = {
    "relax water.xyz -m toy.pt -o ./water.xyz": "--output must be another file than STRUCTURE, got 'water.xyz'. Name",
    "relax water.xyz -m toy.pt -o a.traj --trajectory a.traj": "--trajectory must be another file than --output, got",
    "predict water.xyz -m toy.pt -o water.xyz": "--output must be another file than STRUCTURES, got 'water.xyz'",
    "md water.xyz -m toy.pt -o a.traj --log a.traj": "--log must be another file than --output, got 'a.traj'",
    "md copper.xyz -m toy.pt --log md.log": "atoms must be of the model's species H, O, got also Cu",
    "md water.xyz -m toy.pt --timestep 90 --temperature 2000": "atoms must move by at most 1 Angstrom in a step, got",
    "md crystal.xyz -m toy.pt --ensemble npt --temperature 0": "temperature must be a positive number of K, got 0",
    "check toy.pt same.xyz": "structures[0] must be at distinct positions, got 0 and 1 at the same one",
    "info none.pt": "a potential must be a file, got nothing at none.pt",
    "check water.xyz": "a potential must be a file of save_potential, or a checkpoint",
    "check toy.pt --device cuda:77": "device must be one that torch can use here",
    "relax none.xyz -m toy.pt": "structures must be in a file, got nothing at none.xyz",
    "relax toy.pt -m toy.pt": "toy.pt must be whole and of a format that ASE reads",
    "relax water.xyz": "eqlayers relax must have -m/--model after it, got nothing",
    "relax water.xyz -m toy.pt --optimizer cg": "--optimizer must be one of fire, bfgs, lbfgs, got 'cg'",
    "relax water.xyz -m toy.pt -o relaxed.pdb": "--output must end in .traj, .xyz, .extxyz",
    "relax water.xyz -m toy.pt --cell": "a cell that moves must be periodic",
    "md water.xyz -m toy.pt --ensemble npt": "npt must have a structure with a cell",
    "md water.xyz -m toy.pt --timestep fast": "--timestep must be a float value, got 'fast'",
    "md water.xyz -m toy.pt --restart": "structures must be in a file, got nothing at water_md.traj",
    "md water.xyz -m toy.pt --compile perhaps": "--compile must be one of auto, true, false, got 'perhaps'",
    "md water.xyz -m toy.pt --step 5": "eqlayers md must have options that it knows, got '--step'",
    "predict water.xyz -m toy.pt -o out.csv": "--output must end in .xyz, .extxyz, got 'out.csv'",
    "predict none.xyz -m toy.pt -o out.xyz": "structures must be in a file, got nothing at none.xyz",
    "predict copper.xyz -m toy.pt -o out.xyz": "structures[1] must be of the model's species H, O, got also Cu",
}


@pytest.mark.parametrize(("line", "message"), BAD.items())
def test_bad_commands_say_what_to_do(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    ase.io.write("copper.xyz", [ase.Atoms("H"), ase.Atoms("Cu")])
    ase.io.write("same.xyz", ase.Atoms("OH"))
    before = sorted(os.listdir())
    assert main(shlex.split(line)) == 2
    lines = capsys.readouterr().err.splitlines()
    (error,) = [one for one in lines if not one.startswith("compiling ")]  # which a slow machine says
    assert error.startswith("eqlayers: error: ")
    assert message.replace("a float value", "a float") in error
    assert sorted(os.listdir()) == before


def test_names_that_belong_to_two() -> None:
    assert of_potentials(["predict", "a.xyz", "--model=b.pt"])
    assert not of_potentials(["predict", "-c", "a.yaml", "--model", "b.yaml"])
    assert not of_potentials(["predict", "--model.learning_rate", "1"])
    assert not of_potentials(["info", "--help"])
    assert not of_potentials([])


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            cli.run([name, "--help"])
        assert f"usage: eqlayers {name}" in capsys.readouterr().out
    assert out(capsys, "").count("eqlayers md") == 1
    assert Path("toy.pt").exists()


def test_ctrl_c_leaves_no_half_of_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = ase.io.write, []

    def interrupted(name: object, *args: object, **options: object) -> None:
        write(name, *args, **options)
        calls.append(name)
        if len(calls) > 1:  # the second frame, or the relaxed structure
            raise KeyboardInterrupt

    monkeypatch.setattr(ase.io, "write", interrupted)
    write("two.xyz", [ase.io.read("water.xyz")] * 2)
    before = sorted(path.name for path in Path.cwd().iterdir())
    for line in (
        "predict two.xyz -m toy.pt -o new.xyz --batch-size 1",
        "relax water.xyz -m toy.pt -o relaxed.xyz --steps 1",
    ):
        assert main(line.split()) == 130
        assert "eqlayers: interrupted" in capsys.readouterr().err
    assert len(calls) == 3
    assert sorted(path.name for path in Path.cwd().iterdir()) == before


def test_predict_compares_with_the_labels_that_the_training_was_given(capsys, potential: Potential) -> None:
    """Under names of the training's own, in its units; not with labels that it left out, nor with held atoms."""
    atoms = ase.io.read("water.xyz")
    atoms.calc = Calculator(potential)
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    atoms.calc = None
    forces[0] = 0.0
    atoms.info.update(my_energy=(energy - 1.5) * 1000, energy=0.0, dipole=np.ones(3))
    atoms.arrays["forces"] = forces
    atoms.set_constraint(FixAtoms([0]))
    ase.io.write("own.xyz", atoms)
    facts = {LABEL_NAMES: {"energy": "my_energy", "dipole": None}, LABEL_UNITS: {"energy": "meV"}}
    save_potential(potential, "trained.pt", facts)
    found = rows(out(capsys, "predict own.xyz -m trained.pt -o found.xyz"))
    assert found["labels"] == "compared with forces, my_energy"
    assert found["error of energy"].startswith("mean 500, ")
    assert float(found["error of forces"].split()[1].rstrip(",")) < 1e-3


def test_predict_takes_a_free_energy_alone_as_the_energy(capsys: pytest.CaptureFixture[str], water: Atoms) -> None:
    """`predict` reads the energy under the names that training reads."""
    water.info["free_energy"] = 1.0
    ase.io.write("own.xyz", water)
    found = rows(out(capsys, "predict own.xyz -m toy.pt -o found.xyz"))
    assert found["labels"] == "compared with free_energy"
    assert "error of energy" in found


@pytest.mark.filterwarnings("error:Mean of empty slice")
@pytest.mark.parametrize("label", ["held forces", "forces of NaN", "energy of NaN"])
def test_predict_with_labels_that_are_left_out_whole(capsys, water: Atoms, label: str) -> None:
    """Nothing is left to compare with: said as where there are no labels, not as errors of NaN."""
    if label == "energy of NaN":
        water.info["REF_energy"] = np.nan
    else:
        water.arrays["REF_forces"] = np.full((3, 3), np.nan if label == "forces of NaN" else 0.0)
        water.set_constraint(FixAtoms([0, 1, 2]))
    ase.io.write("own.xyz", water)
    found = rows(out(capsys, "predict own.xyz -m toy.pt -o found.xyz"))
    assert found["labels"] == "no labels were found to compare with"
    assert not [name for name in found if name.startswith("error of")]


def test_predict_says_that_labels_under_two_names_differ(capsys: pytest.CaptureFixture[str], water: Atoms) -> None:
    """Training refuses such a file; a comparison names the label that it takes, and the other."""
    water.info.update(energy=1.0, REF_energy=2.0, dft_energy=1.0)
    ase.io.write("own.traj", water)
    found = rows(out(capsys, "predict own.traj -m toy.pt -o found.xyz --overwrite"))
    assert found["labels"] == "compared with energy; others differ: REF_energy"
    written = ase.io.read("found.xyz")
    assert (written.info["REF_energy"], written.info["dft_energy"], written.info["given_energy"]) == (2.0, 1.0, 1.0)
    assert written.get_potential_energy() != 1.0


@pytest.mark.parametrize(
    "constraints",
    [
        [FixCartesian([0], (True, False, False))], [FixedLine(0, (1, 1, 0))],
        [FixedPlane(0, (1, 0, 0)), FixedPlane(0, (1, 1, 0))],
    ],
    ids=["FixCartesian", "FixedLine", "two FixedPlane"],
)  # fmt: skip
def test_predict_leaves_out_forces_of_partly_held_atoms(capsys, water: Atoms, constraints: list[Any]) -> None:
    """With the part along which an atom is held they are labels."""
    forces = np.full((3, 3), np.nan)
    forces[0] = 100.0
    for held in (False, True):
        for constraint in constraints if held else []:
            constraint.adjust_forces(water, forces)
        water.set_constraint(constraints)
        water.calc = SinglePointCalculator(water, forces=forces)
        ase.io.write("own.traj", water)
        found = rows(out(capsys, "predict own.traj -m toy.pt -o found.xyz --overwrite"))
        said = "no labels were found to compare with" if held else "compared with forces"
        assert found["labels"] == said


def test_predict_and_labels_that_are_no_numbers(capsys: pytest.CaptureFixture[str], water: Atoms) -> None:
    water.info.update(REF_energy=1.0, E="text")
    ase.io.write("own.traj", water)
    assert (
        rows(out(capsys, "predict own.traj -m toy.pt -o found.xyz --overwrite"))["labels"] == "compared with REF_energy"
    )
    water.set_constraint(FixAtoms([7]))
    water.calc = SinglePointCalculator(water, forces=np.zeros((3, 3)))
    ase.io.write("own.traj", water)
    assert main(shlex.split("predict own.traj -m toy.pt -o found.xyz --overwrite")) == 2
    assert "constraints must hold atoms of the structure, which has 3" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["relax", "md"])
def test_results_have_no_labels_of_the_structure_before(capsys, water: Atoms, command: str) -> None:
    """Training would refuse two energies, or learn the energy of another geometry."""
    water.info["REF_energy"] = 1.0
    with connect("own.db") as database:
        database.write(water, data={"energy": np.array([1.0]), "forces": np.zeros((1, 3, 3))})
    ase.io.write("own.xyz", water)
    for file in ("own.db", "own.xyz"):
        main(shlex.split(f"{command} {file} -m toy.pt --steps 2 -o {command}-{Path(file).stem}{file[-2:]}.xyz"))
        capsys.readouterr()
    for file in Path().glob(f"{command}-*.xyz"):
        for atoms in ase.io.read(file, ":"):
            assert not {"REF_energy", "energy", "forces", "REF_forces"} & {*atoms.info, *atoms.arrays}, file
    assert len(list(Path().glob(f"{command}-*.xyz"))) == 2


def test_a_database_that_is_not_there_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.db").touch()
    for file in ("missing.db", "empty.db"):
        assert main(shlex.split(f"predict {file} -m toy.pt -o found.xyz")) == 2
        assert f"{file}" in capsys.readouterr().err
    assert not Path("missing.db").exists()
    assert not Path("empty.db").stat().st_size


def test_predict_reads_the_labels_and_units_of_a_database(capsys: pytest.CaptureFixture[str], water: Atoms) -> None:
    """schnetpack keeps labels beside the structures: compared in the units and at the places that it says."""
    ase.io.write("own.xyz", water)
    out(capsys, "predict own.xyz -m toy.pt -o found.xyz")
    wanted = ase.io.read("found.xyz")
    energy, forces = wanted.get_potential_energy(), wanted.get_forces()
    water.positions /= Bohr
    with connect("own.db") as database:
        database.metadata = {
            "_property_unit_dict": {"energy": "kcal/mol", "forces": "kcal/mol/Ang"},
            "_distance_unit": "Bohr",
        }
        unit = kcal / mol
        database.write(water, data={"energy": np.array([energy / unit]), "forces": forces[None] / unit})
    save_potential(
        load_potential("toy.pt"), "named.pt", {LABEL_NAMES: {"energy": "TotEnergy"}, LABEL_UNITS: {"energy": "Hartree"}}
    )
    for model in ("named.pt", "toy.pt"):  # the unit is that of the name whose numbers are taken
        found = rows(out(capsys, f"predict own.db -m {model} -o again.xyz --overwrite"))
        assert found["labels"] == "compared with energy, forces"
        for name in ("energy", "forces"):
            assert float(found[f"error of {name}"].split()[1].rstrip(",")) < 1e-2
    assert ase.io.read("again.xyz").positions == pytest.approx(ase.io.read("own.xyz").positions, abs=1e-7)
