"""torch.export, AOTInductor and make_fx: what was saved runs in a process that never built a layer."""

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import eqlayers as eq
from eqlayers.core.forms.description import describe, text_of
from eqlayers.core.forms.text import PROGRAM, read_program, write_text
from eqlayers.core.operator import sorted_edges
from eqlayers.errors import ConfigError
from tests.each import refused
from tests.fresh import fresh

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
LARGE = ["interaction", "energy", "mean of molecules", "dipole"]

# runs whatever lies in the folder: <name>.pt (inputs and results) beside <name>.pt2 or <name>.aoti.pt2
FRESH = """
import sys, pathlib, torch, eqlayers.nn  # which registers the operators
from eqlayers.core.forms import description
bound = 300 * torch.finfo(torch.float32).eps  # a few hundred roundings, in another order where a compiler fuses
assert not description.KNOWN, "this process was to know no layer"
for record in sorted(pathlib.Path(sys.argv[1]).glob("*.pt")):
    exported, compiled = record.with_suffix(".pt2"), record.with_suffix(".aoti.pt2")
    models = [torch.export.load(exported).module()] if exported.exists() else []
    models += [torch._inductor.aoti_load_package(str(compiled))] if compiled.exists() else []
    assert models, record
    for model in models:
        for inputs, want in torch.load(record):
            got = model(*inputs)
            got, want = (v if isinstance(v, (tuple, list)) else [v] for v in (got, want))
            for a, b in zip(got, want, strict=True):
                assert (a - b).abs().max() <= bound * max(1.0, float(b.abs().max())), record
        print(record.stem)
"""


def run_elsewhere(folder: Path) -> list[str]:
    """Names of what a fresh process has run and found right."""
    done = fresh(FRESH, str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def dynamic(inputs: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    """Every axis in which the two differ is dynamic; torch refuses to export if something makes it a constant."""
    out: list[Any] = []
    for a, b in zip(inputs, others, strict=True):
        if not torch.is_tensor(a):
            out.append(None)
            continue
        out.append({i: torch.export.Dim.DYNAMIC for i in range(a.ndim) if a.shape[i] != b.shape[i]})
    return tuple(out)


def save(folder: Path, name: str, case: Any, compiled: bool = False, strict: bool = False) -> None:
    inputs, others = case.inputs(7), case.inputs(10)
    exported = torch.export.export(case.layer, inputs, dynamic_shapes=dynamic(inputs, others), strict=strict)
    if compiled:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / f"{name}.aoti.pt2"))
    else:
        torch.export.save(exported, folder / f"{name}.pt2")
    with torch.no_grad():
        torch.save([(args, case.layer(*args)) for args in (inputs, others)], folder / f"{name}.pt")


SMALL = ["every mode", "product, in torch", "convolution", "fixed scale, in torch", "gate", "interaction"]


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_every_exported_layer_runs_elsewhere(table: Any, tmp_path: Path, strict: bool) -> None:
    # torch's strict tracer cannot save a graph with calls that it traces by running them
    builds = [build for name, build in table.items() if not (strict and "in torch" in name)]
    for number, build in enumerate(builds):
        save(tmp_path, f"{number:02}", build(), strict=strict)
    assert len(run_elsewhere(tmp_path)) == len(builds)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["every mode", "product, in torch", "fixed scale", *LARGE], indirect=True)
def test_layers_compiled_ahead_of_time_run_elsewhere(case: Any, tmp_path: Path) -> None:
    save(tmp_path, "layer", case, compiled=True)
    assert run_elsewhere(tmp_path) == ["layer"]


class WithForces(torch.nn.Module):
    """Energy and forces by autograd inside, as an interatomic potential computes them."""

    def __init__(self, layer: torch.nn.Module, place: int) -> None:
        super().__init__()
        self.layer, self.place = layer, place

    def forward(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        x = inputs[self.place].detach().requires_grad_()
        energy = self.layer(*inputs[: self.place], x, *inputs[self.place + 1 :]).square().sum()
        (grad,) = torch.autograd.grad(energy, x)
        return energy.detach(), -grad


def save_forces(folder: Path, case: Any, place: int, compiled: bool = False) -> None:
    """make_fx writes the derivatives out; export saves them: the way of NequIP."""
    model, inputs, others = WithForces(case.layer, place), case.inputs(7), case.inputs(10)
    flat = make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
    keys = [a for n in flat.graph.nodes if "eqlayers.form" in str(n.target) for a in n.args if isinstance(a, str)]
    assert keys
    assert all(key.startswith(PROGRAM) for key in keys)
    exported = torch.export.export(flat, inputs, dynamic_shapes=dynamic(inputs, others))
    torch.export.save(exported, folder / "forces.pt2")
    if compiled:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "forces.aoti.pt2"))
    torch.save([(args, model(*args)) for args in (inputs, others)], folder / "forces.pt")


