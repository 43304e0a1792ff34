"""These tests run where mace-torch is installed (`nox -s mace`), and are not collected elsewhere."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

collect_ignore_glob = [] if find_spec("mace") else ["test_*.py"]


@pytest.fixture(autouse=True)
def default_dtype() -> Iterator[None]:
    """MACE's calculator sets torch's default dtype; here it is set back."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)
