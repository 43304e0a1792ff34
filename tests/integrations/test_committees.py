"""Committees in ASE: means, deviations and the values of the members, from one neighbour list."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError

from eqlayers.errors import ConfigError
from eqlayers.integrations import ase as integration
from eqlayers.integrations.ase import Calculator, as_potential, predict
from eqlayers.models import Committee, Potential, save_potential
from eqlayers.testing import ToyNetwork

CUTOFFS = (3.5, 3.0, 3.5)


@pytest.fixture(scope="module")
def members() -> list[Potential]:
    toys = (ToyNetwork(2, cutoff=cutoff, seed=seed) for seed, cutoff in enumerate(CUTOFFS))
    return [Potential(toy, [1, 8]).double().eval() for toy in toys]


def crystal() -> Atoms:
    atoms = bulk("O", "fcc", a=3.4, cubic=True)
    atoms.rattle(0.1, seed=1)
    return atoms


def test_results_are_those_of_the_members(members: list[Potential]) -> None:
    """Stress as ASE has it, and its deviation over all nine components."""
    atoms = crystal()
    alone: dict[str, Any] = {"energy": [], "forces": [], "stress": []}
    for member in members:
        atoms.calc = Calculator(member)
        alone["energy"].append(atoms.get_potential_energy())
        alone["forces"].append(atoms.get_forces())
        alone["stress"].append(atoms.get_stress(voigt=False))
    each = {name: np.array(values) for name, values in alone.items()}
    atoms.calc = calculator = Calculator(members)
    close = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(atoms.get_potential_energy(), each["energy"].mean(), **close)
    np.testing.assert_allclose(atoms.get_forces(), each["forces"].mean(0), **close)
    np.testing.assert_allclose(atoms.get_stress(voigt=False), each["stress"].mean(0), **close)
    results = calculator.results
    np.testing.assert_allclose(results["energy_members"], each["energy"], **close)
    np.testing.assert_allclose(results["forces_members"], each["forces"], **close)
    assert results["stress_members"].shape == (3, 6)
    np.testing.assert_allclose(results["energy_deviation"], each["energy"].std(ddof=1), **close)
    spread = each["forces"].var(0, ddof=1).sum(1) ** 0.5
    np.testing.assert_allclose(results["forces_deviation"], spread, **close)
    assert results["energies_deviation"].shape == (4,)
    np.testing.assert_allclose(results["stress_deviation"], each["stress"].var(0, ddof=1).sum() ** 0.5, **close)
    (result,) = predict(members, [atoms])
    for name, value in results.items():
        np.testing.assert_allclose(result[name], value, err_msg=name, **close)


def test_deviations_are_properties_of_ase(members: list[Potential]) -> None:
    """Asking for one computes it; a molecule has no deviation of stress."""
    calculator = Calculator(members)
    water = molecule("H2O")
    assert calculator.get_property("energy_deviation", water) > 0
    assert "forces_deviation" not in calculator.results
    assert calculator.get_property("forces_deviation", water).shape == (3,)
    with pytest.raises(PropertyNotImplementedError):
        calculator.get_property("stress_deviation", water)
    with pytest.raises(PropertyNotImplementedError):
        Calculator(members[0]).get_property("energy_deviation", water)
    assert calculator.get_hessian(water).shape == (3, 3, 3, 3)


def test_one_neighbor_list_serves_all_members(members: list[Potential], monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counting(*args: Any) -> Any:
        made.append(args)
        return collate(*args)

    collate = integration.collate
    monkeypatch.setattr(integration, "collate", counting)
    atoms = crystal()
    atoms.calc = Calculator(members)
    atoms.get_forces()
    assert len(made) == 1
    assert atoms.calc.neighbors.built == 1
    assert atoms.calc.neighbors.cutoff == max(CUTOFFS)


def test_what_a_calculator_takes(members: list[Potential], tmp_path: Path) -> None:
    """Files, potentials, a pattern, a committee; those that are given stay as they are."""
    for number, member in enumerate(members):
        save_potential(member, tmp_path / f"{number}.pt")
    files = sorted(tmp_path.glob("*.pt"))
    sources = (files, list(map(str, files)), str(tmp_path / "*.pt"), Committee(members), tuple(members))
    energies = []
    for source in sources:
        atoms = molecule("H2O")
        atoms.calc = Calculator(source)
        energies.append(atoms.get_potential_energy())
        assert len(atoms.calc.potential) == 3
    assert np.ptp(energies) < 1e-12
    assert as_potential(members, torch.float32).dtype == torch.float32
    assert members[0].dtype == torch.float64
    training = Committee([members[0], Potential(ToyNetwork(2, seed=5), [1, 8]).double().train()])
    assert not any(member.training for member in as_potential(training).members)
    assert training.members[1].training


@pytest.mark.parametrize("source", [[], ["no.pt"], "no*.pt", [3]])
def test_what_a_calculator_does_not_take(source: Any) -> None:
    with pytest.raises(ConfigError):
        Calculator(source)
