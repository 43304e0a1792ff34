"""Spherical harmonics in NequIP's own modules: of edges, in the dtype of positions, and of vectors at atoms."""

import pytest
import torch
from nequip.data import AtomicDataDict
from nequip.nn.embedding import SphericalHarmonicEdgeAttrs
from torch import nn

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.harmonics import AcceleratedSphericalHarmonics


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_are_in_float64_whatever_the_model(dtype: torch.dtype) -> None:
    """In the way of NequIP: the edges' vectors in float64, the result in the model's dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        edges = SphericalHarmonicEdgeAttrs("0e + 1o + 2e + 3o")
    finally:
        torch.set_default_dtype(before)
    model = nn.ModuleDict({"edges": edges, "net": nn.Linear(3, 3).to(dtype)})
    vectors = torch.randn(6, 3, dtype=torch.float64)
    seen = []

    def harmonics() -> torch.Tensor:
        handle = edges.sh.register_forward_hook(lambda module, arguments, result: seen.append(result.dtype))
        data = {AtomicDataDict.POSITIONS_KEY: vectors, AtomicDataDict.EDGE_VECTORS_KEY: vectors}
        attributes = edges(data)[AtomicDataDict.EDGE_ATTRS_KEY]
        handle.remove()
        return attributes

    expected = harmonics()
    (row,) = accelerate(model, backend="torch").replaced
    assert (row.path, row.kind, row.paths) == ("edges.sh", "SphericalHarmonics", 4)
    assert type(edges.sh) is AcceleratedSphericalHarmonics
    attributes = harmonics()
    assert seen == [torch.float64, torch.float64]
    assert attributes.dtype == expected.dtype == dtype
    torch.testing.assert_close(attributes, expected, rtol=0, atol=64 * torch.finfo(dtype).eps)
    assert torch.equal(
        deaccelerate(model)["edges"]({AtomicDataDict.POSITIONS_KEY: vectors, AtomicDataDict.EDGE_VECTORS_KEY: vectors})[
            AtomicDataDict.EDGE_ATTRS_KEY
        ],
        expected,
    )
