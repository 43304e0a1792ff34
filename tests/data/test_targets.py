"""The table of targets: order, units and columns agree with torch-geometric and with QM9's own table."""

import re

import pytest
from torch_geometric.datasets import QM9
from torch_geometric.datasets.qm9 import HAR2EV, KCALMOL2EV, conversion

from eqlayers.data.qm9 import HARTREE_TO_EV, KCAL_PER_MOL_TO_EV, TARGETS, get_target
from eqlayers.errors import ConfigError

HEADER = "A,B,C,mu,alpha,homo,lumo,gap,r2,zpve,u0,u298,h298,g298,cv,u0_atom,u298_atom,h298_atom,g298_atom"
IN_HEADER = {"U0": "u0", "U": "u298", "H": "h298", "G": "g298", "Cv": "cv"}
IN_HEADER |= {"U0_atom": "u0_atom", "U_atom": "u298_atom", "H_atom": "h298_atom", "G_atom": "g298_atom"}


def test_nineteen_targets_in_order():
    assert [target.qm9_index for target in TARGETS.values()] == list(range(19))
    assert all(name == target.name for name, target in TARGETS.items())


def test_descriptions_agree_with_torch_geometric():
    rows = re.findall(r"\| (\d+) +\| :math:`(.*?)` +\| (.*?) +\| :math:`(.*?)` ", QM9.__doc__)
    assert len(rows) == 19
    units = {
        r"\textrm{D}": "D",
        "{a_0}^3": "a0^3",
        "{a_0}^2": "a0^2",
        r"\textrm{eV}": "eV",
        r"\frac{\textrm{cal}}{\textrm{mol K}}": "cal/(mol K)",
        r"\textrm{GHz}": "GHz",
    }
    for (index, _, _, unit), target in zip(rows, TARGETS.values(), strict=True):
        assert int(index) == target.qm9_index
        assert units[unit] == target.unit


def test_factors_agree_with_torch_geometric():
    assert pytest.approx(HAR2EV, rel=1e-10) == HARTREE_TO_EV
    assert pytest.approx(KCALMOL2EV, rel=1e-6) == KCAL_PER_MOL_TO_EV
    for target in TARGETS.values():
        assert target.raw_factor == pytest.approx(float(conversion[target.qm9_index]), rel=1e-6), target.name


def test_raw_columns():
    for target in TARGETS.values():
        assert HEADER.split(",")[target.raw_column] == IN_HEADER.get(target.name, target.name)


def test_energies_are_in_electronvolts_and_reported_in_millielectronvolts():
    energies = {name for name, target in TARGETS.items() if target.unit == "eV"}
    assert energies == {"homo", "lumo", "gap", "zpve", *IN_HEADER} - {"Cv"}
    for target in TARGETS.values():
        expected = ("meV", 1000.0) if target.unit == "eV" else (target.unit, 1.0)
        assert (target.report_unit, target.report_factor) == expected


def test_intensive_targets():
    intensive = {name for name, target in TARGETS.items() if not target.extensive}
    assert intensive == {"mu", "homo", "lumo", "gap", "A", "B", "C"}


def test_unknown_target_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"target must be one of mu, alpha.*got 'u0'. Pick one of these"):
        get_target("u0")
