"""Every kernel compiles for NVIDIA and AMD GPUs without one, within its budget, and recompiles for no new size.

With the installed Triton, and with the oldest and the newest that are supported, each from a folder of its own.
"""

import itertools
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("triton", minversion="3.6")

from eqlayers_kernels.forms.program import LAYOUTS
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import aot, segment
from tests.covering import covering
from tests.kernels.layer_kinds import KINDS, OPERATIONS, QUICK

ROOT = Path(__file__).resolve().parents[4]
#: Name -> what pip installs into the folder of a release; `nox -s releases` does it.
RELEASES = {path.stem.rpartition("-")[2]: path for path in sorted(ROOT.glob(".ci/constraints/triton-*.txt"))}
OTHERS = [pytest.param(release, marks=pytest.mark.releases) for release in RELEASES]
SCRIPT = Path(__file__).with_name("compile_cases.py")
DTYPES = ("float32", "float64", "bfloat16", "float16")
TERMS = ("forward", "all", "nothing")
BATCHED = ((True, True, True), (True, False, True), (False, True, False), (True, True, False), (False, False, True))
WIDTHS = ((64, 64), (5, 3), (128, 32))


def folder(release: str) -> Path:
    return Path(sys.prefix, "triton", release)


# the two others compile these in `nox -s releases`, the installed one kernels of layers in `nox -s long`
@pytest.fixture(params=[pytest.param("installed", marks=pytest.mark.slow), *OTHERS])
def release(request) -> str:
    if request.param in RELEASES and not (folder(request.param) / ".installed").exists():
        pytest.skip(f"needs Triton {request.param} in {folder(request.param)}: run `nox -s releases`")
    return request.param


