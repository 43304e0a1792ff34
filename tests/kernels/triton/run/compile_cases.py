"""Compiles kernels for GPUs that are not there. Run by test_aot.py, in a process without the interpreter.

Reads cases as JSON from standard input and writes one result per case.
"""

import json
import math
import sys
from functools import partial
from unittest import mock

import torch
import triton

from eqlayers import TensorProduct, paths
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.product import Reading
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton import kernels as by_hand
from eqlayers_kernels.triton.kernels import segment_kernel
from eqlayers_kernels.triton.print.tuning import processor
from eqlayers_kernels.triton.run import aot, segment
from eqlayers_kernels.triton.run.edges import _by_kernels, pack, unpack
from eqlayers_kernels.triton.run.forms import FormRunner
from ptx_emulator.compiled import compile_form, compile_product
from ptx_emulator.emulator import Emulator, emulated
from tests.kernels.layer_kinds import KINDS, OPERATIONS, orders


def sample(op, dtype, batched, terms, width=(64, 64), batch=100, rows=9, pad=0, shift=0, channels_last=True):
    """A problem with uninitialised operands: nothing will run."""
    dtype, widths = getattr(torch, dtype), dict(zip("uv", width, strict=True))

    def operand(own, letters):
        shape = [*([batch] if own else []), rows, *(widths[c] for c in letters)]
        padded = [*shape[:-1], shape[-1] + pad]
        buffer = torch.empty(math.prod(padded) + shift, dtype=dtype)[shift:].view(padded)[..., : shape[-1]]
        return buffer if channels_last else buffer.mT.contiguous().mT

    index, segments = torch.zeros(20, dtype=torch.int64), torch.zeros(rows + 1, dtype=torch.int64)
    scale = torch.zeros(20, dtype=segment.accumulator(dtype))
    fields = {
        "all": segment.Terms(scale, index, index, segments, index, segments[:-1]),
        "forward": segment.Terms(scale, index, index, segments),
        "nothing": segment.Terms(),
    }[terms]
    problem = segment.Problem(op, rows, rows + (terms == "all"), batch, tuple(batched))
    y = None if op == "scale" else operand(batched[1], segment.LETTERS[op][0])
    return problem, operand(batched[0], "u"), y, fields


def compiled(target, **case):
    with aot.target(target):
        kernel = compile_product(*sample(**case))
    return vars(aot.resources(kernel))


def same_kernel(target, case, changes):
    """Into how many kernels the case and its changes compile."""
    kernels = []
    with aot.target(target):
        for change in ({}, *changes):
            kernels.append(compile_product(*sample(**{**case, **change})))
    return len({id(kernel) for kernel in kernels})


def same_form(target, task, sizes):
    """Into how many kernels one printed kernel compiles for graphs of several sizes, (edges, senders, receivers)."""
    slots = Slot(0, 40, 3), Slot(0, 1, 3), Slot(0, 40, 1)
    path = Path(*slots, 0, (Axis(40, x=1, w=1, z=1),), tuple((i, i, 0, 0.5) for i in range(3)))
    program, on = Program((path,), (120, 3, 40, 40), "ir_mul"), processor(*aot.TARGETS[target][:2])
    runner = FormRunner(program, Task(*task), torch.float32, True, False, on)
    kernels = set()
    with aot.target(target):
        for edges, senders, receivers in sizes:
            tables = unpack(
                pack(torch.zeros(2, edges, dtype=torch.int64), senders, receivers), edges, senders, receivers
            )
            rows = {"x": senders, "y": edges, "w": edges, "g": receivers}
            widths = {"x": 120, "y": 3, "w": 40, "g": 40}
            tensors = {name: torch.empty(rows[name], widths[name]) for name in rows}
            _, _, (call,) = runner.prepare(tensors, tables)
            kernels.add(id(call.kernel.warmup(*call.args, grid=call.grid, **call.meta)))
    return len(kernels)


