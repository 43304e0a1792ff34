"""Kernels around printed ones sum rows of edges at their nodes, in pieces, as torch does."""

import pytest
import torch

pytest.importorskip("triton")

from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run import edges
from eqlayers_kernels.triton.run.gather import add_parts, permute_columns, sum_rows
from tests.each import each

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK, AT_ONCE = 32, 4


@each("width", [1, 33])
def test_rows_of_edges_are_summed_at_their_nodes(width: int) -> None:
    """A node has most edges, so that they are cut; one has none. Then columns are put into another order."""
    index = torch.tensor([[0] * 60, [2] * 50 + [0] * 9 + [4]], device=DEVICE)
    rows = torch.randn(60, width, device=DEVICE, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "_launches", lambda index: False)
        table = edges.unpack(edges.pack(index, 1, 5), 60, 1, 5)["by_dst"]
    assert int(table.workspace_ptr[3] - table.workspace_ptr[2]) > 3, "several pieces of one node"
    result = torch.full((5, width), torch.nan, device=DEVICE, dtype=torch.float64)
    workspace_ptr = torch.full((table.workspace_rows, width), torch.nan, device=DEVICE, dtype=torch.float64)
    blocks, parts = -(-width // BLOCK), table.nodes.shape[0]
    sum_rows[(parts * blocks,)](
        rows, result, workspace_ptr, *table[1:5], parts, 5, width, BLOCK=BLOCK, AT_ONCE=AT_ONCE, num_warps=1
    )
    assert bool(result[2].isnan().all()), "pieces are in the room"
    assert result[1].tolist() == [0.0] * width
    add_parts[(5 * blocks,)](result, workspace_ptr, table.workspace_ptr, 5, width, BLOCK=BLOCK, AT_ONCE=AT_ONCE)
    wanted = torch.zeros_like(result).index_add(0, index[1], rows)
    torch.testing.assert_close(result, wanted, rtol=0, atol=60 * 2.3e-16 * float(rows.abs().max()) * 60)
    columns = torch.randperm(width).to(DEVICE, torch.int16)
    turned = torch.full_like(result, torch.nan)
    permute_columns[(5 * blocks,)](result, turned, columns, 5, width, BLOCK=BLOCK)
    assert torch.equal(turned, result[:, columns.long()])
