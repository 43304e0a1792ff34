"""`eqlayers bench networks` on small networks of other packages: every row agrees with its package, and is timed.

Collected where one of the packages is installed (`nox`).
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from eqlayers.bench.networks.atoms import rounded
from eqlayers.bench.networks.check import bounds, compare, run
from eqlayers.bench.networks.entrants import EXACT, OWN, PEER, Entrant, Tables, enter
from eqlayers.bench.networks.run import run_networks, subject_of

FORCES, TRAINING = "energy and forces", "training step"
CPU = torch.device("cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "mace": {"cutoff": 3.5, "hidden": "4x0e + 4x1o", "lmax": 1, "correlation": 2},
    "nequip": {"cutoff": 3.5, "channels": 4, "layers": 2, "lmax": 1},
    "allegro": {"cutoff": 3.5, "channels": 4, "scalars": 8, "layers": 2, "lmax": 1},
    "sevennet": {"cutoff": 3.5, "channels": 4, "layers": 2, "lmax": 1},
}
HERE = [name for name in OPTIONS if find_spec(name.removesuffix("et"))]
SETTINGS: dict[str, Any] = {
    "device": "cpu", "threads": [1], "runs": 1, "sizes": [16], "judged_atoms": 16, "judged_threads": 1,
    "peers": ["eager"], "knots": 256, "tolerance": 1e-4, "model": "none.yaml", "batch_size": 1,
}  # fmt: skip


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


def everything(result: Any) -> None:
    """Networks of a package whose networks this one accelerates, converts and tabulates."""
    rows = rows_of(result)
    (peer,) = {who for _, who in rows if not who.startswith("eqlayers")}
    assert {(*key, row["status"], row["reason"]) for key, row in rows.items()} == {
        *((what, peer, "ok", "") for what in (FORCES, TRAINING)),
        *((what, "eqlayers, accelerate", "ok", "") for what in (FORCES, TRAINING)),
        *((what, "eqlayers, accelerate, tables", "ok", "") for what in (FORCES, TRAINING)),
        *((what, "eqlayers, native", "ok", "") for what in (FORCES, TRAINING)),
        (FORCES, "eqlayers, native, compressed", "ok", ""),
        (TRAINING, "eqlayers, native, live tables", "ok", ""),
    }
    for (what, who), row in rows.items():
        assert (max(row["errors"].values()) > 0) is (not who.endswith("eager"))
        assert ("gradients" in row["errors"]) is (what == TRAINING)
        assert (row["shares"]["convolutions"] > 0) is who.startswith("eqlayers")
    assert [goal["met"] for goal in result["goals"]][:3] == [True, False, True]


def no_conversion(result: Any) -> None:
    """This package has no class of its own for it, and says so."""
    status = {key: row["status"] for key, row in rows_of(result).items()}
    for what in (FORCES, TRAINING):
        assert status[what, "sevenn, eager"] == "ok"
        assert status[what, "eqlayers, accelerate"] == "ok"
        assert status[what, "eqlayers, accelerate, tables"] == "ok"
        assert status[what, "eqlayers, native"] != "ok"


def no_tables(result: Any) -> None:
    """Its radial functions are of species as well: there are no tables, and no class of this package."""
    rows = rows_of(result)
    done = {who for (_, who), row in rows.items() if row["status"] == "ok"}
    assert done == {"allegro, eager", "eqlayers, accelerate"}
    reasons = {row["reason"] for row in rows.values() if row["status"] != "ok"}
    assert reasons == {
        "accelerate makes no tables of this network: it may be read by Allegro_Module, EdgewiseReduce, "
        "ProductTypeEmbedding, TwoBodySphericalHarmonicTensorEmbed, which this package does not know",
        "there is no conversion of this network of allegro",
    }


ROWS = {"mace": everything, "nequip": everything, "sevennet": no_conversion, "allegro": no_tables}


@pytest.mark.parametrize("name", HERE)
def test_rows_agree_with_the_package_and_are_timed(tmp_path: Path, name: str) -> None:
    goals = {FORCES: {"exact": 0.001, "tables": 1000000}, TRAINING: {"ratio": 0.001, "memory": 0.25}}
    result = measured(tmp_path, name, OPTIONS[name], goals)
    assert result["goals"][0]["met"]
    ROWS[name](result)


@pytest.mark.parametrize("name", HERE)
def test_small_mistakes_are_seen(name: str) -> None:
    """In a weight of the peer, and in one of the converted network: of the gradient as well as of energy and forces."""
    options = OPTIONS[name]
    subject = subject_of(name, options, 16)
    known = bounds(subject, [subject_of(name, options, 16, change=rounded)], CPU)
    reference = run(Entrant("", PEER, subject.make(torch.float32), subject.evaluate), True)
    changed = [Entrant("", EXACT, subject.make(torch.float32), subject.evaluate)]
    if ROWS[name] is everything:
        native = enter("x", OWN["eqlayers, native"], subject, Tables(50, 1e-3), CPU)
        assert isinstance(native, Entrant)
        changed.append(native)
    for one in changed:
        assert compare(one, reference, known)[1]
        parameter = max(one.network.parameters(), key=lambda p: p.numel())
        parameter.register_hook(lambda gradient: gradient * 1.01)
        errors, fits = compare(one, reference, known)
        allowed = known.of(one, reference)
        assert not fits
        assert [key for key in errors if errors[key] > allowed[key]] == ["gradients"]
