"""`eqlayers predict -m`: errors of stress, errors by config_type, and outputs that are there."""

from __future__ import annotations

import shlex
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.stress import voigt_6_to_full_3x3_stress

from eqlayers.cli.main import main
from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential

from .test_cli import out, rows

pytestmark = pytest.mark.usefixtures("place")

OFF = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) * 1e-3  # eV/A^3, in Voigt's order
MEAN = "mean 3.5, root mean square 3.894 meV/A^3"  # of these numbers: sqrt(91 / 6)


@pytest.mark.parametrize("form", ["results", "matrix", "voigt", "virial"])
def test_a_stress_is_compared_in_each_form(capsys: pytest.CaptureFixture[str], potential: Potential, form: str) -> None:
    atoms = ase.io.read("crystal.xyz")
    atoms.calc = Calculator(potential)
    stress = atoms.get_stress() + OFF
    atoms.calc = SinglePointCalculator(atoms, stress=stress) if form == "results" else None
    if form == "matrix":
        atoms.info["REF_stress"] = voigt_6_to_full_3x3_stress(stress)
    elif form == "voigt":
        atoms.info["REF_stress"] = stress
    elif form == "virial":
        atoms.info["REF_virial"] = voigt_6_to_full_3x3_stress(-stress * atoms.get_volume())
    ase.io.write("own.traj", atoms)
    said = rows(out(capsys, "predict own.traj -m toy.pt -o found.xyz"))
    assert said["error of stress"] == MEAN
    name = {"results": "stress", "virial": "REF_virial"}.get(form, "REF_stress")
    assert said["labels"] == f"compared with {name}"


def test_a_stress_without_a_cell_is_named(capsys: pytest.CaptureFixture[str], water: Atoms) -> None:
    water.info["REF_stress"] = OFF
    ase.io.write("own.traj", water)
    said = rows(out(capsys, "predict own.traj -m toy.pt -o found.xyz"))
    assert said["labels"] == "no labels were found to compare with; not compared: REF_stress"


def test_errors_by_config_type(capsys: pytest.CaptureFixture[str], potential: Potential, water: Atoms) -> None:
    frames = []
    for group, off in (("bulk", 0.3), ("gas", -0.6), ("gas", 1.2), ("", 0.0)):
        atoms = water.copy()
        atoms.calc = Calculator(potential)
        energy = atoms.get_potential_energy() + off
        atoms.calc = None
        atoms.info["REF_energy"] = energy
        if group:
            atoms.info["config_type"] = group
        frames.append(atoms)
    del frames[3].info["REF_energy"]
    ase.io.write("own.xyz", frames)
    said = rows(out(capsys, "predict own.xyz -m toy.pt -o found.xyz"))
    assert said["config_type bulk"] == "mean error of energy 100 meV/atom"
    assert said["config_type gas"] == "mean error of energy 300 meV/atom"  # of 200 and 400
    assert said["config_type (none)"] == "mean error of nothing"


def test_an_output_that_is_there_stays(capsys: pytest.CaptureFixture[str], water: Atoms) -> None:
    """Another file of the user may have the name."""
    ase.io.write("own.xyz", water)
    Path("found.xyz").write_text("mine")
    line = "predict own.xyz -m toy.pt -o found.xyz"
    assert main(shlex.split(line)) == 2
    error = capsys.readouterr().err
    assert "found.xyz" in error
    assert "--overwrite" in error
    assert Path("found.xyz").read_text() == "mine"
    out(capsys, f"{line} --overwrite")
    assert len(ase.io.read("found.xyz", ":")) == 1
