"""Tests beside packages that pin another e3nn: one environment for each. `make test-integrations` runs all of them.

NequIP 0.19 needs e3nn 0.6 and mace-torch 0.3 needs e3nn 0.4.4, so that they cannot be installed together.
"""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False
nox.options.error_on_missing_interpreters = True

TOOLS = ("pytest", "pytest-timeout")
#: The same tests for every package's network.
NETWORKS = "tests/integrations/test_networks.py"


def run_tests(session: nox.Session, package: str, **environment: str) -> None:
    """Install this package beside another, at the versions of the session's constraints, and run pytest."""
    session.install("--quiet", "-c", f"constraints-{session.name}.txt", "-e", ".[bench]", package, *TOOLS)
    env = {"OMP_NUM_THREADS": "1", **environment}
    session.run("pytest", f"tests/integrations/{session.name}", NETWORKS, *session.posargs, env=env)


@nox.session
def nequip(session: nox.Session) -> None:
    """NequIP: modifier, configuration, training, compilation."""
    run_tests(session, "nequip")


@nox.session
def mace(session: nox.Session) -> None:
    """MACE, and with it e3nn 0.4.4."""
    # e3nn 0.4.4 loads its constants with torch.load, which refuses their format since torch 2.6
    run_tests(session, "mace-torch", TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")
