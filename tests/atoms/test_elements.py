"""Elements by symbol or atomic number: one way of reading them, and errors that name the wrong one."""

from typing import Any

import pytest
import torch
from ase.data import chemical_symbols

from eqlayers.atoms.elements import SYMBOLS, by_element, element, read_species, symbols_of
from eqlayers.errors import ConfigError
from eqlayers.models import MACE, TFN, Equiformer, NequIP, Potential, extend_potential
from eqlayers.nn import ZBL, AgnesiTransform
from eqlayers.testing import ToyNetwork

SMALL: dict[str, Any] = {"hidden": "2x0e + 2x1o", "layers": 1}


def test_symbols_are_those_of_ase() -> None:
    assert (*chemical_symbols[1:],) == SYMBOLS
    assert [element("species", symbol) for symbol in SYMBOLS] == list(range(1, 119))
    assert symbols_of([6, 118, 119]) == "C, Og, 119"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("CU", r"got 'CU'\. Write 'Cu'\."),
        ("Xx", r"got 'Xx'\. Write a symbol such as 'O'"),
        (119, "got 119"),
        (0, "got 0"),
        (False, "got False. In YAML the symbol No of nobelium needs quotes"),
        (1.0, r"got 1\.0"),
        ("²", "got"),
    ],
)
def test_what_is_no_element_is_named(value: Any, message: str) -> None:
    with pytest.raises(
        ConfigError, match=f"species must be chemical symbols or atomic numbers from 1 to 118, {message}"
    ):
        read_species([8, value])


def test_an_element_counts_once() -> None:
    with pytest.raises(ConfigError, match="must be different elements, at least one, got O more than once"):
        read_species(["O", 1, 8])
    with pytest.raises(ConfigError, match="e0s must name each element once, got O more than once"):
        by_element("e0s", {"O": 1.0, 8: 2.0}, "energy in eV")


@pytest.mark.parametrize("network", [MACE, NequIP, TFN, Equiformer])
def test_networks_and_potentials_take_symbols(network: Any) -> None:
    extra = {MACE: {"correlation": 1}, Equiformer: {"heads": 1}}.get(network, {})
    made = network(["O", 1], **SMALL, **extra)
    assert made.species == (8, 1)
    assert made.options["species"] == [8, 1]
    potential = Potential(made, ["O", "H"], shifts={"H": -13.6, 8: -2041.8}, scale={"O": 2.0})
    assert potential.shifts.tolist() == [-2041.8, -13.6]
    assert potential.scales.tolist() == [2.0, 1.0]
    assert "species O, H" in repr(potential)


def test_others_take_symbols() -> None:
    assert ZBL().reach(["H", "K"]) == ZBL().reach([1, 19])
    torch.testing.assert_close(AgnesiTransform(["H", "O"]).radii, AgnesiTransform([1, 8]).radii)
    wider = extend_potential(Potential(NequIP([1], **SMALL), [1]), ["He", "H"], {"He": 3.0})
    assert wider.species == (1, 2)
    assert wider.shifts.tolist() == [0.0, 3.0]
    with pytest.raises(ConfigError, match=r"species must be .*, got 'h'\. Write 'H'"):
        Potential(ToyNetwork(1), ["h"])
