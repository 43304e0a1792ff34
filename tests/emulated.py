"""Plugin for pytest that runs Triton's kernels by their machine code, on an emulated GPU: ``-p tests.emulated``.

The process must not run Triton's interpreter. ``--compile-for sm_80`` takes another processor than sm_90.
"""

from collections.abc import Iterator
from unittest import mock

import pytest

from eqlayers_kernels.triton import availability
from ptx_emulator.emulator import emulated


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compile-for", default="sm_90")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Files ask at import what can run, and where."""
    with (
        mock.patch.object(availability, "interpreted", return_value=True),
        mock.patch.object(availability, "why_not", return_value=None),
    ):
        return (yield)


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """A new one for every test."""
    with emulated(request.config.getoption("--compile-for")) as gpu:
        yield
    assert not gpu.findings
