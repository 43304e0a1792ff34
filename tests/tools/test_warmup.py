"""A warm-up sees every call of a step, compiles for processors that are not there, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import eqlayers as eq
from eqlayers.core.backends.recording import WATCHERS, watching
from eqlayers_kernels.triton import availability

pytestmark = pytest.mark.kernels  # kernels are what it compiles

SCRIPT = Path(__file__).with_name("warmup_cases.py")
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", True)]
EDGES = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])


class Forces(torch.nn.Module):
    """A loss on derivatives with respect to y, as training on forces has it; two layers share a form."""

    def __init__(self, mul: int) -> None:
        super().__init__()
        irreps = f"{mul}x0e + {mul}x1o"
        self.first, self.second = (
            eq.TensorProductConv(irreps, "0e + 1o", irreps, PATHS, shared_weights=False) for _ in range(2)
        )
        self.scale = eq.SO3Scale(irreps, "learned")

    def step(self) -> None:
        mul = self.first.weight_numel // 3
        x, y = torch.randn(3, 4 * mul), torch.randn(4, 4, requires_grad=True)
        w = torch.randn(4, 3 * mul, requires_grad=True)
        z = self.scale(self.second(self.first(x, y, w, EDGES), y, w, EDGES))
        (forces,) = torch.autograd.grad(z.square().sum(), y, create_graph=True)
        forces.square().sum().backward()


def test_every_call_of_a_step_with_second_derivatives_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path))  # other tests compile into the common one meanwhile
    network = Forces(13)  # a width that no other test compiles
    report = eq.warmup(network.step, model=network)
    assert [(row.layer, row.computes, row.over) for row in report.rows] == [
        ("first (+1 more)", "value", "edges"),
        ("scale", "value", "rows, shared weights"),
        ("scale", "gradients of x", "rows, shared weights"),  # of the forces, which ask for no weights'
        ("first (+1 more)", "gradients of x, y", "edges"),
        ("first (+1 more)", "gradients of y", "edges"),
        ("first (+1 more)", "second derivatives of y, w, z along y", "edges"),
        ("first (+1 more)", "second derivatives of x, y, w, z along x, y", "edges"),
        ("scale", "second derivatives of x, y, z along x", "rows, shared weights"),
        ("scale", "gradients of x, y", "rows, shared weights"),  # of the loss
        ("first (+1 more)", "gradients of x, y, w", "edges"),
        ("first (+1 more)", "gradients of y, w", "edges"),
    ]
    assert {(row.dtype, row.device, row.reason) for row in report.rows} == {("float32", "cpu", "")}
    assert all(row.compiled and row.seconds > 0 for row in report.rows)
    assert report.folders == {"cpu": str(tmp_path / "kernels")}
    assert len(list((tmp_path / "kernels").iterdir())) == sum(row.compiled for row in report.rows) + report.others
    again = eq.warmup(network.step, model=network)
    assert [row.computes for row in again.rows] == [row.computes for row in report.rows]
    assert [row.compiled for row in again.rows] == [0] * len(report.rows)
    assert str(again).endswith(f"0 kernels compiled, 11 calls found theirs; cpu: {tmp_path / 'kernels'}")


class Edges(torch.nn.Module):
    """Layers that are formulas; forces and a loss on them."""

    def __init__(self) -> None:
        super().__init__()
        self.geometry = eq.nn.EdgeGeometry("0e + 1o")
        self.again = eq.nn.EdgeGeometry("0e + 1o")
        self.power = eq.nn.SymmetricContraction("3x0e + 3x1o", "3x0e", 2, num_elements=2)

    def step(self) -> None:
        pos, species = torch.randn(3, 3, requires_grad=True), torch.tensor([0, 1, 0])
        edges = self.geometry(pos, EDGES)
        x = torch.cat([edges.harmonics[:3, :1].expand(3, 3), edges.harmonics[:3, :3].repeat(1, 3)], dim=1)
        (forces,) = torch.autograd.grad(self.power(x, species).sum(), pos, create_graph=True)
        forces.square().sum().backward()


def test_formulas_have_rows_named_after_their_layers() -> None:
    network = Edges()
    rows = eq.warmup(network.step, model=network).rows
    assert rows[0].layer == "geometry (+1 more)"
    assert {row.layer for row in rows[1:]} == {"geometry (+1 more)", "power"}
    seen = {(row.layer, row.computes, row.over) for row in rows}
    positions = "positions of senders, positions of receivers"
    assert {
        ("geometry (+1 more)", "value", "edges"),
        ("geometry (+1 more)", f"gradients of {positions}", "edges"),
        ("power", "value", "rows"),  # weights to coefficients
        ("power", "value", "edges"),  # of species and atoms
    } <= seen
    assert any(computes.startswith("second derivatives of ") for _, computes, _ in seen)
    layer, r = eq.nn.SphericalHarmonics("0e + 1o", normalize=True), torch.ones(2, 3)
    along = eq.warmup(lambda: torch.func.jvp(layer, (r,), (r,)), model=layer).rows
    assert [row.computes for row in along] == ["value", "gradients of harmonics along vector"]
    (alone,) = eq.warmup(lambda: network.geometry(torch.zeros(3, 3), EDGES)).rows
    assert alone.layer.startswith("formula of ")


def test_a_compiled_step_asks_for_the_same() -> None:
    layer = eq.TensorProduct("5x0e", "1o", "5x1o", [(0, 0, 0, "uvu", True)])
    x, y = torch.randn(2, 5, requires_grad=True), torch.randn(2, 3)

    def calls(run) -> list[str]:
        report = eq.warmup(lambda: run(x, y).sum().backward(), model=layer)
        return sorted(f"{row.layer} {row.computes}" for row in report.rows)

    want = ["TensorProduct gradients of x, w", "TensorProduct value"]
    assert calls(layer) == want
    assert calls(torch.compile(layer, fullgraph=True, backend="aot_eager")) == want


def test_nothing_watches_before_and_after() -> None:
    def fail() -> None:
        assert len(WATCHERS) == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        eq.warmup(fail)
    assert not WATCHERS


def test_what_is_watched_is_what_the_caller_gets() -> None:
    layer = eq.TensorProduct("5x0e", "1o", "5x1o", [(0, 0, 0, "uvu", True)])
    x, y = torch.randn(2, 5), torch.randn(2, 3)
    want = layer(x, y)
    with watching(lambda asked, run: [2 * value for value in run()]):
        assert torch.equal(layer(x, y), 2 * want)
    assert torch.equal(layer(x, y), want)


def test_a_step_that_calls_no_kernel() -> None:
    linear = eq.Linear("4x0e", "2x0e")
    report = eq.warmup(lambda: linear(torch.randn(3, 4)), model=linear)
    assert report.rows == ()
    assert str(report) == "the step called no layer that runs in kernels of this package"


def test_kernels_that_are_not_kept_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "file"))
    layer = eq.SO3Scale("11x1o", "learned")  # that no other test compiles
    with (
        pytest.warns(RuntimeWarning, match="expected to keep compiled kernels"),
        pytest.raises(eq.errors.BackendError, match=r"must be kept in .* Set EQLAYERS_CACHE_DIR to a folder of yours"),
    ):
        eq.warmup(lambda: layer(torch.ones(1, 33)))


def test_unknown_targets_and_the_interpreter() -> None:
    with pytest.raises(eq.errors.ConfigError, match=r"target must be one of sm_80, .*, got 'sm_1'"):
        eq.warmup(pytest.fail, ["sm_1"])
    if availability.interpreted():
        with pytest.raises(eq.errors.BackendError, match="Compile in a subprocess"):
            eq.warmup(pytest.fail, ["sm_90"])


def warm_up_for(target: str, folder: Path) -> dict:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(folder),
        "EQLAYERS_CACHE_DIR": str(folder / "c"),  # other tests compile into the common one meanwhile, and clear it
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, str(SCRIPT), target], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_second_process_compiles_nothing_for_a_target(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    first = warm_up_for("sm_90", tmp_path)
    rows = [row for row in first["rows"] if row["device"] == "sm_90"]
    done = [(row["layer"], row["computes"], row["over"], row["compiled"] > 0) for row in rows if not row["reason"]]
    assert done == [
        ("all convolutions", "sums of pieces", "edges", True),
        ("harmonics", "value", "rows", True),
        ("conv (+1 more)", "value", "edges", True),
        ("conv (+1 more)", "gradients of x", "edges, in any order", True),
        ("conv (+1 more)", "gradients of x", "edges", True),
    ]
    left = {row["layer"]: row["reason"] for row in rows if row["reason"]}
    assert list(left) == ["mix"]
    assert "paths that mix channels" in left["mix"]
    assert "left for sm_90: mix (value) has " in first["text"]
    assert "whether one finds these kernels in the folder was not tried" in first["text"]
    assert "must run whole layers of this package in kernels to be compiled for sm_90, got none" in first["refused"]
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.cubin")}
    assert len(files) >= sum(row["compiled"] for row in rows)
    again = warm_up_for("sm_90", tmp_path)
    assert [row["compiled"] for row in again["rows"]] == [0] * len(again["rows"])
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.cubin")} == files
