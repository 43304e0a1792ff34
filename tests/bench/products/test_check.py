"""The check before every timing: what is right passes in every direction, and every fault is found."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eqlayers.bench.cases import NO_DOUBLE, Refusal
from eqlayers.bench.products.check import PART, check, counts, excess, magnitude
from eqlayers.bench.products.implementation import Implementation, gathered, ours
from eqlayers.bench.products.operands import DIRECTIONS, Operands, prepare
from eqlayers.bench.products.peers import PEERS, build_peer
from eqlayers.bench.products.problems import Problem
from eqlayers.bench.products.suite import Case
from tests.bench.products.test_products import EVERY, SMALL, made

CPU = torch.device("cpu")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("operation", ["product", "conv"])
@pytest.mark.parametrize("problem", EVERY, ids=lambda problem: problem.name)
def test_right_implementations_pass(problem: Problem, operation: str, dtype: torch.dtype) -> None:
    case, operands = made(problem, operation, dtype)
    items = [build_peer("e3nn", case, operands), *(ours(case, operands, layout) for layout in ("mul_ir", "ir_mul"))]
    verdicts = check(problem, operands, items, DIRECTIONS)
    assert len(verdicts) == len(items) * len(DIRECTIONS)
    assert {verdict.status for verdict in verdicts.values()} == {"ok"}
    if dtype == torch.float32:
        assert all(v.error > 1e-3 for v in verdicts.values()), "a bound far above the error finds nothing"


@pytest.mark.parametrize("operation", ["product", "conv"])
@pytest.mark.parametrize("fault", ["one sign", "a thousandth", "not finite", "another shape", "rows exchanged"])
def test_faults_of_the_value_are_found(
    fault: str, operation: str, faulty: Callable[[str, Case, Operands], Implementation]
) -> None:
    case, operands = made(operation=operation)
    verdict = check(SMALL, operands, [faulty(fault, case, operands)], ("fwd",))[0, "fwd"]
    assert verdict.status == "wrong"
    assert "the error of z is" in verdict.reason


def test_a_wrong_gradient_is_found_where_the_value_is_right(
    faulty: Callable[[str, Case, Operands], Implementation],
) -> None:
    case, operands = made()
    verdicts = check(SMALL, operands, [faulty("gradient only", case, operands)], DIRECTIONS)
    assert [verdicts[0, direction].status for direction in DIRECTIONS] == ["ok", "wrong", "wrong"]


def test_a_gradient_that_is_missing_fails_and_says_why() -> None:
    case, operands = made()
    right = build_peer("e3nn", case, operands)
    item = replace(right, fn=lambda x, y, w: right.fn(x, y.detach(), w))
    verdicts = check(SMALL, operands, [item], ("fwd", "bwd"))
    assert verdicts[0, "fwd"].status == "ok"
    assert verdicts[0, "bwd"].status == "failed"
    assert "RuntimeError" in verdicts[0, "bwd"].reason


def test_exchanged_senders_and_receivers_are_found() -> None:
    case, operands = made(operation="conv")
    right = build_peer("e3nn", case, operands)
    assert operands.edge_index is not None
    turned = build_peer("e3nn", case, replace(operands, edge_index=operands.edge_index.flip(0)))
    verdicts = check(SMALL, operands, [right, turned], ("fwd", "bwd"))
    assert [verdicts[n, d].status for n in (0, 1) for d in ("fwd", "bwd")] == ["ok", "ok", "wrong", "wrong"]


@pytest.mark.parametrize("operation", ["product", "conv"])
@pytest.mark.parametrize("problem", EVERY, ids=lambda problem: problem.name)
def test_the_reference_may_be_computed_in_parts(
    problem: Problem, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, operands = made(problem, operation)
    whole = check(problem, operands, [build_peer("e3nn", case, operands)], DIRECTIONS)
    monkeypatch.setitem(PART, "cpu", 7 * max(problem.irreps_out.dim, problem.weight_numel))
    starts, part = [], Operands.part
    monkeypatch.setattr(Operands, "part", lambda self, start, stop: starts.append(start) or part(self, start, stop))
    parts = check(problem, operands, [build_peer("e3nn", case, operands)], DIRECTIONS)
    assert starts == [0, 7, 14, 21] * len(DIRECTIONS)
    for key, verdict in whole.items():
        assert parts[key].status == "ok"
        assert parts[key].error == pytest.approx(verdict.error, rel=1e-3)


def test_counts_are_the_terms_of_the_widest_row() -> None:
    """By hand: 4x0e with 0e+1o, weights per edge; every output channel has one term, gy sums four channels."""
    problem = Problem("scalar", "uvu", "4x0e", "0e+1o", "0e+1o")
    _, operands = made(problem, "conv")
    assert operands.edge_index is not None
    out_degree, in_degree = (int(torch.bincount(index).max()) for index in operands.edge_index)
    largest = {name: int(value.max()) for name, value in counts(problem, operands).items()}
    assert largest["z"] == in_degree
    assert (largest["gx"], largest["gy"], largest["gw"]) == (4 * out_degree, 4, 3)


def test_magnitudes_bound_the_results() -> None:
    for problem in EVERY:
        case, operands = made(problem, dtype=torch.float64)
        positive = {name: value.abs() for name, value in operands.values.items()}
        right = build_peer("e3nn", case, operands)
        size = gathered(magnitude(problem, CPU), operands)
        for direction in DIRECTIONS:
            values = prepare(right.fn, operands.values, direction)()
            for value, bound in zip(values, prepare(size, positive, direction)(), strict=True):
                assert bool((value.abs() <= bound * (1 + 1e-12)).all())
                assert bool((value.abs() > bound * 0.01).any())


def test_the_bound_grows_with_the_root_of_many_terms() -> None:
    one = torch.ones(1, dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    for terms, roundings in ((1, 13), (50, 62), (10_000, 1012), (1_000_000, 10_012)):
        error = excess(one + eps, one, one, terms * one, torch.float32)
        assert error == pytest.approx(1 / roundings, rel=1e-6)


def test_peers_that_cannot_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    case, operands = made()
    compiled = Implementation("e3nn-compiled", "mul_ir", lambda *t: t[0], {}, cannot={"double_bwd": NO_DOUBLE})
    assert check(SMALL, operands, [compiled], ("double_bwd",))[0, "double_bwd"].reason == NO_DOUBLE
    monkeypatch.setitem(PEERS, "absent", replace(PEERS["e3nn"], packages=("no_such_package",)))
    with pytest.raises(Refusal, match="no_such_package is not installed"):
        build_peer("absent", case, operands)
