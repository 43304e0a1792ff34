"""The default dtype of a block, and what it is behind the block."""

import pytest
import torch

from eqlayers.core.dtypes import default_dtype


def test_the_dtype_before_is_back_after_an_error() -> None:
    before = torch.get_default_dtype()
    with default_dtype(torch.float64):
        assert torch.ones(1).dtype == torch.float64
    assert torch.get_default_dtype() == before
    with pytest.raises(ZeroDivisionError), default_dtype(torch.float64):
        1 / 0  # noqa: B018
    assert torch.get_default_dtype() == before
