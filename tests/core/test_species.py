"""Species of atoms on a device, sorted once for all layers that get them."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from eqlayers.core.species import species_on_device


def test_species_on_a_gpu_are_sorted_in_a_compiled_graph() -> None:
    """torch.compile cannot trace the question whether a CUDA graph is captured, so a trace does not ask it."""

    def ends(y: torch.Tensor) -> torch.Tensor:
        return species_on_device(y, 3).graph.edge_index

    with FakeTensorMode(allow_non_fake_inputs=True):
        y = torch.empty(6, dtype=torch.int64, device="cuda")
        compiled = torch.compile(ends, fullgraph=True, backend="eager")
        assert compiled(y).shape == (2, 6)
