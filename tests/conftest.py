"""Fixtures of every test: the Triton interpreter on machines without a GPU, fixed seeds, untouched global state."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

HAS_GPU = torch.cuda.is_available()  # CUDA and HIP builds alike
if not HAS_GPU and "TRITON_INTERPRET" not in os.environ:
    # Triton reads the variable while its own library of device functions is imported.
    if "triton" in sys.modules:
        raise RuntimeError(
            "TRITON_INTERPRET must be set before triton is imported; a pytest plugin imported it first. "
            "Run TRITON_INTERPRET=1 pytest."
        )
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # lets cuBLAS run in torch's deterministic mode

import pytest  # noqa: E402

from tests.cpu_seconds import CpuSeconds  # noqa: E402
from tests.each import seeded  # noqa: E402

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers are the parallelism; two threads on one core are far slower than one


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option of ours, and the setting of a plugin that may be missing: strict configurations take no unknown one."""
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails, unless it needs a GPU")
    if find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds for one test, by pytest-timeout, which is not installed")


def pytest_configure(config: pytest.Config) -> None:
    """Marks of plugins that may be missing, which strict marks ask for; and CPU seconds, which the last lines say."""
    config.pluginmanager.register(CpuSeconds())
    for plugin, mark in (("timeout", "timeout(seconds)"), ("xdist", "xdist_group(name)")):
        if not config.pluginmanager.hasplugin(plugin):
            config.addinivalue_line("markers", f"{mark}: of a plugin that is not installed")


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """Takes what is there out of the garbage collection: a full one then takes 10 ms and not 100.

    Memory measurements and tests of lifetimes ask for hundreds of them. Before each module, as tests import as well.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their file have one worker, as each worker would make the fixture.

    Of a test that is thinned(n) the first set of parameters stays, and about one in n if there are more than n. Hashes
    of the names say which; the rest is slow. On a GPU, emulated ones too, all stay.
    """
    for item in items:
        if _shares_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    if HAS_GPU or config.pluginmanager.has_plugin("tests.emulated"):
        return
    sets: dict[object, list[tuple[int, pytest.Item]]] = {}
    for item in items:
        if mark := item.get_closest_marker("thinned"):
            test = item.path, getattr(item, "originalname", item.name)
            sets.setdefault(test, []).append((mark.args[0], item))
    for _, *rest in sets.values():
        for n, item in rest:
            if len(rest) < n or crc32(item.name.encode()) % n:
                item.add_marker(pytest.mark.slow)


def _shares_fixture(item: pytest.Item) -> bool:
    """Whether a test needs a fixture of its file that is made once for the file."""
    fixtures = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    return any(one.scope == "module" and one.baseid == item.parent.nodeid for (*_, one) in fixtures)