@pytest.mark.long
def test_exported_layers_run_elsewhere(table: Any, tmp_path: Path) -> None:
    """Graphs with their derivatives inside, and compiled ahead of time; one process serves all of them."""
    for number, name in enumerate(SMALL):
        save(tmp_path, str(number), table[name]())
    save(tmp_path, "compiled", table["convolution"](), compiled=True)
    save_forces(tmp_path, table["convolution"](), 0)
    assert run_elsewhere(tmp_path) == [*(str(number) for number in range(len(SMALL))), "compiled", "forces"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["energy"], indirect=True)
def test_forces_of_a_model_compiled_ahead_of_time_run_elsewhere(case: Any, tmp_path: Path) -> None:
    save_forces(tmp_path, case, 1, compiled=True)
    assert run_elsewhere(tmp_path) == ["forces", "forces"]


@pytest.mark.parametrize("case", ["convolution"], indirect=True)
def test_torch_jit_trace_writes_the_program_down(case: Any) -> None:
    inputs = case.inputs(7)
    traced = torch.jit.trace(case.layer, inputs)
    assert PROGRAM in str(traced.inlined_graph)
    assert torch.equal(traced(*inputs), case.layer(*inputs))


# -- the text of a program --------------------------------------------------------------------------------------------


def program(**kwargs: Any) -> Any:
    paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvw", True, 0.3), (1, 1, 2, "uvu", False), (1, 1, 3, "uvu<v", False)]
    return eq.TensorProduct("2x0e + 2x1o", "2x0e + 2x1o", "2x0e + 2x1o + 2x0e + 1x1e", paths, **kwargs).plan.form


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_a_text_holds_the_very_program(layout: str) -> None:
    form = program(layout=layout)
    again = read_program(form.text)
    assert again == form.program
    assert again.key == form.key
    assert form.text == write_text(PROGRAM, again)
    assert describe(form.text).form == form.form
    assert describe(form.text) is describe(form.text)
    assert text_of(f"{form.key}/mseod/g1:111") == f"{form.text}/mseod/g1:111"
    assert describe(f"{form.text}/mseod").form == describe(f"{form.key}/mseod").form


test_a_damaged_text_is_an_error = refused(
    "damage, message",
    [
        (lambda text: text.replace("eqlayers-2:", "eqlayers-9:"), r"must begin with 'eqlayers-2:', got 'eqlayers-9:"),
        (lambda text: text[:-20], "must hold a program|must hold the program of its key"),
        (lambda text: text[:60] + ("A" if text[60] != "A" else "B") + text[61:], "must hold"),
        (lambda text: text[:40] + "!" + text[41:], r"must hold a program, got 'eqlayers-2:.*export the model again"),
        (lambda text: "eqlayers-2:0123456789abcdef:" + text.split(":")[2], "its key, 0123456789abcdef, got the"),
        (lambda text: "eqlayers-2", "must hold a program|must begin"),
    ],
    lambda damage: describe(damage(program().text)),
)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "null",
        "[" * 100000,
        '["mul_ir",[1,1,0,1],[[1]]]',
        '["mul_ir",[1.0,1,0,1],[]]',
        '["other",[1,1,0,1],[]]',
        '["mul_ir",[1,1,0,1],[[[0,1,1],[0,1,1],[0,1,1],null,[[1,1,0,0,1,0]],[[0,0,0,1.0]]]]]',
        '["mul_ir",[1,1,0,1],[[[0,1,1],[0,1,1],[0,1,1],null,[[1,1,0,0,1,false]],[[0,0,0,Infinity]]]]]',
        '["mul_ir",[1,1,0,1],[[[0,1,1],[0,1,1],[0,1,1],null,[[1,1,0,0,1,false]],[[0,0,0,1]]]]]',
        '["mul_ir",[1,1,0,1],[[[0,1,1],[5,1,1],[0,1,1],null,[[1,1,0,0,1,false]],[[0,0,0,1.0]]]]]',
    ],
)
def test_a_text_of_something_else_is_an_error(content: str) -> None:
    payload = base64.urlsafe_b64encode(zlib.compress(content.encode())).decode()
    with pytest.raises(ConfigError, match="must hold a program, got"):
        read_program(f"eqlayers-2:0123456789abcdef:{payload}")


def test_a_short_key_without_a_layer_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"which no layer of this process has\. Build the layer first, or trace it"):
        describe("0123456789abcdef")


@pytest.mark.skipif(torch.__version__ < "2.7", reason="sym_max of torch 2.6 fixes sizes; its Triton reads none")
def test_tables_of_any_number_of_edges_for_gpus() -> None:
    """Their sizes are symbols without a guard; on the device `meta`, which has the format of GPUs."""
    shapes = ShapeEnv()
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC, DimDynamic.DYNAMIC])
    edges = torch.empty(2, 40, dtype=torch.int64, device="meta")
    with FakeTensorMode(shape_env=shapes) as mode:
        tables = sorted_edges(mode.from_tensor(edges, symbolic_context=sizes), 100, 100)
    assert shapes.guards == []
    (length,) = tables.shape
    assert not isinstance(length, int)
    for count in (40, 20_000):
        more = torch.empty(2, count, dtype=torch.int64, device="meta")
        (want,) = sorted_edges(more, 100, 100).shape
        (symbol,) = length.node.expr.free_symbols
        assert int(length.node.expr.subs({symbol: count})) == want
