"""What `eqlayers bench networks` must say of a network of any package: every row agrees with it, and is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from eqlayers.bench.atoms import rounded
from eqlayers.bench.network_check import bounds, compare, run
from eqlayers.bench.network_entrants import EXACT, OWN, PEER, Entrant, Tables, enter
from eqlayers.bench.networks import run_networks, subject_of

FORCES, TRAINING = "energy and forces", "training step"
CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "threads": [1],
    "runs": 1,
    "sizes": [16],
    "judged_atoms": 16,
    "judged_threads": 1,
    "peers": ["eager"],
    "knots": 256,
    "tolerance": 1e-4,
    "model": "none.yaml",
    "batch_size": 1,
}


def measured(folder: Path, name: str, options: dict[str, Any], goals: dict[str, Any]) -> Any:
    """The result for a small network; no molecules are loaded."""

    def never(options: object) -> None:
        raise AssertionError("no molecules are needed")

    place = folder / "networks.yaml"
    place.write_text(yaml.safe_dump({**SETTINGS, "networks": {name: options}, "goals": {name: goals}}, sort_keys=False))
    return run_networks(name, str(place), load_batch=never)  # type: ignore[arg-type]


def rows_of(result: Any) -> dict[tuple[str, str], Any]:
    """By what and implementation."""
    return {(row["what"], row["implementation"]): row for row in result["rows"]}


def all_rows_agree_and_are_timed(folder: Path, name: str, peer: str, options: dict[str, Any]) -> None:
    """Of a package that this one accelerates, converts and makes tables for."""
    goals = {FORCES: {"exact": 0.001, "tables": 1000000}, TRAINING: {"ratio": 0.001, "memory": 0.25}}
    result = measured(folder, name, options, goals)
    rows = rows_of(result)
    assert {(*key, row["status"], row["reason"]) for key, row in rows.items()} == {
        *((what, f"{peer}, eager", "ok", "") for what in (FORCES, TRAINING)),
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


def small_mistakes_are_seen(name: str, options: dict[str, Any]) -> None:
    """In a weight of the peer, and in one of the converted network: of the gradient as well as of energy and forces."""
    subject = subject_of(name, options, 16)
    known = bounds(subject, [subject_of(name, options, 16, change=rounded)], CPU)
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
