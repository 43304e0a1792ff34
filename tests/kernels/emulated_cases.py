"""Runs layers on the machine code of their GPU kernels, without a GPU. Run by test_ptx.py, without the interpreter.

Reads the name of a case from its arguments and writes what came out as JSON.
"""

import json
import re
import sys

import torch
from torch import Tensor
from triton._C.libtriton.passes import ttgpuir

from eqlayers import TensorProductConv
from eqlayers_kernels.triton.print import groups
from eqlayers_kernels.triton.run import aot, compiling, edges, forms
from ptx_emulator.compiled import processor_of_target
from ptx_emulator.emulator import emulated

#: 30 of 40 edges to node 2, 27 from node 1: both are cut into pieces; node 5 of 11 has no edge.
HUBS = ([1] * 27 + [0, 4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8, 0], [2] * 30 + [0, 1, 9, 8, 7, 7, 7, 3, 3, 0])
NODES = 11
IRREPS = ("33x0e + 5x1o", "0e + 1o", "33x0e + 5x1o + 33x1o + 5x0e")
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 2, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 3, "uvu", True)]
DAMAGES = {
    "waits for too few copies": (r"cp\.async\.wait_group (\t?)\d+", r"cp.async.wait_group \g<1>60"),
    "no barriers": (r"bar\.sync \t0;", "// none"),
    "no barrier after a wait": (
        r"(wait_group \t?\d+;(?:\n\t//[^\n]*|\n\s*\.loc[^\n]*)*\n\s*)bar\.sync \t0;",
        r"\1// none",
    ),
    "a store without its guard": (r"@%p\d+ (st\.global)", r"\1"),
    "one store less": (r"(?s)\A(.*?)(@%p\d+ )?st\.global[^;]*;", r"\1// none"),
    "another lane": (r"shfl\.sync\.bfly\.b32 (\t%r\d+, %r\d+), 16", r"shfl.sync.bfly.b32 \1, 8"),
    "misaligned": (r"st\.global\.b32 \[ (%rd\d+) \+ 0 \]", r"st.global.b32 [ \1 + 2 ]"),
    "too far": (r"st\.global\.b32 \[ (%rd\d+) \+ 0 \]", r"st.global.b32 [ \1 + 400000 ]"),
}


def derivatives(layer: torch.nn.Module, operands: list[Tensor], *others: Tensor) -> list[Tensor]:
    """Value, gradients, and gradients of these."""
    moving = [t for t in operands if t.requires_grad]
    value = layer(*operands, *others)
    first = torch.autograd.grad(value.square().sum() + value.sum(), moving, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), moving, materialize_grads=True)
    return [value, *first, *second]


def outcome(make, operands: list[Tensor], *others: Tensor, edit=str) -> dict:
    """Errors relative to the largest element, and findings."""
    inputs = [t.clone().requires_grad_() for t in operands]
    with emulated(edit=edit) as gpu:
        found = derivatives(make("triton"), inputs, *others)
    exact = [t.double().requires_grad_() for t in operands]
    wanted = derivatives(make("reference").double(), exact, *others)
    errors = [
        float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1e-30))
        for a, b in zip(found, wanted, strict=True)
    ]
    return {"error": float(torch.tensor(errors).max()), "findings": dict(gpu.findings)}


def convolution(name: str = "") -> dict:
    """With the machine code of its gradients damaged."""
    pattern, new = DAMAGES.get(name, ("nothing", ""))
    made, changed = torch.Generator().manual_seed(0), []

    def make(backend: str) -> TensorProductConv:
        return TensorProductConv(*IRREPS, PATHS, shared_weights=False, internal_weights=False, backend=backend)

    def edit(text: str) -> str:
        new_text = re.sub(pattern, new, text) if "backward" in text else text
        changed.append(new_text != text)
        return new_text

    layer, edges = make("triton"), len(HUBS[0])
    sizes = [(NODES, layer.irreps_in1.dim), (edges, layer.irreps_in2.dim), (edges, layer.weight_numel)]
    found = outcome(make, [torch.randn(*size, generator=made) for size in sizes], torch.tensor(HUBS), edit=edit)
    return {**found, "changed": any(changed)}


def same_without_pass() -> dict:
    """PTX of a convolution's kernels with and without the pass that is left out."""
    layer = TensorProductConv(*IRREPS, PATHS, shared_weights=False, internal_weights=False)
    program, task = layer.plan.form.program, groups.Task(1, ("x", "y", "w"))
    texts, ran = [], []
    compiling._install()
    asking = ttgpuir.add_coalesce_async_copy
    original = asking.__closure__[0].cell_contents

    def counted(*args) -> None:
        ran[-1] += 1
        original(*args)

    asking.__closure__[0].cell_contents = counted
    for out in (True, False):
        ran.append(0)
        compiling._here.out = out
        with aot.target("sm_90"):
            runner = forms.FormRunner(program, task, torch.float32, True, False, processor_of_target())
            index = torch.tensor(HUBS)
            tables = edges.unpack(edges.pack(index, NODES, NODES), index.shape[1], NODES, NODES)
            shapes = {"x": NODES, "z": NODES}
            tensors = {
                pointer: torch.empty(shapes.get(operand, index.shape[1]), runner.widths[operand])
                for pointer, operand in runner.inputs
            }
            calls = runner.prepare(tensors, tables)[2]
            texts.append([one.kernel.warmup(*one.args, grid=one.grid, **one.meta).asm["ptx"] for one in calls])
    return {"same": texts[0] == texts[1], "kernels": len(texts[0]), "ran": ran}


CASES = {"without the pass": same_without_pass, "whole": convolution}
CASES |= {name: (lambda name=name: convolution(name)) for name in DAMAGES}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: CASES[name]() for name in sys.argv[1:]}))
