"""Products that are matrix products stay e3nn's: ours would be slower."""

import pytest
import torch
from e3nn import o3

from eqlayers.integrations import accelerate
from eqlayers.integrations.kinds.product import DENSE


@pytest.mark.parametrize(("copies", "left"), [(DENSE, False), (DENSE + 1, True)])
def test_many_copies_in_the_second_input(copies: int, left: bool) -> None:
    model = torch.nn.ModuleList([o3.FullyConnectedTensorProduct("2x0e + 2x1o", f"{copies}x0e", "2x0e + 2x1o")])
    report = accelerate(model, check=False)
    assert len(report.skipped) == left
    assert all(f"{copies} copies in its second input" in row.reason for row in report.skipped)


def test_products_channel_by_channel_are_replaced() -> None:
    paths = [(0, 0, 0, "uvu", True)]
    product = o3.TensorProduct("4x0e", "20x0e", "4x0e", paths)
    assert len(accelerate(torch.nn.ModuleList([product]), check=False).replaced) == 1
