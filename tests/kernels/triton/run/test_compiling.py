"""Kernels that do not compile are planned again with fewer registers; how many compile at a time, by processor."""

import subprocess
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", minversion="3.6")

from triton._C import libtriton

from eqlayers.layers.tensor_product.module import TensorProduct
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import compiling, edges
from eqlayers_kernels.triton.run.compiling import (
    KernelCall,
    KernelError,
    compile_calls,
    compile_or_plan_again,
    threads,
    without_slow_pass,
)
from eqlayers_kernels.triton.run.forms import FormRunner
from eqlayers_kernels.triton.run.formula_run import FormulaRunner

interpreted = pytest.mark.skipif(not availability.interpreted(), reason="CPU tensors run in Triton's interpreter")
#: ptxas of a release that cannot allocate the registers of a large kernel.
FAILS = subprocess.CalledProcessError(255, ["ptxas", "--maxnreg", "255"])


class Kernel:
    """One that compiles if it is small enough, and notes who compiled how many at a time."""

    now, most, loaded = 0, 0, 0
    lock = threading.Lock()

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def warmup(self, *args: object, grid: tuple[int], **meta: object) -> "Kernel":
        with Kernel.lock:
            Kernel.now += 1
            Kernel.most = max(Kernel.most, Kernel.now)
        time.sleep(0.02)
        with Kernel.lock:
            Kernel.now -= 1
        if self.error is not None:
            raise self.error
        return self

    @property
    def run(self) -> None:
        Kernel.loaded += 1


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No kernel is compiled yet; there is no pass of Triton to leave out."""
    Kernel.most = Kernel.loaded = 0
    monkeypatch.setattr(compiling.os, "cpu_count", lambda: 4)
    on_backend(monkeypatch, "cuda")


def on_backend(monkeypatch, name: str) -> None:
    from triton.runtime import driver

    target = SimpleNamespace(backend=name)
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: target))


def calls(count: int, error: BaseException | None = None) -> list[KernelCall]:
    return [KernelCall(Kernel(error), (1,), (), {}) for _ in range(count)]


@pytest.mark.parametrize(("backend", "most"), [("cuda", 4), ("hip", 1)])
def test_threads_compile_for_nvidia_alone(monkeypatch, backend, most):
    on_backend(monkeypatch, backend)
    assert threads() == most
    assert threads(2) == min(2, most)
    assert len(list(compile_calls(calls(8)))) == 8
    assert (Kernel.most == 1) == (backend == "hip")


class Runner:
    """Kernels that compile from some number of registers on down."""

    def __init__(self, most: int, error: BaseException = FAILS) -> None:
        self.on, self.most, self.error = tuning.PROCESSORS["cuda"], most, error
        self.planned: list[int] = []

    def plan_for(self, on: tuning.Processor) -> None:
        self.on = on
        self.planned.append(on.registers)

    def calls(self) -> list[KernelCall]:
        return [*calls(2), *calls(1, None if self.on.registers <= self.most else self.error)]


@pytest.fixture
def anywhere(monkeypatch):
    """A device of no card: nothing is asked of it."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: compiling.nullcontext())
    return torch.device("cuda")


@pytest.mark.parametrize(("most", "planned"), [(225, []), (224, [150]), (120, [150, 112])])
def test_what_does_not_compile_is_planned_with_fewer_registers(anywhere, most, planned):
    runner = Runner(most)
    assert compile_or_plan_again(runner, runner.calls, anywhere)
    assert runner.planned == planned
    assert Kernel.loaded == 3


@pytest.mark.parametrize("error", [FAILS, RuntimeError("PassManager::run failed"), AssertionError(), OSError("ptxas")])
def test_what_compiles_with_no_number_of_registers_is_told(anywhere, error):
    runner = Runner(0, error)
    with pytest.raises(KernelError, match=type(error).__name__) as caught:
        compile_or_plan_again(runner, runner.calls, anywhere)
    assert runner.planned == [150, 112]
    assert runner.on.options == {}
    assert caught.value.__cause__ is error
    assert len(str(caught.value)) < 400


def test_an_interrupt_and_a_lack_of_memory_are_no_reasons_to_plan_again(anywhere):
    runner = Runner(0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        compile_or_plan_again(runner, runner.calls, anywhere)

    def none_left():
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        compile_or_plan_again(runner, none_left, anywhere)
    assert runner.planned == []


def test_nothing_to_launch_is_nothing_compiled(anywhere):
    assert not compile_or_plan_again(Runner(225), list, anywhere)


def program(layout: str = "ir_mul"):
    paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 2, "uvu", True), (1, 1, 3, "uvu", True)]
    irreps = "64x1o+64x2e", "1o+2e", "64x0e+64x3o+64x2e+64x4e"
    return TensorProduct(*irreps, paths, shared_weights=False, internal_weights=False, layout=layout).plan.form.program


