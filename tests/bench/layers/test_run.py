"""`eqlayers bench layers` on small settings: everything is compared first, and what is wrong is not timed."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eqlayers.bench import measure, roofline
from eqlayers.bench.cli import run
from eqlayers.bench.layers import PAIRS, Pair
from eqlayers.bench.layers import run as layers
from eqlayers.bench.layers.run import (
    LAYER_DIRECTIONS,
    Candidate,
    LayerCase,
    Subject,
    build,
    compare,
    exact_results,
    names_of,
    prepare,
    read_layer_suite,
)
from eqlayers.bench.report import count_goals, tables, write_report
from eqlayers.bench.results import flat_rows
from eqlayers.bench.run import run_suite
from tests.bench.conftest import SlightlyWrongGradient

CASES = {
    "SphericalHarmonics": LayerCase("a", "SphericalHarmonics", 5, options={"lmax": 3}),
    "EdgeGeometry": LayerCase("a", "EdgeGeometry", 9, options={"lmax": 2}),
    "SymmetricContraction": LayerCase(
        "a",
        "SymmetricContraction",
        5,
        options={"in": "0e+1o+2e", "out": "0e+1o+1e", "channels": 2, "elements": 3, "correlation": 3},
    ),
}
CPU = torch.device("cpu")


@pytest.fixture
def config(layer_config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**20)
    monkeypatch.setattr(roofline, "ROUNDS", 1000)
    monkeypatch.setattr("eqlayers.bench.run._memory", lambda *args: 2**22)
    return layer_config


@pytest.mark.slow
def test_every_case_is_compared_and_timed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    file, table = config.parent / "out.json", config.parent / "out.csv"
    run(["layers", "--config", str(config), "--json", str(file), "--csv", str(table)], lambda options: None)  # type: ignore[arg-type,return-value]
    assert torch.equal(before, torch.get_rng_state())
    result = json.loads(file.read_text())
    names = ["small/l2/E4", "small/l2/E7", "graph/l1/E6", "graph/l1/E6/float64", "power/0e+1o-c3/N3"]
    assert [case["name"] for case in result["cases"]] == names
    for case in result["cases"]:
        rows = [row for row in case["results"] if row["status"] != "refused"]
        assert {row["implementation"] for row in rows} >= {"eqlayers", "e3nn" if case["edges"] else "einsum"}
        assert {row["direction"] for row in rows} == set(LAYER_DIRECTIONS)
        for row in rows:
            assert row["status"] == "ok", row
            assert row["seconds"]["median"] > 0 < row["share"]
            assert row["error"] <= 0.2, "a bound that is near is none"
            least = case["limits"][row["direction"]]
            assert row["share"] == pytest.approx(least["seconds"] / row["seconds"]["median"])
        ours = [row for row in rows if row["implementation"] == "eqlayers"]
        assert len(ours) == 3
    assert [g["quantity"] for g in result["cases"][0]["goals"]] == ["ratio", "ratio", "memory"]
    assert all(g["met"] is not None for case in result["cases"] for g in case["goals"])
    printed = capsys.readouterr()
    assert "power/0e+1o-c3/N3: timing fwd+double" in printed.err
    assert "7 goals:" in printed.out
    assert "Peak of multiply-adds, float64" in printed.out.replace("\n", " ")
    assert len(table.read_text().splitlines()) == 1 + len(flat_rows(result))


def test_report_and_pictures_of_a_stored_result(config: Path) -> None:
    result = run_suite(read_layer_suite(str(config)), peers=["e3nn", "einsum"])
    written = [path.name for path in write_report(result, config.parent / "report")]
    shown = ("SphericalHarmonics", "EdgeGeometry", "SymmetricContraction")
    expected = {f"tiny_{layer}_{kind}.png" for layer in shown for kind in ("ratios", "shares")}
    assert set(written) == {"tiny.md", "tiny_small_l2_growth.png", *expected}
    text = (config.parent / "report" / "tiny.md").read_text()
    assert "power/0e+1o-c3: SymmetricContraction of 0e+1o to 0e+1o, correlation 3, 2 channels, 3 species" in text
    assert "share of the limit" in text
    assert count_goals(result).startswith("7 goals: ")
    assert [table.title for table in tables(result)] == ["suite tiny, float32, float64, cpu", "goals"]


def test_peers_that_a_layer_has_not_are_left_out(config: Path) -> None:
    result = run_suite(read_layer_suite(str(config)).only("[sp]*"), peers=["einsum"], num_threads=1, runs=1)
    names = {case["name"]: {row["implementation"] for row in case["results"]} for case in result["cases"]}
    assert names["small/l2/E4"] == {"eqlayers"}
    assert names["power/0e+1o-c3/N3"] == {"eqlayers", "einsum"}
    assert {goal["met"] for case in result["cases"][:1] for goal in case["goals"]} == {None}, "no peer to compare with"


def test_a_result_is_kept_after_every_case(config: Path) -> None:
    kept: list[int] = []
    run_suite(
        read_layer_suite(str(config)).only("small/*"),
        peers=[],
        runs=1,
        keep=lambda result: kept.append(len(result["cases"])),
    )
    assert kept == [1, 2]


# ---- right, then fast -----------------------------------------------------------------------------------------------


class WrongSecond(torch.autograd.Function):
    """The identity with the right gradient, whose own is a thousandth too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return SlightlyWrongGradient.apply(gradient)  # type: ignore[no-any-return,no-untyped-call]


