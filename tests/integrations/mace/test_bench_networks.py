"""`eqlayers bench networks mace` on a small network: every row agrees with mace-torch, and is timed."""

from __future__ import annotations

from pathlib import Path

import torch

from eqlayers.bench.atoms import rounded
from eqlayers.bench.network_check import bounds, compare, run
from eqlayers.bench.network_entrants import EXACT, OWN, PEER, Entrant, Tables, enter
from eqlayers.bench.networks import run_networks, subject_of

OPTIONS = {"cutoff": 3.5, "hidden": "4x0e + 4x1o", "lmax": 1, "correlation": 2}
CONFIG = """
device: cpu
threads: [1]
runs: 1
sizes: [16]
judged_atoms: 16
judged_threads: 1
peers: [eager]
knots: 256
tolerance: 0.0001
model: none.yaml
batch_size: 1
networks:
  mace: {cutoff: 3.5, hidden: 4x0e + 4x1o, lmax: 1, correlation: 2}
goals:
  mace:
    energy and forces: {exact: 0.001, tables: 1000000}
    training step: {ratio: 0.001, memory: 0.25}
"""
FORCES, TRAINING = "energy and forces", "training step"
CPU = torch.device("cpu")


def never(options: object) -> None:
    raise AssertionError("no molecules are needed")


def test_all_rows_agree_and_are_timed(tmp_path: Path) -> None:
    (tmp_path / "networks.yaml").write_text(CONFIG)
    result = run_networks("mace", str(tmp_path / "networks.yaml"), load_batch=never)
    rows = {(row["what"], row["implementation"]): row for row in result["rows"]}
    assert {(*key, row["status"], row["reason"]) for key, row in rows.items()} == {
        *((what, "mace-torch, eager", "ok", "") for what in (FORCES, TRAINING)),
        *((what, "eqlayers, accelerate", "ok", "") for what in (FORCES, TRAINING)),
        *((what, "eqlayers, accelerate, tables", "ok", "") for what in (FORCES, TRAINING)),
        *((what, "eqlayers, native", "ok", "") for what in (FORCES, TRAINING)),
        (FORCES, "eqlayers, native, compressed", "ok", ""),
        (TRAINING, "eqlayers, native, live tables", "ok", ""),
    }
    for (what, who), row in rows.items():
        assert (max(row["errors"].values()) > 0) is (not who.endswith("eager"))
        assert ("gradients" in row["errors"]) is (what == TRAINING)
        kernels = row["shares"]["convolutions"]
        assert (kernels > 0) is who.startswith("eqlayers")
    assert [goal["met"] for goal in result["goals"]][:3] == [True, False, True]


def test_small_mistakes_are_seen() -> None:
    """In a weight of the peer, and in one of the converted network: of the gradient as well as of energy and forces."""
    subject = subject_of("mace", OPTIONS, 16)
    known = bounds(subject, subject_of("mace", OPTIONS, 16, change=rounded), CPU)
    reference = run(Entrant("", PEER, subject.make(torch.float32), subject.evaluate), True)
    native = enter("x", OWN["eqlayers, native"], subject, Tables(50, 1e-3), CPU)
    assert isinstance(native, Entrant)
    assert compare(native, reference, known)[1]
    other = Entrant("", EXACT, subject.make(torch.float32), subject.evaluate)
    for one in (native, other):
        parameter = max(one.network.parameters(), key=lambda p: p.numel())
        parameter.register_hook(lambda gradient: gradient * 1.01)
        errors, fits = compare(one, reference, known)
        allowed = known.of(one, reference)
        assert not fits
        assert [key for key in errors if errors[key] > allowed[key]] == ["gradients"]
