"""Scripts of a card: its limits by small kernels, and the constants of the tuning table, one at a time.

    eqlayers bench first-gpu --stages bandwidth,sweep       (in a source checkout; --dry without a GPU)

Small kernels measure bandwidth of the cache, multiply-adds, launches and matrix products.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from eqlayers.bench.measure import alternate, copy_bandwidth, summary
from eqlayers.bench.results import Record
from eqlayers.bench.stages import DIRECTIONS, PROBLEMS, RUNS, Keep, main, output_of, time_requests
from eqlayers_kernels.triton.run.compiling import KernelCall, compile_calls
from eqlayers_kernels.triton.run.forms import function

#: Numbers of one program, and programs for each multiprocessor.
BLOCK, PROGRAMS = 1024, 16
READS, MULTIPLIES, LAUNCHES = 200, 4000, 1000
#: Of the array that is read again and again.
CACHE_MIB = (8, 16, 24, 40)
#: Multiply-adds of a number in one step of the loop.
CHAINS = 4
SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def reads(x, out, size, times, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(times):
        total += tl.load(x + (at + step * BLOCK * 7919) % size + lanes)
    tl.store(out + at + lanes, total)


@triton.jit
def multiplies(x, out, size, times, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    a = lanes.to(tl.float32)
    b = a + 1
    c = a + 2
    d = a + 3
    for _ in range(times):
        a = a * 0.999 + 0.5
        b = b * 0.999 + 0.5
        c = c * 0.999 + 0.5
        d = d * 0.999 + 0.5
    tl.store(out + tl.program_id(0) * BLOCK + lanes, a + b + c + d)


@triton.jit
def nothing(x, out, size, times, BLOCK: tl.constexpr):
    pass
"""


def _call(name: str, x: torch.Tensor, out: torch.Tensor, size: int, times: int, programs: int) -> KernelCall:
    meta = {"BLOCK": BLOCK, "num_warps": 4, "enable_fp_fusion": True}
    return KernelCall(function(SOURCE, name), (programs,), (x, out, size, times), meta)


def compiled() -> Iterator[tuple[str, Any]]:
    """The kernels, compiled for sm_90: what there is to see without a GPU."""
    from eqlayers_kernels.triton.run import aot

    x = torch.empty(BLOCK)
    with aot.target("sm_90"):
        for name in ("reads", "multiplies", "nothing"):
            (kernel,) = compile_calls([_call(name, x, x, BLOCK, 10, 1)], jobs=1)
            yield f"{name}_registers", aot.resources(kernel).registers


def measured(runs: int) -> Iterator[tuple[str, Any]]:
    """Name and value of each, per second; the launch in microseconds of the host, products in milliseconds."""
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    programs = facts.multi_processor_count * PROGRAMS
    big = torch.ones(2**28, device="cuda")
    out = torch.empty(programs * BLOCK, device="cuda")

    def rate(work: float, call: Callable[[], Any]) -> dict[str, float]:
        (seconds,) = alternate([call], runs, "cuda")
        return summary([work / one for one in seconds])

    def launched(call: KernelCall) -> Callable[[], Any]:
        return lambda: call.kernel[call.grid](*call.args, **call.meta)

    yield "multiprocessors", facts.multi_processor_count
    yield "read_bandwidth", rate(4 * big.numel(), big.sum)
    for mebibytes in CACHE_MIB:
        call = _call("reads", big, out, mebibytes * 2**18, READS, programs)
        yield f"cache_bandwidth_{mebibytes}_MiB", rate(4.0 * programs * BLOCK * READS, launched(call))
    call = _call("multiplies", big, out, 0, MULTIPLIES, programs)
    yield "peak_rate_float32", rate(2.0 * CHAINS * programs * BLOCK * MULTIPLIES, launched(call))
    empty = launched(_call("nothing", big, out, 0, 0, 1))
    empty()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        empty()
    yield "launch_us", (time.perf_counter() - start) * 1e6 / LAUNCHES
    torch.cuda.synchronize()
    a, b = torch.randn(160_000, 64, device="cuda"), torch.randn(64, 2176, device="cuda")
    (seconds,) = alternate([lambda: a @ b], runs, "cuda")
    yield "radial_product_ms", summary([1000 * one for one in seconds])


def bandwidth(dry: bool, keep: Keep) -> None:
    """The numbers of the card that bounds assume; of the CPU's memory where nothing is launched."""
    facts: Record = {"copy_bandwidth": copy_bandwidth("cpu" if dry else "cuda", 3 if dry else RUNS)}
    keep(facts)
    for name, value in compiled() if dry else measured(RUNS):
        facts[name] = value
        keep(facts)
    if not dry:
        facts["clocks"] = output_of(
            "nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw", "--format=csv,noheader"
        )
        keep(facts)


def sweep(dry: bool, keep: Keep) -> None:
    """Times of the constants in the tuning table, varied one at a time, for the largest problem."""
    variants: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("as it is", {}, {})]
    variants += [(f"stages {count}", {"stages": count}, {}) for count in (1, 2, 4)]
    variants += [(f"maxnreg {most}", {"options": {"maxnreg": most}}, {}) for most in (168, 128)]
    variants += [(f"planned with {most}", {"registers": most, "second": most}, {}) for most in (110, 150, 180)]
    variants += [("one channel per thread", {"wide": 0, "registers": 110, "second": 110}, {})]
    variants += [
        ("atomic", {}, {"atomic": True}),
        ("by senders", {}, {"stored": False}),
        ("stored", {}, {"stored": True}),
    ]

    def requests() -> Iterator[tuple[Record, dict[str, Any]]]:
        for name, fields, options in variants[: 2 if dry else None]:
            for direction in [*DIRECTIONS][: 1 if dry else None]:
                if not (options and direction == "fwd"):  # those are about gradients
                    about = {"problem": PROBLEMS[0], "layout": "ir_mul", "direction": direction, "variant": name}
                    yield about, {"fields": fields, **options}

    time_requests(dry, keep, requests(), lambda row: {})


STAGES = {"bandwidth": bandwidth, "sweep": sweep}
if __name__ == "__main__":
    main(json.loads(sys.argv[1]), STAGES)
