"""Errors that are reported of tables, against errors at many more lengths."""

import torch

from eqlayers.nn import RadialNetwork, RadialTable


def test_errors_of_slopes_in_float32_count_the_rounding_of_all_lengths() -> None:
    """With 2**n intervals and a cutoff of few digits, quarters of intervals are lengths that float32 does not round."""
    for seed in range(4):
        torch.manual_seed(seed)
        table = RadialTable(RadialNetwork(1, 3, 6.0, (8,)), knots=257)
        few, many = table.error(samples=4).slopes, table.error(samples=64).slopes
        assert many <= 2 * few
        assert many <= few + 8 * torch.finfo(torch.float32).eps
