"""Host time of layers on a GPU, without a GPU: `python docs/benchmarks/launches.py`.

Layers run on CPU tensors by their Triton kernels, compiled for sm_90, whose launches do nothing. It prints the least
host time of a forward call without gradients, and of a launch of its first kernel in three ways: `kernel[grid](...)` of
Triton, `compiled[grid](...)` with a kernel that is looked up by what Triton compiles others for, and the same with a
kernel that is known. The driver's own time is not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from triton.compiler.compiler import CompiledKernel

from eqlayers.bench.config import read_settings
from eqlayers.bench.overhead import FIELDS, Pair
from eqlayers.bench.products.problems import GraphSpec
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run import aot, compiling, forms, formula_run

NAMES = ("TensorProduct", "SO3Scale", "GatedNonlinearity", "FullyConnectedTensorProduct")


def no_driver(kernel: Any) -> None:
    """Give a compiled kernel a launch that does nothing."""
    kernel.module, kernel.function, kernel._run = 1, 0, lambda *_: None


def least(call: Callable[[], object], number: int) -> float:
    """The least microseconds of a call, of 20 means."""
    times = []
    for _ in range(20):
        began = time.thread_time()
        for _ in range(number):
            call()
        times.append((time.thread_time() - began) / number)
    return 1e6 * min(times)


def seen_by_triton(argument: Any) -> Any:
    """Triton compiles one kernel for each value: alignment of a tensor; of a number, whether it is 1, 16 n, or long."""
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr() & 15 == 0
    return argument == 1, argument & 15 == 0, argument >> 31


def ways_of(
    kernel: Any, grid: tuple[int], arguments: tuple[Any, ...], options: dict[str, Any]
) -> list[Callable[[], object]]:
    """A launch by Triton, by a compiled kernel that is looked up, and by one that is known."""
    compiled, whole = kernel[grid](*arguments, **options), (*grid, 1, 1)
    rest = [options[name] for name in kernel.arg_names[len(arguments) :]]
    known = {tuple(map(seen_by_triton, arguments)): compiled}
    return [
        lambda: kernel[grid](*arguments, **options),
        lambda: known[tuple(map(seen_by_triton, arguments))][whole](*arguments, *rest),
        lambda: compiled[whole](*arguments, *rest),
    ]


def main() -> None:
    """Print the table."""
    _, fields = read_settings("gpu-overhead", FIELDS)
    fields["device"] = "cpu"
    launched, calls = compiling.launched, list[Any]()

    def watched(runner: Any, like: torch.Tensor, prepare: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        def prepared() -> tuple[Any, ...]:
            made = prepare()
            calls.extend(made[-1])
            return made

        return launched(runner, like, prepared)

    print("| host time, us | call of the layer | by Triton | looked up | known |\n|---|--:|--:|--:|--:|")
    patches = (
        mock.patch.object(CompiledKernel, "_init_handles", no_driver),
        mock.patch.object(availability, "interpreted", return_value=True),
        mock.patch.object(availability, "why_not", return_value=None),
    )
    with aot.target("sm_90"), patches[0], patches[1], patches[2]:
        for name in NAMES:
            problem = Pair(name, fields, GraphSpec("m", fields["nodes"], fields["edges"], "complete"), torch.float32)
            layer = problem.row.ours(layout=fields["layout"], backend="triton").to(torch.float32)
            inputs = problem.arguments(True, False)
            with mock.patch.object(forms, "launched", watched), mock.patch.object(formula_run, "launched", watched):
                layer(*inputs)
            whole = least(lambda layer=layer, inputs=inputs: layer(*inputs), 100)
            ways = ways_of(*calls[0])
            calls.clear()
            print(f"| {name} | {whole:.0f} | {' | '.join(f'{least(way, 1000):.1f}' for way in ways)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