def nan_in_one_place(z: Tensor) -> Tensor:
    change = torch.zeros_like(z)
    change.view(-1)[-1] = math.nan
    return z + change


# fault -> what it does to a result, and the first direction that must show it
FAULTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "value": (lambda z: z * 1.001, "fwd"),
    "not finite": (nan_in_one_place, "fwd"),
    "rows exchanged": (lambda z: z.flip(0), "fwd"),
    "another shape": (lambda z: z[1:], "fwd"),
    "gradient": (SlightlyWrongGradient.apply, "fwd+bwd"),
    "second derivative": (WrongSecond.apply, "fwd+double"),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("layer", CASES)
def test_a_wrong_layer_is_not_timed(layer: str, fault: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, first = FAULTS[fault]
    right = layers.build

    def wrong(case: LayerCase, device: torch.device, backend: str | None = None) -> Subject:
        subject = right(case, device, backend)
        ours = subject.makers["eqlayers"]()
        other = replace(ours, fn=lambda x: (*ours.fn(x)[:-1], change(ours.fn(x)[-1])))
        return replace(subject, makers={**subject.makers, "eqlayers": lambda: other})

    monkeypatch.setattr(layers, "build", wrong)
    suite = replace(read_layer_suite(str(config)), cases=(replace(CASES[layer], peers=("e3nn", "einsum")[:0], runs=1),))
    (case,) = run_suite(suite)["cases"]
    status = {row["direction"]: row["status"] for row in case["results"]}
    must = LAYER_DIRECTIONS[LAYER_DIRECTIONS.index(first) :]
    if fault == "second derivative":
        must = ("fwd+double",)
    for direction in LAYER_DIRECTIONS:
        row = next(row for row in case["results"] if row["direction"] == direction)
        if direction in must:
            assert status[direction] in ("wrong", "failed"), (direction, row)
            assert row["seconds"] is None
        else:
            assert status[direction] == "ok", row


def test_the_message_names_the_result() -> None:
    exact = {"z0": torch.ones(3).double(), "gw0": torch.ones(2).double(), "gw1": torch.zeros(2).double()}
    call = lambda: (torch.ones(3), torch.ones(2) * 1.01, torch.full((2,), 1e-7))  # noqa: E731
    verdict = compare(call, exact, torch.float32)
    assert verdict.status == "wrong"
    assert verdict.reason.startswith("the error of gw0 is ")
    assert compare(lambda: call()[:2], exact, torch.float32).reason == "3 results expected, got 2"
    assert compare(lambda: exact.values(), exact, torch.float32).error == 0  # type: ignore[arg-type]
    small = {"gw0": exact["gw0"], "gw1": exact["gw1"]}
    assert compare(lambda: (torch.ones(2), torch.full((2,), 1e-6)), small, torch.float32).status == "ok"

    def fails() -> None:
        raise RuntimeError("no such kernel")

    assert compare(fails, exact, torch.float32).reason == "RuntimeError: no such kernel"


# ---- definitions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", LAYER_DIRECTIONS)
def test_parts_of_the_rows_make_the_whole_definition(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASES["SymmetricContraction"], dtype="float64")
    cotangents, tangent = (torch.randn(5, 14).double(),), torch.randn(5, 2, 9).double()
    whole = exact_results(build(case, CPU), direction, cotangents, tangent)
    pair = PAIRS["SymmetricContraction"]
    monkeypatch.setitem(PAIRS, "SymmetricContraction", replace(pair, part=2))
    subject = build(case, CPU)
    assert len(list(subject.exact())) == 3
    parts = exact_results(subject, direction, cotangents, tangent)
    assert list(parts) == list(whole)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value)


