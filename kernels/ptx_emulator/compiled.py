"""Compile all kernels of a request for a GPU that is not there; call these inside `aot.target`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.forms.product import Reading
from eqlayers_kernels.forms.program import OPERANDS, Program
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.kernels import segment_kernel
from eqlayers_kernels.triton.print import formula_plan, tuning
from eqlayers_kernels.triton.print.groups import ProductKernel
from eqlayers_kernels.triton.run import compiling, edges, forms, segment
from eqlayers_kernels.triton.run.formula_run import FormulaRunner


def compile_product(problem: segment.Problem, x: Tensor, y: Tensor | None, terms: segment.Terms) -> Any:
    """Compile the kernel that :func:`segment.product` would launch for these CPU tensors."""
    backend = driver.active.get_current_target().backend
    _, (first, *_rest) = segment.prepare(problem, x, y, terms, backend)
    return segment_kernel.warmup(*first.args, grid=first.grid, **first.meta)


def compile_form(
    program: Program,
    task: Task,
    dtype: torch.dtype,
    graph: bool = True,
    shared: bool = False,
    atomic: bool = False,
    jobs: int | None = None,
    reading: Reading | None = None,
) -> Iterator[tuple[ProductKernel, Any]]:
    """Compile the printed kernels of a `FormRunner`, ``jobs`` at a time."""
    runner = forms.FormRunner(program, task, dtype, graph, shared, processor_of_target(), atomic, reading)
    widths = dict(zip(OPERANDS, program.widths, strict=True))
    if reading is not None:
        widths |= {"t": reading.rows(5) * widths["w"] // 5 + 1, "c": reading.reads}  # of five rows, for intervals
    tensors = {
        name: torch.empty(*(() if operand == "w" and shared else (5,)), widths[operand], dtype=dtype)
        for name, operand in task.pointers
    }
    index = torch.zeros(2, 5, dtype=torch.int64)
    packed, intervals = edges.pack(index, 5, 5), None
    if reading is not None:
        packed, intervals = torch.cat([packed, edges.pack_intervals(index, index[0], 5)]), 5
    tables = edges.unpack(packed, 5, 5, 5, intervals) if graph else None
    _, _, calls = runner.prepare(tensors, tables)
    yield from zip(runner.plan.kernels, compiling.compile_calls(calls, jobs=jobs), strict=True)


def compile_formula(
    base: Formula, dtype: torch.dtype, jobs: int | None = None
) -> Iterator[tuple[formula_plan.PlannedFormula, Any]]:
    """Compile the printed kernels of a formula, ``jobs`` at a time (None: as many as cores)."""
    runner = FormulaRunner(base, dtype, processor_of_target())
    tensors = [torch.empty(*(() if o.rows == "one" else (5,)), o.width, dtype=dtype) for o in base.operands]
    tables = edges.unpack(edges.pack(torch.zeros(2, 5, dtype=torch.int64), 5, 5), 5, 5, 5)
    _, calls = runner.prepare(tensors, tables, 5)
    yield from zip(runner.kernels, compiling.compile_calls(calls, jobs=jobs), strict=True)


def processor_of_target() -> tuning.Processor:
    """The limits of the GPU that is compiled for."""
    current = driver.active.get_current_target()
    return tuning.processor(current.backend, current.arch, availability.release())
