"""Symmetrix-XL beside MACE: a stand-in of its package is called as the package is, and its rows are judged apart."""

import os
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eqlayers.bench.networks.atoms import crystal
from eqlayers.bench.networks.check import Bounds, compare, run
from eqlayers.bench.networks.entrants import (
    BESIDE_SYMMETRIX,
    MISSING,
    PEER,
    Entrant,
    Tables,
    _last,
    enter,
    makers,
    of_models,
    symmetrix,
)
from eqlayers.bench.networks.packages import Subject
from eqlayers.bench.networks.run import judged

PREPARED, BY_ASE, OURS_BY_ASE = BESIDE_SYMMETRIX
TABLES = Tables(250, 1e-4)
CPU = torch.device("cpu")


@pytest.fixture
def subject() -> Subject:
    """A network of this package that says it is MACE's."""
    options = {"hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1}
    return replace(of_models("TFN", options, sample=crystal(16, 3.5), scale=2.0), peer="mace-torch")


class StandIn:
    """The calculator's interface, with results of the network that was converted."""

    subject: Any = None
    jit_status = "built"

    def __init__(self, file: Any, dtype: str, **options: Any) -> None:
        self.threads, self.calls, self.results = os.environ["OMP_NUM_THREADS"], [], {}
        self.dtype, self.options = getattr(torch, dtype), options
        self.evaluator = SimpleNamespace(_compute_prepared_factorized_positions=self._positions)

    def _found(self) -> tuple[Any, Any]:
        energy, forces = self.subject.evaluate(self.subject.make(self.dtype), False)
        return energy.detach().double().numpy(), forces.detach().double().numpy()

    def calculate(self, atoms: Any, properties: Any, changes: Any = None) -> None:
        self.calls.append("calculate")
        energy, forces = self._found()
        self.results = {"energy": energy.item(), "forces": forces}

    def _mace_inputs(self, atoms: Any, native_geometry: bool) -> tuple[Any, ...]:
        return (len(atoms), *[None] * 2, "senders", *[None] * 3, "receivers")

    def _compute_mace(self, inputs: Any, atoms: Any) -> int:
        return 7

    def _positions(self, graph: int, positions: Any) -> None:
        self.calls.append("prepared")
        assert graph == 7
        energy, forces = self._found()
        self.evaluator.node_energies = np.full(len(positions) // 3, energy.item() * 3 / len(positions))

        def reduced(count: int, receivers: str, senders: str, generation: int) -> Any:
            assert (receivers, senders, generation) == ("receivers", "senders", 7)
            return forces.reshape(-1)

        self.evaluator._reduce_atom_forces = reduced


@pytest.fixture
def installed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    extract = ModuleType("symmetrix.extract_mace_data")
    extract.extract_mace_data = lambda path: {"atoms": path.name}  # type: ignore[attr-defined]
    package = ModuleType("symmetrix")
    package.Symmetrix = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "symmetrix", package)
    monkeypatch.setitem(sys.modules, "symmetrix.extract_mace_data", extract)
    monkeypatch.setattr(StandIn, "subject", subject)
    _last.clear()


def test_a_missing_package_is_said_with_the_way_to_install_it(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "symmetrix", None)
    _last.clear()
    rows = makers(subject, ("eager", "symmetrix"))
    assert list(rows)[-3:] == [PREPARED, BY_ASE, OURS_BY_ASE]
    assert enter(PREPARED, rows[PREPARED], subject, TABLES, CPU) == MISSING
    assert "pip install --no-deps symmetrix-xl" in MISSING
    for other in (replace(subject, peer="nequip"), replace(subject, peer="")):
        assert PREPARED not in makers(other, ("eager", "symmetrix"))


def test_both_calls_and_our_own_give_the_network_s_results(
    installed: None, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_PROC_BIND", raising=False)
    before = dict(os.environ)
    reference = run(Entrant("", PEER, subject.make(torch.float32), subject.evaluate), False)
    known = Bounds({"energy": 1e-7, "forces": 1e-7}, {"energy": 1e-7, "forces": 1e-7}, None)
    for name in (PREPARED, BY_ASE, OURS_BY_ASE):
        entrant = enter(name, BESIDE_SYMMETRIX[name], subject, TABLES, CPU)
        assert isinstance(entrant, Entrant), entrant
        errors, fits = compare(entrant, reference, known)
        assert fits, (name, errors)
        assert entrant.threads == (0 if name == OURS_BY_ASE else torch.get_num_threads())
    network = symmetrix(subject, TABLES, torch.float32)
    assert network is symmetrix(subject, TABLES, torch.float32), "both rows have one calculator"
    assert network.calculator.calls == ["calculate", "prepared", "calculate"]
    assert network.calculator.threads == str(torch.get_num_threads())
    assert "s until compiled" in network.about
    assert dict(os.environ) == before


def test_energies_may_be_off_by_more_than_ours(installed: None, subject: Subject) -> None:
    reference = run(Entrant("", PEER, subject.make(torch.float32), subject.evaluate), False)
    known = Bounds({"energy": 1e-7, "forces": 1e-7}, {"energy": 1e-7, "forces": 1e-7}, None)
    entrant = enter(PREPARED, BESIDE_SYMMETRIX[PREPARED], subject, TABLES, CPU)
    assert isinstance(entrant, Entrant)
    moved = {**reference, "energy": reference["energy"] + 16 * 5e-4}
    assert compare(entrant, moved, known)[1]
    assert not compare(replace(entrant, limits=None), moved, known)[1]
    assert not compare(entrant, {**reference, "forces": reference["forces"] + 2e-4}, known)[1]


def test_goals_beside_mace_are_not_those_beside_symmetrix() -> None:
    def row(who: str, kind: str, median: float) -> dict[str, Any]:
        about = {"network": "mace", "what": "energy and forces", "implementation": who, "kind": kind}
        return about | {"atoms": 256, "threads": 1, "seconds": {"median": median}, "memory_bytes": None}

    rows = [row("mace-torch, eager", "peer", 90.0), row(PREPARED, "peer", 6.0), row(BY_ASE, "peer", 7.0)]
    rows += [row("eqlayers, native", "exact", 9.0), row("eqlayers, native, compressed", "tables", 3.0)]
    wanted = {"mace": {"energy and forces": {"exact": 8, "tables": 20, "other": 1}}}
    goals = judged(rows, wanted, {"judged_atoms": 256, "judged_threads": 1})
    assert [goal["measured"] for goal in goals] == [10, 30, 2]
    assert "beside symmetrix-xl" in goals[2]["where"]