@pytest.mark.parametrize("layer", CASES)
def test_directions_are_what_they_are_called(layer: str) -> None:
    """A candidate has the gradients of the scalars that the documentation names."""
    subject = build(replace(CASES[layer], dtype="float64"), CPU)
    ours = subject.makers["eqlayers"]()
    z = ours.fn(ours.moving)
    cotangents = tuple(torch.randn_like(t) for t in z)
    tangent = torch.randn_like(ours.moving)
    results = {}
    for direction in LAYER_DIRECTIONS:
        names = names_of(direction, len(z), len(ours.weights))
        results[direction] = dict(zip(names, prepare(ours, direction, cotangents, tangent)(), strict=True))
    step = 1e-5

    def scalar(moved: Tensor) -> float:
        with torch.no_grad():
            return sum(float((c * v).sum()) for c, v in zip(cotangents, ours.fn(moved), strict=True))

    slope = (scalar(ours.moving + step * tangent) - scalar(ours.moving - step * tangent)) / (2 * step)
    assert float((results["fwd+bwd"]["gx"] * tangent).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-7)
    # kernels of their own: the first computes no gradients of weights, which no caller wants
    torch.testing.assert_close(results["fwd+double"]["gx"], results["fwd+bwd"]["gx"])
    # what the forces are contracted with is the derivative along the tangent, which is linear in the cotangents
    along = sum(float((c * results["fwd+double"][f"ggz{i}"]).sum()) for i, c in enumerate(cotangents))
    assert along == pytest.approx(slope, rel=1e-6, abs=1e-7)
    shifted = {}
    for sign in (1, -1):
        moved = replace(ours, moving=(ours.moving + sign * step * tangent).detach().requires_grad_())
        shifted[sign] = prepare(moved, "fwd+bwd", cotangents, tangent)()[len(z)]
    torch.testing.assert_close(
        results["fwd+double"]["ggx"], (shifted[1] - shifted[-1]) / (2 * step), rtol=1e-5, atol=1e-6
    )


def test_e3nn_compiled_has_no_double_backward() -> None:
    item = build(CASES["SphericalHarmonics"], CPU).makers["e3nn-compiled"]()
    assert [direction for direction, _ in item.cannot] == ["fwd+double"]


def test_the_candidate_of_each_peer_is_its_own_leaf() -> None:
    subject = build(CASES["SymmetricContraction"], CPU)
    items: list[Candidate] = [subject.makers[name]() for name in ("eqlayers", "einsum")]
    assert len({item.moving.data_ptr() for item in items}) == 2
    for a, b in zip(items[0].weights, items[1].weights, strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()


def test_the_backend_is_that_of_every_layer_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    class Noting(torch.nn.Module):
        backend = None

        def forward(self, x: Tensor) -> Tensor:
            seen.append(self.backend)
            return x

    pair = Pair(lambda irreps: torch.nn.Sequential(Noting()), lambda irreps: Noting())
    monkeypatch.setitem(PAIRS, "Norm", pair)
    subject = build(LayerCase("a", "Norm", 3, options={"irreps": "2x0e"}), CPU, "torch")
    for make in subject.makers.values():
        item = make()
        item.fn(item.moving)
    assert seen == ["torch", None], "and not of the peer's"
