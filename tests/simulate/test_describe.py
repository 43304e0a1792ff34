"""The description of a file of a potential: network, species, weights, facts, and kernels by device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from eqlayers.cli.notices import lines
from eqlayers.models import Potential, save_potential
from eqlayers.simulate.cli import _program, describe_members
from eqlayers.testing import ToyNetwork
from tests.simulate.test_cli import out, rows

pytestmark = pytest.mark.usefixtures("place")


def test_info_says_what_a_potential_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "info toy.pt")
    found = rows(text)
    expected = "eqlayers.testing.ToyNetwork(num_species=2, cutoff=3.5, channels=4, seed=0)"
    assert found["network"] == expected
    assert (found["species"], found["cutoff"], found["dtype"]) == ("H, O", "3.5 A", "float64")
    assert (found["parameters"], found["repulsion"]) == ("48", "none")
    assert (found["shifts"], found["scales"]) == ("H -13.6, O -432 eV", "H 0.5, O 0.5 eV")
    assert (found["data.units"], found["errors.forces"]) == ("eV, Angstrom", "0.031")
    assert found["versions.torch"] == torch.__version__
    assert "EdgeGeometry on cpu, torch.float64" in found["kernels on cpu"]
    assert found["native program"].startswith("on a CPU, for 1,000 steps and more of md and relax, and as many")


@pytest.mark.parametrize(
    ("name", "words"), [("tanh", "on a CPU.* whole structure, for .*"), ("erfinv", "none: .*erfinv.*")]
)
def test_info_says_why_no_program_applies(name: str, words: str) -> None:
    network = ToyNetwork(2)
    network.forward = lambda types, edges, graph: getattr(edges.lengths, name)().sum().expand(types.shape[0])
    assert re.fullmatch(words, _program(Potential(network, [1, 8], subtract_isolated=False).eval()))


def test_members_share_a_line_or_have_one_each() -> None:
    """Their sizes are equal here, their seeds are not; values stand below each other."""
    save_potential(Potential(ToyNetwork(2, cutoff=3.5, seed=1), [1, 8]).double().eval(), "other.pt")
    described = dict(describe_members([Path("toy.pt"), Path("other.pt")]))
    assert (described["members"], described["cutoff"], described["parameters"]) == ("2", "3.5 A", "48")
    assert described["native program"] == "none: of a committee"
    first, second = described["network"].splitlines()
    assert (first[:3], second[:3], first[3:-7]) == ("1: ", "2: ", second[3:-7])
    assert (first[-7:], second[-7:]) == ("seed=0)", "seed=1)")
    assert described["data.units"] == "1: eV, Angstrom\n2: -"
    text = lines([("a", "1"), ("longer", "2\n3")])
    assert text.splitlines() == ["a       1", "longer  2", "        3"]
