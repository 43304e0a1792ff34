"""The devices of Triton's kernels, as tests of kernels have them."""

from tests.gpu.conftest import device

__all__ = ["device"]
