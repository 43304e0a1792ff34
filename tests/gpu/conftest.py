"""The devices of Triton's kernels: every test runs small in the interpreter on the CPU, or as it is on a GPU."""

import pytest
import torch

from eqlayers_kernels.triton import availability


@pytest.fixture(params=[pytest.param("cpu", id="interpreter"), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the tensors are; on 'cpu' layers name the backend, or get another one."""
    pytest.importorskip("triton")
    if request.param == "cpu" and not availability.interpreted():
        pytest.skip("the interpreter runs where there is no GPU")
    return torch.device(request.param)