def run(words: list[str], release: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess:
    """Python in a process of its own, with a release of Triton in place of the installed one."""
    first = [str(folder(release))] if release in RELEASES else []
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join([*first, *sys.path])}
    command = [sys.executable, *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


def ask(tmp_path: Path, release: str = "installed", script: Path = SCRIPT, **request) -> dict:
    away = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = run([str(script)], release, json.dumps(request), **away)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    pins = {name: re.search(r"^triton==(.*)$", path.read_text(), re.MULTILINE)[1] for name, path in RELEASES.items()}
    assert answer["triton"] == {"installed": version("triton"), **pins}[release]
    return answer


def over(case: dict, used: dict) -> list:
    """In what the kernels of a case exceed the tuning table; what they use is a list over kernels."""
    granted = tuning.processor(*aot.TARGETS[case["target"]][:2])
    limits = {"spill_bytes": 0, "registers": granted.most_registers, "shared_bytes": granted.shared_bytes}
    assert min(used["registers"]) > 0
    return [(case, what, used[what], limit) for what, limit in limits.items() if max(used[what]) > limit]


#: Each two of these, among them every op on every target; scales have one pattern of batch axes.
CASES = covering(
    {
        "op": list(segment.LETTERS), "target": list(aot.TARGETS), "dtype": list(DTYPES), "batched": list(BATCHED),
        "terms": list(TERMS), "width": list(WIDTHS),
    },
    lambda case: case.get("op") != "scale" or case.get("batched", BATCHED[0]) == BATCHED[0],
)  # fmt: skip


def full() -> list[dict]:
    """Every combination but float16 and the widths, which take turns: 700 kernels, some minutes."""
    names = ("target", "op", "dtype", "batched", "terms")
    everything = itertools.product(aot.TARGETS, segment.LETTERS, DTYPES[:3], BATCHED, TERMS)
    cases = [dict(zip(names, case, strict=True)) for case in everything]
    cases = [case for case in cases if case["op"] != "scale" or case["batched"] == (True, True, True)]
    return [{**case, "width": WIDTHS[number % 3]} for number, case in enumerate(cases)]


def check(cases: list[dict], tmp_path: Path, release: str) -> None:
    found = zip(cases, ask(tmp_path, release, cases=cases)["compiled"], strict=True)
    assert [excess for case, used in found for excess in over(case, {key: [n] for key, n in used.items()})] == []


@pytest.mark.slow
def test_every_op_compiles_within_its_budget(tmp_path, release):
    check(CASES, tmp_path, release)


@pytest.mark.slow
def test_every_combination_compiles_within_its_budget(tmp_path, release):
    check(full(), tmp_path, release)


#: One block of channels that is not full, and several.
SMALL = ("5x0e + 70x1o", "1o", "0e + 1o")


def printed() -> list[dict]:
    """Each target and operation, in all directions; dtypes and layouts take turns."""
    cases = []
    for number, (target, operation) in enumerate(itertools.product(aot.TARGETS, OPERATIONS)):
        turns = {"dtype": DTYPES[(number + number // 3) % 3], "layout": LAYOUTS[number // 2 % 2]}
        cases.append({"irreps": SMALL, "target": target, "operation": operation, **turns})
    return cases


def all_printed() -> list[dict]:
    """Every combination, with more paths."""
    larger = ("40x0e + 70x1o", "0e + 1o", "0e + 1o")
    names = ("target", "operation", "dtype", "layout")
    everything = itertools.product(aot.TARGETS, OPERATIONS, DTYPES[:3], LAYOUTS)
    return [{"irreps": larger, **dict(zip(names, case, strict=True))} for case in everything]


def check_printed(cases: list[dict], tmp_path: Path, release: str) -> None:
    found = ask(tmp_path, release, printed=cases)["printed"]
    assert [[row["direction"] for row in rows] for rows in found] == [["fwd", "bwd", "double_bwd"]] * len(cases)
    pairs = [
        (case | {"direction": row["direction"]}, row) for case, rows in zip(cases, found, strict=True) for row in rows
    ]
    assert [excess for case, row in pairs for excess in over(case, row)] == []


def test_printed_kernels_compile_within_their_budget(tmp_path, release):
    cases = printed()[["installed", *RELEASES].index(release) % 2 :: 2]  # two releases have all of them
    for name, values in (
        ("operation", OPERATIONS),
        ("dtype", DTYPES[:3]),
        ("layout", LAYOUTS),
        ("target", aot.TARGETS),
    ):
        assert {c[name] for c in cases} == set(values)
    check_printed(cases, tmp_path, release)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_printed_kernels_of_every_kind_compile_within_their_budget(tmp_path, release):
    check_printed(all_printed(), tmp_path, release)


@pytest.mark.parametrize("release", OTHERS, indirect=True)
def test_other_releases_interpret_products_and_convolutions(release):
    """Their own tests, once more; the installed release runs them anyway."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # NumPy's word for the index that a loop over loaded bounds begins at, in the interpreter of Triton 3.6
    words += ["-W", "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"]
    words += ["tests/core/backends/triton/test_forms.py", "-k", "product or convolution"]
    done = run(words, release, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 3


@pytest.mark.long
def test_no_size_and_no_row_stride_is_compiled_in(tmp_path):
    """The just-in-time path: new batches, rows, widths within a block, paddings and pointers reuse the kernel."""
    changes = [
        *({"batch": n} for n in (1, 2, 7, 16, 1000, 4096)),
        *({"rows": m} for m in (1, 2, 16, 33)),
        *({"pad": p} for p in (1, 16)),
        {"shift": 1},  # operands that are not aligned to 16 bytes
        {"width": (60, 50)},
    ]
    base = {"dtype": "float32", "terms": "forward"}
    same = [
        {"target": target, "case": {**base, "op": op, "batched": batched}, "changes": changes}
        for target in ("sm_90", "gfx942")
        for op, batched in (
            ("mul", (True, True, True)),
            ("vecmat", (True, False, True)),
            ("outer", (True, True, False)),
        )
    ]
    # an operand whose channels are not adjacent has a kernel of its own, so the counter can count
    same.append({**same[0], "changes": [{"channels_last": False}]})
    assert ask(tmp_path, same=same)["kernels"] == [1, 1, 1, 1, 1, 1, 2]


@pytest.mark.long
def test_no_size_of_a_graph_is_compiled_into_printed_kernels(tmp_path):
    sizes = [(1, 1, 1), (2, 16, 1), (16, 7, 7), (420, 21, 21), (4096, 1000, 33)]
    forms = [
        {"target": target, "task": task, "sizes": sizes}
        for target in ("sm_90", "gfx942")
        for task in ((0, ["z"]), (1, ["x", "y", "w"]))
    ]
    assert ask(tmp_path, forms=forms)["forms"] == [1, 1, 1, 1]


@pytest.mark.long
def test_kernels_that_sort_a_graph_are_compiled_once_for_all_sizes(tmp_path):
    sizes = [(1, 1, 1), (2, 16, 1), (16, 7, 7), (421, 21, 21), (4096, 1000, 33), (4097, 1024, 512)]
    cases = [{"target": target, "sizes": sizes} for target in aot.TARGETS]
    for case, kernels in zip(cases, ask(tmp_path, sorting=cases)["sorting"], strict=True):
        assert [name for name, _ in kernels] == ["write_keys", "count_parts", "write_tables"]
        assert [over(case, {key: [n] for key, n in used.items()}) for _, used in kernels] == [[]] * 3


@pytest.mark.skipif(not availability.interpreted(), reason="the interpreter is off")
def test_an_interpreting_process_says_where_to_compile():
    with pytest.raises(RuntimeError, match="Compile in a subprocess"), aot.target("sm_90"):
        pass


def test_unknown_targets():
    wanted = "target must be one of sm_80, sm_90, sm_100, gfx942, got 'sm_1'"
    with pytest.raises(ValueError, match=wanted), aot.target("sm_1"):
        pass


#: All that is asked of a convolution with weights from a table, in two orders.
TABLED = (
    (0, ("z",), ()), (1, ("x", "y", "c"), ()), (1, ("t",), ()), (2, ("x", "y", "c", "z"), ("x", "y", "c")),
    (2, ("t",), ("x", "y", "c")),
)  # fmt: skip


@pytest.mark.parametrize("target", ["sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
@pytest.mark.long
def test_kernels_that_read_tables_compile_within_their_budget(tmp_path, target):
    cases = [{"target": target, "task": task} for task in TABLED]
    found = ask(tmp_path, tables=cases)["tables"]
    assert len(found) == len(cases)
    for case, kernels in zip(cases, found, strict=True):
        assert kernels
        for used in kernels:
            assert over(case, {key: [n] for key, n in used.items()}) == []


def check_layers(cases: list[dict], tmp_path: Path, release: str = "installed") -> None:
    found = ask(tmp_path, release, layers=cases)["layers"]
    assert all(found)
    pairs = [(case, used) for case, kernels in zip(cases, found, strict=True) for used in kernels]
    assert [excess for case, used in pairs for excess in over(case, {key: [n] for key, n in used.items()})] == []


@pytest.mark.long
def test_kernels_of_layers_compile_within_their_budget(tmp_path):
    """Processors and dtypes take turns."""
    turns = itertools.cycle(itertools.product(("sm_80", "gfx942", "sm_90", "sm_100"), ("float32", "float64")))
    cases = [
        {"name": name, "target": target, "dtype": dtype} for name, (target, dtype) in zip(QUICK, turns, strict=False)
    ]
    check_layers(cases, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", aot.TARGETS)
def test_kernels_of_all_layers_compile_within_their_budget(tmp_path, release, target):
    cases = [{"name": name, "target": target, "dtype": dtype} for name in KINDS for dtype in ("float32", "float64")]
    check_layers(cases, tmp_path, release)


# -- formulas ---------------------------------------------------------------------------------------------------------

FORMULAS = SCRIPT.with_name("compile_formulas.py")


def check_budgets(tmp_path: Path, cases: list[dict[str, str]]) -> None:
    found = zip(cases, ask(tmp_path, script=FORMULAS, cases=cases)["compiled"], strict=True)
    assert [excess for case, used in found for excess in over(case, used)] == []


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["harmonics", "geometry"])
def test_small_formulas_compile_within_their_budget(tmp_path: Path, sample: str) -> None:
    orders, dtypes = ("values", "gradients", "second gradients"), ("float32", "float64", "bfloat16")
    names = ("target", "order", "dtype")
    cases = [
        {"sample": sample, **dict(zip(names, (target, order, dtypes[(i + j) % 3]), strict=True))}
        for i, target in enumerate(aot.TARGETS)
        for j, order in enumerate(orders)
    ]
    check_budgets(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.long
def test_a_contraction_compiles_within_its_budget(tmp_path: Path) -> None:
    cases = [
        {"sample": "contraction", "order": "values", "dtype": "float32", "target": target} for target in aot.TARGETS
    ]
    check_budgets(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [pytest.param(target, marks=[] if target == "sm_90" else [pytest.mark.slow]) for target in aot.TARGETS]
)
@pytest.mark.parametrize("order", ["gradients", pytest.param("second gradients", marks=pytest.mark.slow)])
def test_derivatives_of_a_contraction_compile_within_their_budget(tmp_path: Path, target: str, order: str) -> None:
    check_budgets(tmp_path, [{"sample": "contraction", "order": order, "dtype": "float32", "target": target}])


@pytest.mark.slow
def test_no_size_of_a_batch_is_compiled_in(tmp_path: Path) -> None:
    sizes = [(1, 1, 1), (2, 16, 1), (16, 7, 7), (420, 21, 21), (4096, 1000, 33)]
    cases = [
        {"sample": sample, "order": "gradients", "target": target, "sizes": sizes}
        for target in ("sm_90", "gfx942")
        for sample in ("geometry", "small")
    ]
    for found in ask(tmp_path, script=FORMULAS, same=cases)["same"]:
        assert set(found) == {1}