@interpreted
@pytest.mark.parametrize("order", [0, 1, 2])
def test_plans_with_fewer_registers_compute_the_same(order):
    """Other kernels, in the interpreter; each attempt is one that the runner takes in place."""
    form = program()
    task = (Task(0, ("z",)), Task(1, ("x", "y", "w")), Task(2, ("x", "y", "w", "z"), ("x", "y", "w")))[order]
    runner = FormRunner(form, task, torch.float64, True, False, tuning.PROCESSORS["cuda"])
    made = torch.Generator().manual_seed(0)
    index = torch.tensor([[0, 1], [1, 1]])
    tables = edges.unpack(edges.pack(index, 2, 2), 2, 2, 2)
    widths = dict(zip("xywz", form.widths, strict=True))
    tensors = {
        name: torch.randn(2, widths[operand], generator=made, dtype=torch.float64) for name, operand in runner.inputs
    }
    found, kernels = [], []
    for on in tuning.attempts(runner.on):
        runner.plan_for(on)
        found.append(runner(tensors, tables))
        kernels.append(len(runner.plan.kernels))
    assert kernels == sorted(kernels)
    assert kernels[-1] > kernels[0]
    for other in found[1:]:
        for name, want in found[0].items():
            assert (other[name] - want).abs().max() <= 500 * 2.0**-53 * want.abs().max()


def test_formulas_are_planned_again_as_well():
    from tests.formulas import cubic

    runner = FormulaRunner(cubic(3), torch.float32, tuning.PROCESSORS["cuda"])
    fewer = list(tuning.attempts(runner.on))[-1]
    runner.plan_for(fewer)
    assert runner.on is fewer
    assert "maxnreg" not in tuning.formula_options(runner.on, False, 90)


@interpreted
def test_runners_compile_before_they_launch(monkeypatch, anywhere):
    """On a GPU: the first call asks, and what came out of it is launched; the next asks no more."""
    asked: list[FormRunner] = []

    def compiled(runner, made, device):
        asked.append(runner)
        runner.plan_for(list(tuning.attempts(runner.on))[-1])
        return bool(made())

    monkeypatch.setattr(compiling, "compile_or_plan_again", compiled)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    runner = FormRunner(program(), Task(0, ("z",)), torch.float32, False, False, tuning.PROCESSORS["cuda"])
    tensors = {"x": torch.randn(2, 512), "y": torch.randn(2, 8), "w": torch.randn(2, 256)}
    for _ in range(2):
        runner(tensors, None)
    assert asked == [runner]


def test_the_error_of_a_kernel_has_the_last_words_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = RuntimeError("begin " + 500 * "x" + "\n  ptxas   fatal")

    def warmup(*args: Any, **options: Any) -> None:
        raise reason

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(compiling, "threads", lambda jobs: 1)
    call = compiling.KernelCall(SimpleNamespace(warmup=warmup), (1,), (), {})
    runner = SimpleNamespace(on=tuning.PROCESSORS["cuda"], plan_for=lambda on: None)
    with pytest.raises(KernelError, match=r"^RuntimeError: x+ ptxas fatal$") as caught:
        compiling.compile_or_plan_again(runner, lambda: [call], torch.device("cuda"))
    assert caught.value.__cause__ is reason
    assert isinstance(caught.value, RuntimeError)
    assert len(str(caught.value)) == len("RuntimeError: ") + compiling.MOST_WORDS
    # an error that names another backend is of kernels that do not compile; without memory it would have none either
    assert not isinstance(torch.OutOfMemoryError(), KernelError)


def test_the_pass_is_left_out_within_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    passes = SimpleNamespace(add_coalesce_async_copy=lambda name, *, stages=0: ran.append(f"{name} {stages}"))
    monkeypatch.setattr(libtriton, "passes", SimpleNamespace(ttgpuir=passes))

    def compile_here(name: str) -> None:
        passes.add_coalesce_async_copy(name, stages=3)  # as Triton looks it up

    def fail_inside() -> None:
        with without_slow_pass():
            compile_here("inside")
            with without_slow_pass():
                compile_here("further inside")
            compile_here("inside again")
            other = threading.Thread(target=compile_here, args=("another thread",))
            other.start()
            other.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    compile_here("outside")
    assert ran == ["another thread 3", "outside 3"]
    installed = passes.add_coalesce_async_copy
    with without_slow_pass():
        assert passes.add_coalesce_async_copy is installed, "each call would wrap it once more"
    monkeypatch.setattr(libtriton, "passes", SimpleNamespace(ttgpuir=SimpleNamespace()))
    with without_slow_pass():
        assert vars(libtriton.passes.ttgpuir) == {}, "a Triton without the pass"
