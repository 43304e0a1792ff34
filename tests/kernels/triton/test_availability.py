"""Any fact that keeps Triton from running on a machine is a reason of the backend, and never a traceback."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", minversion="3.6")

import eqlayers as eq
from eqlayers.core.backends.registry import select, verdicts
from eqlayers_kernels.triton import availability

#: What machines were seen to raise: no Python.h, no libcuda in the loader's list, no compiler, half an installation.
FAILURES = {
    "gcc": (subprocess.CalledProcessError(1, ["gcc", "cuda_utils.c", "-o", "x.so"]), "gcc"),
    "libcuda": (AssertionError("libcuda.so cannot found!\nPossible files are located at []."), "libcuda.so"),
    "no compiler": (RuntimeError("Failed to find C compiler. Please specify via CC environment variable."), "CC"),
    "loader": (OSError("libcuda.so.1: cannot open shared object file"), "libcuda.so.1"),
    "import": (ImportError("cannot import name 'libtriton'"), "libtriton"),
    "no words": (NotImplementedError(), "NotImplementedError"),
}


class Driver:
    """An active driver that fails where it is asked."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def get_current_target(self):
        raise self.error


@pytest.fixture
def on_gpu(monkeypatch):
    """A process that sees a GPU and does not run the interpreter; asked anew every time."""
    monkeypatch.setattr(availability, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(availability, "why_not", availability.why_not.__wrapped__)
    return monkeypatch


def driver_that(monkeypatch, error: BaseException) -> None:
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_active", Driver(error))


@pytest.mark.parametrize("name", FAILURES)
def test_any_failure_of_the_driver_is_a_reason(on_gpu, name):
    error, words = FAILURES[name]
    driver_that(on_gpu, error)
    reason = availability.why_not()
    assert reason.startswith("needs a Triton that compiles and loads kernels on this machine, got ")
    assert words in reason
    assert type(error).__name__ in reason
    assert "\n" not in reason
    assert len(reason) < 500


@pytest.mark.parametrize("name", FAILURES)
def test_a_kernel_that_cannot_be_launched_is_a_reason(on_gpu, name):
    """The driver answers, and the smallest kernel cannot be compiled or loaded: its launcher needs gcc as well."""
    from triton.runtime import driver

    error, words = FAILURES[name]
    on_gpu.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: None))

    def run(self):
        raise error

    loaded = type("Compiled", (), {"run": property(run)})()
    on_gpu.setattr(availability, "_smallest", lambda: loaded)
    assert words in availability.why_not()
    on_gpu.setattr(availability, "_smallest", lambda: SimpleNamespace(run=None))
    assert availability.why_not() is None


def test_missing_headers_of_python_are_named(on_gpu):
    import sysconfig

    driver_that(on_gpu, FAILURES["gcc"][0])
    on_gpu.setattr(sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    assert "/nowhere/Python.h is not there; install Python's headers" in availability.why_not()


def test_a_broken_triton_is_a_reason(on_gpu):
    """Its import fails, or it has no version, or no specification."""
    on_gpu.setattr(availability, "find_spec", lambda name: object())
    on_gpu.setitem(sys.modules, "triton", None)
    assert "got ModuleNotFoundError: " in availability.why_not()
    on_gpu.setitem(sys.modules, "triton", SimpleNamespace())
    assert "got AttributeError: " in availability.why_not()
    on_gpu.undo()


def test_a_broken_triton_has_no_interpreter(monkeypatch):
    """CPU tensors ask for it in every call, also where nothing of Triton can be imported."""
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", None)
    assert availability.interpreted.__wrapped__() is False


def test_an_interrupt_is_no_reason(on_gpu):
    driver_that(on_gpu, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        availability.why_not()


def test_torch_runs_instead_and_the_reason_is_told(on_gpu):
    driver_that(on_gpu, FAILURES["libcuda"][0])
    layer = eq.TensorProductConv("4x0e", "0e", "4x0e", [(0, 0, 0, "uvu", True)], shared_weights=False)
    call = layer.plan.form.request(torch.float32, torch.device("cuda"))
    assert select(call).name == "torch"
    assert "libcuda.so" in verdicts(call)["triton"]
