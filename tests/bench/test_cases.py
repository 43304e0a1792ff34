"""Names of cases, reasons of refusals and timed rows, which suites of products and suites of layers share."""

import pytest

from eqlayers.bench.cases import Refusal, Suite, Verdict, case_name, empty_row, peak_of, short, why_refused
from eqlayers.bench.layers.run import LayerCase
from eqlayers.errors import ConfigError


def test_a_case_is_named_by_its_group_problem_and_size() -> None:
    assert case_name("fused", "mace", "E30", "float32") == "fused/mace/E30"
    assert case_name("fused", "mace", "E30", "float64") == "fused/mace/E30/float64"


def test_errors_of_peers_are_reasons_and_those_of_this_package_are_raised() -> None:
    assert why_refused("e3nn", Refusal("it runs\n on GPUs only")) == "it runs on GPUs only"
    assert why_refused("eqlayers", ConfigError("backend must be torch")) == "backend must be torch"
    assert why_refused("e3nn", ValueError("of theirs")) == short(ValueError("of theirs")) == "ValueError: of theirs"
    with pytest.raises(ValueError, match="of ours"):
        why_refused("eqlayers", ValueError("of ours"))


def test_a_suite_counts_its_steps_and_selects_cases() -> None:
    cases = (LayerCase("a", "Linear", 4), LayerCase("b", "Linear", 4, directions=("fwd",)))
    suite = Suite("s", "cpu", 1, 2, (), cases, "layers")
    assert suite.steps == 1 + (1 + 2 * 3) + (1 + 2)
    assert [case.group for case in suite.only("b/*").cases] == ["b"]


def test_rows_without_times() -> None:
    row = empty_row("e3nn", "mul_ir", "fwd", Verdict("refused", None, "absent"), "eager")
    assert (row["status"], row["reason"], row["seconds"], row["memory_bytes"]) == ("refused", "absent", None, None)
    head = {"peak_rate": {"float32": {"median": 2e9}, "float64": None}, "machine": {"threads": 3}}
    assert (peak_of(head, "float32"), peak_of(head, "float64"), peak_of(head, "float16")) == (6e9, None, None)
