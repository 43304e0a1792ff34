"""Every kernel compiles for NVIDIA and AMD GPUs without one, spills no registers, and recompiles for no new size."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from eqlayers_kernels.triton import aot, availability, launch

SCRIPT = Path(__file__).with_name("compile_cases.py")
DTYPES = ("float32", "float64", "bfloat16", "float16")
TERMS = ("forward", "all", "nothing")
BATCHED = ((True, True, True), (True, False, True), (False, True, False), (True, True, False), (False, False, True))
WIDTHS = ((64, 64), (5, 3), (128, 32))


def ask(tmp_path: Path, **request) -> dict:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def covering() -> list[dict]:
    """Each op, dtype and target in every combination (bar float16, once per op); the rest takes turns."""
    cases = []
    for number, (op, dtype, target) in enumerate(itertools.product(launch.LETTERS, DTYPES, aot.TARGETS)):
        if dtype == "float16" and target != "sm_80":
            continue
        # three steps that are coprime to the lengths, so that every pattern meets every op
        batched = (True, True, True) if op == "scale" else BATCHED[number % 5]
        turns = {"terms": TERMS[(number // 2) % 3], "width": WIDTHS[(number // 4) % 3]}
        cases.append({"target": target, "op": op, "dtype": dtype, "batched": batched, **turns})
    return cases


def full() -> list[dict]:
    """Every combination but float16 and the widths, which take turns: 700 kernels, some minutes."""
    names = ("target", "op", "dtype", "batched", "terms")
    everything = itertools.product(aot.TARGETS, launch.LETTERS, DTYPES[:3], BATCHED, TERMS)
    cases = [dict(zip(names, case, strict=True)) for case in everything]
    cases = [case for case in cases if case["op"] != "scale" or case["batched"] == (True, True, True)]
    return [{**case, "width": WIDTHS[number % 3]} for number, case in enumerate(cases)]


def check(cases: list[dict], tmp_path: Path) -> None:
    results = ask(tmp_path, cases=cases)["compiled"]
    assert len(results) == len(cases)
    spilled = [(case, used) for case, used in zip(cases, results, strict=True) if used["spill_bytes"]]
    assert spilled == []
    assert all(0 < used["registers"] <= 160 for used in results)
    assert all(used["shared_bytes"] <= 16 * 1024 for used in results)


def test_every_op_compiles_without_spills(tmp_path):
    cases = covering()
    assert {(c["op"], c["dtype"], c["target"]) for c in cases} >= set(
        itertools.product(launch.LETTERS, DTYPES[:3], aot.TARGETS)
    )
    assert {c["terms"] for c in cases} == set(TERMS)
    assert {tuple(c["batched"]) for c in cases} == set(BATCHED)
    check(cases, tmp_path)


@pytest.mark.slow
def test_every_combination_compiles_without_spills(tmp_path):
    check(full(), tmp_path)


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


def test_no_size_of_a_graph_is_compiled_into_printed_kernels(tmp_path):
    sizes = [(1, 1, 1), (2, 16, 1), (16, 7, 7), (420, 21, 21), (4096, 1000, 33)]
    forms = [
        {"target": target, "kind": kind, "sizes": sizes}
        for target in ("sm_90", "gfx942")
        for kind in ((0, ["z"]), (1, ["x", "y", "w"]))
    ]
    assert ask(tmp_path, forms=forms)["forms"] == [1, 1, 1, 1]


@pytest.mark.skipif(not availability.interpreted(), reason="the interpreter is off")
def test_an_interpreting_process_says_where_to_compile():
    with pytest.raises(RuntimeError, match="Compile in a subprocess"), aot.target("sm_90"):
        pass


def test_unknown_targets():
    wanted = "target must be one of sm_80, sm_90, sm_100, gfx942, got 'sm_1'"
    with pytest.raises(ValueError, match=wanted), aot.target("sm_1"):
        pass
