"""Tests in other environments than `make test` has: beside packages that pin another e3nn, and with other torches.

NequIP 0.19 needs e3nn 0.6 and mace-torch 0.3 needs e3nn 0.4.4, so that they cannot be installed together. Plain `nox`,
and `make test-integrations`, run these two. `nox -s oldest newest` runs the layers' tests with the oldest torch that
pyproject.toml allows and with the newest that was tested: some gigabytes each, for PyPI has them with CUDA only.
"""

import nox

nox.options.sessions = ["nequip", "mace", "sevennet"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = True

TOOLS = ("pytest", "pytest-timeout")
#: The same tests for every package's network.
NETWORKS = (
    *("tests/integrations/test_networks.py", "tests/integrations/test_radial.py"),
    "tests/bench/networks/test_guests.py",
)
#: What every torch must run: layers, operators, kernels, compilation. Training needs packages that follow the newest.
LAYERS = (
    *("tests/compile", "tests/core", "tests/e3nn_compat", "tests/integrations", "tests/irreps", "tests/kernels"),
    *(
        "tests/layers",
        "tests/models",
        "tests/sparse",
        "tests/testing",
        "tests/test_functional.py",
        "tests/test_public_names.py",
    ),
)


def run_tests(session: nox.Session, *packages: str, **environment: str) -> None:
    """Install this package beside others, at the versions of the session's constraints, and run pytest."""
    session.install("--quiet", "-c", f"constraints-{session.name}.txt", "-e", ".[bench]", *packages, *TOOLS)
    env = {"OMP_NUM_THREADS": "1", **environment}
    session.run("pytest", f"tests/integrations/{session.name}", *NETWORKS, *session.posargs, env=env)


@nox.session
def nequip(session: nox.Session) -> None:
    """NequIP, and with it Allegro: modifier, configuration, training, compilation."""
    run_tests(session, "nequip", "nequip-allegro")


@nox.session
def mace(session: nox.Session) -> None:
    """MACE, and with it e3nn 0.4.4; cuequivariance, which has MACE's reduced bases, without its kernels for GPUs."""
    # e3nn 0.4.4 loads its constants with torch.load, which refuses their format since torch 2.6
    run_tests(session, "mace-torch", "cuequivariance-torch", TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")


@nox.session
def sevennet(session: nox.Session) -> None:
    """SevenNet: products that become convolutions in forwards which do not ask for it."""
    run_tests(session, "sevenn")


@nox.session
def peers(session: nox.Session) -> None:
    """Networks of schnetpack and torch-geometric beside ours, trained for the same time: an hour, taken up again."""
    session.install("--quiet", "-c", "constraints.txt", "-e", ".[train]", "schnetpack==2.0.3")
    session.run("python", "examples/peers/equal_time.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


def run_layers(session: nox.Session, *options: str) -> None:
    """Install this package with the torch of the session's constraints, and run the layers' tests."""
    tools = (*TOOLS, "hypothesis", "pytest-xdist", "PyYAML")
    session.install("--quiet", "-c", f"constraints-{session.name}.txt", "-e", ".[bench]", *tools)
    options = ("--numprocesses", "auto", "--dist", "loadgroup", "-m", "not slow", *options)
    session.run("pytest", *options, *(session.posargs or LAYERS), env={"OMP_NUM_THREADS": "1"})


@nox.session
def oldest(session: nox.Session) -> None:
    """The oldest torch that pyproject.toml allows."""
    # torch 2.6 requires Triton 3.2, which the kernels for GPUs refuse with their reason
    run_layers(session, "-k", "not triton and not every_verdict and not backends_and_reasons and not for_a_target")


@nox.session
def newest(session: nox.Session) -> None:
    """The newest torch that was tested."""
    run_layers(session)
