"""Texts of kernels of formulas have their arguments in the order of a launch, and loads in short runs."""

import ast
import re
from types import SimpleNamespace

import numpy as np
import pytest

from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.print.formula import NEAR, FormulaText, _tanh
from eqlayers_kernels.triton.print.formula_plan import plan
from tests.each import each
from tests.formulas import cubic, edges_of_points, functions

ON = tuning.PROCESSORS["cuda"]
SAMPLES = {
    "cubic": cubic(5), "one": cubic(40, rows="one"), "edges": edges_of_points(), "functions": functions(3),
    "functions of rows": functions(0),
}  # fmt: skip


def texts(name: str) -> list[FormulaText]:
    """Kernels of values and gradients."""
    base = SAMPLES[name]
    gradient = base.vjp([True] * len(base.results), [True] * len(base.operands))
    return [kernel.text for form in (base, gradient) for kernel in plan(form, False, ON)]


@each("name", SAMPLES)
def test_arguments_are_operands_results_rooms_tables_and_sizes(name: str) -> None:
    for text in texts(name):
        (function,) = (node for node in ast.parse(text.source).body if isinstance(node, ast.FunctionDef))
        assert function.name == text.name
        arguments = [one.arg for one in function.args.args]
        pointers = [f"in{n}" for n in text.operands] + [f"out{n}" for n in text.results]
        pointers += [f"room{n}" for n in text.workspaces] + list(text.tables)
        assert arguments == [*pointers, "segments", "rows", "count", "chunk", "never", "ACC", "BLOCK"]
        used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        assert {"ACC", *(p for p in pointers if p != "nodes")} <= used, "a pointer that nothing is read from"
        assert bool(text.workspaces) == (text.traversal in ("by_src", "by_dst"))
        ends = {text.base.operands[n].rows for n in text.operands} & {"src", "dst"}
        if text.traversal in ("rows", "lanes"):
            assert set(text.tables) == {{"src": "senders", "dst": "receivers"}[end] for end in ends}
        assert ("mask=inside" in text.source) == (text.masked or text.traversal == "lanes")


@each("run", [3, 16])
def test_loads_come_in_short_runs_between_branches(run: int) -> None:
    """A branch that is never taken keeps compilers from loading all operands at once; sums are begun in it anew."""
    branches = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "FORMULA_RUN", run)
        sources = [(text, text.source) for text in texts("cubic")]
    for text, source in sources:
        first, *parts = source.split("if row < never:")
        branches += len(parts)
        loop = first.rpartition("for step in")[2] if text.stay else first
        assert all(part.count(".to(ACC)") <= run for part in (loop, *parts))
        for number, part in enumerate(parts, start=1):
            store, *lines = (line.strip() for line in part.strip().splitlines())
            assert store == f"tl.store(out{text.results[0]}, 0.0)"
            begun = [line.partition(" = ")[0] for line in lines if line.endswith("= tl.zeros((BLOCK,), ACC)")]
            later = " ".join([*lines[len(begun) :], *parts[number:]])
            assert len(set(begun)) == len(begun)
            assert all(re.search(rf"\b{name}\b", later) for name in begun), "a sum that is not wanted any more"
    assert branches > 2


def test_the_hyperbolic_tangent_has_all_digits_near_zero() -> None:
    """The lines of the kernel, in NumPy."""
    tl = SimpleNamespace(where=np.where, sigmoid=lambda x: 1 / (1 + np.exp(-x)))
    x = np.concatenate([np.geomspace(1e-12, 20, 500), [NEAR, np.nextafter(NEAR, 0), 0.0]])
    x = np.concatenate([x, -x])
    names = {"tl": tl, "x": x}
    for line in _tanh("v", "x"):
        name, _, text = line.partition(" = ")
        names[name] = eval(text, {}, names)
    np.testing.assert_allclose(names["v"], np.tanh(x), rtol=2e-15, atol=0)