def failed_instead(report: Any, config: pytest.Config) -> Any:
    """A skip as a failure that says so: the environment of `make test` has all that a registry offers."""
    if report.skipped and not hasattr(report, "wasxfail") and config.getoption("no_skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} must run here, as only tests marked gpu may be skipped with --no-skips; got {reason!r}. "
            "Put what it needs into the extra `test`, or the test into an environment that has it (noxfile.py)."
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    report = yield
    return report if item.get_closest_marker("gpu") else failed_instead(report, item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    return failed_instead(report, collector.config)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not HAS_GPU and item.get_closest_marker("gpu"):
        pytest.skip("needs a CUDA or HIP device")


@pytest.fixture
def told() -> Callable[[Callable[[Any], Any], Any], None]:
    """Asserts that a call with a wrong argument ends with an error that says what must be, what came, and the fix."""
    from eqlayers.errors import EqlayersError

    def check(call: Callable[[Any], Any], value: Any) -> None:
        with pytest.raises(EqlayersError) as caught:
            call(value)
        message = str(caught.value)
        assert "must " in message or "expected" in message, "what must be"
        came = ("got", "there is none", "not exist", "have none", "do not have that", "is empty")
        assert any(words in message for words in came), "what came"
        assert len(message.replace("; ", ". ").split(". ")) >= 2, "the fix"

    return check


@pytest.fixture
def needs_a_compiler() -> None:
    """Skips a test of backend cpu where there is no C compiler."""
    from eqlayers_kernels.c.build import compiler

    if (reason := compiler.why_not()) is not None:
        pytest.skip(f"backend cpu {reason}")


@pytest.fixture(autouse=True)
def seed() -> int:
    """Equal random numbers in every test, in any order of tests."""
    seeded(0)
    return 0


@pytest.fixture(autouse=True, scope="session")
def own_kernel_cache(pytestconfig: pytest.Config) -> Iterator[None]:
    """Kernels that tests compile do not go to the user's cache; all workers share them, and the next run does too.

    The name of a kernel is a hash of its source, flags and compiler, so a kept one is the same binary. `make clean`
    removes them; EQLAYERS_TEST_CACHE names another folder.
    """
    folder = os.environ.get("EQLAYERS_TEST_CACHE", str(pytestconfig.rootpath / ".pytest_cache" / "eqlayers"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQLAYERS_CACHE_DIR", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter does nothing twice."""
    from tests.interpreter import quicken

    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_moment_of_each_function() -> Iterator[None]:
    """e3nn averages a function over a million numbers for each activation; they are the same numbers every time."""
    from e3nn.math import _normalize_activation as e3nn_activation

    kept = cache(e3nn_activation.moment)

    def moment(f: Any, n: int, dtype: Any = None, device: Any = None) -> torch.Tensor:
        value: torch.Tensor = kept(f, n, *e3nn_activation.explicit_default_types(dtype, device))
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(e3nn_activation, "moment", moment)
        yield


#: Folders and files whose layers run in torch unless a test names a backend: what they test is not in the kernels.
IN_TORCH = (
    *("models", "integrations", "layers", "e3nn_compat", "train", "simulate", "testing"),
    *("golden", "gpu", "irreps"),
    *("test_bad_calls.py", "test_cli.py", "test_docs.py", "test_functional.py", "test_o3.py"),
)


@contextmanager
def _default_backend(name: str | None) -> Iterator[None]:
    """The backend of layers that are made without one."""
    from eqlayers.layers.base.module import EquivariantModule

    def init(self: Any, layout: str = "mul_ir", backend: str | None = None) -> None:
        _INIT(self, layout, name if backend is None else backend)

    global _INIT
    _INIT = _INIT or EquivariantModule.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EquivariantModule, "__init__", init)
        yield


_INIT: Any = None


def _first_part(request: pytest.FixtureRequest) -> str:
    return request.path.relative_to(Path(__file__).parent).parts[0]


def _in_torch(request: pytest.FixtureRequest) -> bool:
    return not HAS_GPU and _first_part(request) in IN_TORCH and not request.node.get_closest_marker("kernels")


@pytest.fixture(autouse=True, scope="module")
def in_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Layers of the folders IN_TORCH are made on backend 'torch', which compiles nothing.

    `tests/catalogue` compares the kernels of every class of layers with it. A test that is about kernels, or compares
    with them, is marked `kernels`.
    """
    with _default_backend("torch") if _in_torch(request) else nullcontext():
        yield


@pytest.fixture(autouse=True)
def with_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Layers that a test marked `kernels` or `long` makes have the backend that users get."""
    wanted = any(request.node.get_closest_marker(mark) for mark in ("kernels", "long"))
    with _default_backend(None) if wanted else nullcontext():
        yield


#: Folders and files with many commands in one process, which draw nothing unless their module is marked `pictures`.
COMMANDS = ("simulate", "test_bad_commands.py", "test_cli.py", "train")


def _write_empty(figure: Any, file: Any, format: str = "png", **options: Any) -> None:
    """Files of pictures are there, and pages hold elements without content."""
    file.write("<svg></svg>" if format == "svg" else b"")


def _kept_parser(self: Any, *options: Any) -> None:
    """The parser of a command of training, made once; the page of help depends on more than the key."""
    from lightning.pytorch.cli import LightningCLI

    key = type(self), self.command.name, self.task.data
    for_help = any(word.startswith(("-h", "--help")) for word in self.command.words)
    if for_help or key not in _PARSERS:
        LightningCLI.setup_parser(self, *options)
        if not for_help:
            _PARSERS[key] = self.parser
    else:
        self.parser = _PARSERS[key]


_PARSERS: dict[Any, Any] = {}


@pytest.fixture(autouse=True, scope="module")
def quick_commands(request: pytest.FixtureRequest) -> Iterator[None]:
    """In COMMANDS figures are saved without being drawn, and parsers are kept: each takes a fifth of such a test.

    `tests/pages` and modules that are marked `pictures` draw.
    """
    if _first_part(request) not in COMMANDS:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        if "lightning" in sys.modules:
            patch.setattr("eqlayers.train.cli.TrainingCLI.setup_parser", _kept_parser)
        if not request.node.get_closest_marker("pictures"):
            patch.setattr("matplotlib.figure.Figure.savefig", _write_empty)
        yield


@pytest.fixture(autouse=True)
def nan_empty() -> Iterator[None]:
    """Fills torch.empty and its relatives with NaN (integers: the largest), so that unwritten elements show.

    Torch does this in its deterministic mode. A test that must see ordinary mode (say, one that asks whether a result
    repeats by itself) calls `torch.use_deterministic_algorithms(False)`; this fixture restores the mode afterwards.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _globals() -> dict[str, object]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.empty(0).device.type,  # torch 2.6 cannot say it once it was set and unset
        "gradient mode": torch.is_grad_enabled(),
    }


@pytest.fixture(autouse=True)
def untouched_globals() -> Iterator[None]:
    """Fails a test that leaves one of torch's global settings changed, and sets it back for the next test.

    The number of threads belongs to the process, and the command line sets it; it is set back without a failure.
    """
    before, threads = _globals(), torch.get_num_threads()
    yield
    after = _globals()
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    changed = [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    if changed:
        torch.set_default_dtype(before["default dtype"])
        torch.set_default_device(None)
        torch.set_grad_enabled(before["gradient mode"])
        pytest.fail("the test left a global setting of torch changed (" + "; ".join(changed) + ")")