def printed(target, irreps, operation, dtype, layout):
    """Rows of the kernels of a channelwise product or convolution, a row for each direction."""
    out, instructions = paths(*irreps)
    options = {"shared_weights": False, "internal_weights": False, "layout": layout}
    program = TensorProduct(*irreps[:2], out, instructions, **options).plan.form.program
    rows = []
    for direction, task in DIRECTIONS.items():
        with aot.target(target):
            options = {"shared": False, "jobs": 1, **OPERATIONS[operation]}
            used = [aot.resources(k) for _, k in compile_form(program, task, getattr(torch, dtype), **options)]
        rows.append({"direction": direction, **{name: [vars(one)[name] for one in used] for name in vars(used[0])}})
    return rows


DIRECTIONS = {
    "fwd": Task(0, ("z",)),
    "bwd": Task(1, ("x", "y", "w")),
    "double_bwd": Task(2, ("x", "y", "w", "z"), ("x", "y", "w")),
}
AXES = (Axis(40, x=1, w=1, z=1),)


def with_table(target, task):
    """Rows of the kernels of one request that reads weights from a table."""
    paths = [
        Path(Slot(0, 40, 3), Slot(0, 1, 3), Slot(0, 40, 1), 0, AXES, tuple((i, i, 0, 0.5) for i in range(3))),
        Path(Slot(0, 40, 3), Slot(0, 1, 3), Slot(40, 40, 3), 40, AXES, ((0, 1, 2, 0.7), (1, 2, 0, -0.7))),
    ]
    program = Program(tuple(paths), (120, 3, 80, 160), "ir_mul")
    asked = Task(*task, ("x", "y", "t", "c"))
    with aot.target(target):
        compiled = compile_form(program, asked, torch.float32, jobs=1, reading=Reading(4, 1))
        return [vars(aot.resources(kernel)) for _, kernel in compiled]


def of_layer(target, name, dtype):
    """Rows of the kernels of a layer's values and two derivatives, which are compiled and not run."""
    task, dtype, kernels = KINDS[name], getattr(torch, dtype), {}

    def launch(self, kernel, compiled, grid, args):
        kernels[id(compiled)] = compiled

    with mock.patch.object(Emulator, "launch", launch), emulated(target):
        on = processor(*aot.TARGETS[target][:2], availability.release())
        with mock.patch.object(availability, "processor_of", return_value=on):
            orders(task.layer("triton", dtype), task.arguments(dtype))
    return [vars(aot.resources(compiled)) for compiled in kernels.values()]


def of_sorting(target, sizes):
    """Rows of the kernels that sort graphs of several sizes, (edges, senders, receivers), in their order."""
    compiled = {}

    def compiling(name):
        kernel = getattr(by_hand, name)

        def compile_(*args, grid, **meta):
            made = kernel.warmup(*args, grid=grid, **meta)
            compiled[name, id(made)] = made

        return mock.MagicMock(__getitem__=lambda _, grid: partial(compile_, grid=grid))

    names = ("write_keys", "count_parts", "write_tables")
    with aot.target(target), mock.patch.multiple(by_hand, **{name: compiling(name) for name in names}):
        for edges, senders, receivers in sizes:
            ends = torch.zeros(2, edges, dtype=torch.int64)
            _by_kernels([ends[1], ends[0]], ends, [receivers, senders])
        return [(name, vars(aot.resources(made))) for (name, _), made in compiled.items()]


if __name__ == "__main__":
    request = json.load(sys.stdin)
    assert type(segment_kernel).__name__ == "JITFunction", "the interpreter must be off"
    answer = {
        "triton": triton.__version__,
        "printed": [printed(**task) for task in request.get("printed", [])],
        "compiled": [compiled(**case) for case in request.get("cases", [])],
        "kernels": [same_kernel(**case) for case in request.get("same", [])],
        "forms": [same_form(**case) for case in request.get("forms", [])],
        "tables": [with_table(**case) for case in request.get("tables", [])],
        "sorting": [of_sorting(**case) for case in request.get("sorting", [])],
        "layers": [of_layer(**case) for case in request.get("layers", [])],
    }
    json.dump(answer, sys.stdout)
