"""The study of dynamics: the drift of the total energy, exact and with tables."""

from typing import Any

import numpy as np
import pytest
import torch

from eqlayers.bench.measure import describe
from eqlayers.bench.networks import entrants as network_entrants
from eqlayers.bench.networks.atoms import clusters
from eqlayers.bench.networks.entrants import EXACT, TABLES
from eqlayers.bench.networks.packages import Subject
from eqlayers.bench.report import tables
from eqlayers.bench.results import quiet
from eqlayers.errors import ConfigError
from tests.by_path import loaded

study = loaded("docs/benchmarks/studies/dynamics.py")

pytestmark = pytest.mark.xdist_group("bench networks")  # as test_networks.py: the same kernels
FIELDS = {
    "networks": {"TFN": {"cutoff": 3.5, "hidden": "2x0e + 2x1o", "lmax": 1, "layers": 2}},
    "sizes": [32, 16],
    "knots": 250,
    "tolerance": 1e-4,
}
NATIVE, COMPRESSED = "eqlayers, native", "eqlayers, native, compressed"


def rows(steps: int = 100) -> list[dict[str, Any]]:
    return list(study.run_dynamics("TFN", FIELDS, torch.device("cpu"), steps, quiet))


@pytest.mark.slow
def test_the_exact_network_and_its_tables_conserve_the_energy() -> None:
    exact, frozen = both = rows()
    assert [(row["implementation"], row["kind"], row["atoms"]) for row in both] == [
        (NATIVE, EXACT, 16),
        (COMPRESSED, TABLES, 16),
    ]
    for row in both:
        assert row["steps"] == 100
        assert row["reason"] == ""
        assert 50 < row["temperature"] < 2000
        assert 0 < row["spread"] < 5, "of forces of 1 eV/A and steps of 0.5 fs"
    # the ways are the same for so few steps, and with them what velocity Verlet does to the energy
    assert frozen["spread"] == pytest.approx(exact["spread"], rel=0.05)
    assert frozen["drift"] == pytest.approx(exact["drift"], rel=0.05)


def test_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times in ps, energies in meV per atom."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    constant = (torch.tensor([1.6]), torch.zeros(16, 3))
    monkeypatch.setattr(study, "drift", lambda *lines: (seen.append(lines), (0.0, 0.0))[1])
    monkeypatch.setattr(study, "evaluate_potential", lambda place: lambda network, training: constant)
    monkeypatch.setattr(study, "give_velocities", lambda atoms, settings: None)
    rows(4)
    times, energies = seen[0]
    np.testing.assert_allclose(times, [0, 0.0005, 0.001, 0.0015, 0.002], rtol=1e-12)
    np.testing.assert_allclose(energies, 100, rtol=1e-6)


@pytest.mark.slow
def test_forces_that_are_no_gradient_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = study.evaluate_potential

    def wrong(place: Any) -> Any:
        evaluate = right(place)
        return lambda network, training: (lambda e, f: (e, 1.1 * f))(*evaluate(network, training))

    honest = rows(40)[0]
    monkeypatch.setattr(study, "evaluate_potential", wrong)
    assert rows(40)[0]["spread"] > 3 * honest["spread"]


def test_a_row_that_cannot_be_made_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise ConfigError("no tables today")

    maker = network_entrants.OWN[COMPRESSED]
    monkeypatch.setitem(network_entrants.OWN, COMPRESSED, network_entrants.Maker(TABLES, refuse, maker.modes, True))
    exact, refused = rows(2)
    assert exact["reason"] == ""
    assert refused["drift"] is None
    assert "no tables today" in refused["reason"]


def test_rows_of_networks_of_others() -> None:
    """The first that is exact, and all with tables."""
    theirs = Subject("x", clusters((2,)), lambda dtype: torch.nn.Identity(), lambda a, b: (a, b), "mace-torch")
    assert list(study.compared(theirs)) == ["eqlayers, accelerate", "eqlayers, accelerate, tables", COMPRESSED]


def test_a_line_and_what_is_around_it() -> None:
    times = np.linspace(0, 5, 1001)
    noise = np.cos(2 * np.pi * 40 * times)
    slope, spread = study.drift(times, -3 + 0.25 * times + noise)
    assert slope == pytest.approx(0.25, abs=1e-3)
    assert spread == pytest.approx(0.5**0.5, rel=2e-3)


def test_the_table() -> None:
    row = {"network": "TFN", "implementation": NATIVE, "kind": EXACT, "atoms": 16, "steps": 9, "reason": ""}
    numbers = {"drift": -0.0012, "spread": 0.51, "temperature": 301.0}
    bad = {**row, **dict.fromkeys(numbers), "reason": "no memory"}
    result = {"kind": "networks", "suite": "ours", "rows": [], "goals": [], "notes": []}
    head = describe(torch.device("cpu"))
    shown = tables({**head, **result, "dynamics": [{**row, **numbers}, bad]}, study.LAYOUT)
    (table,) = [table for table in shown if "dynamics" in table.title]
    assert [cells[-4:] for cells in table.rows] == [["-0.0012", "0.51", "301", "ok"], ["-", "-", "-", "no memory"]]
