"""Kernels that are written by hand: sums of edges at nodes and tables of sorted edges, against torch's operators."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from eqlayers_kernels.triton import availability, kernels
from eqlayers_kernels.triton.kernels import add_parts, permute_columns, sum_rows
from eqlayers_kernels.triton.run import edges
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


#: Launches that a graph may take at most; torch's operators take a hundred.
MOST = 15


def graph(count: int, num_src: int, num_dst: int, hub: bool, outside: bool) -> Tensor:
    """Edges, of a receiver that has most of them; some of nodes that are none."""
    wide = int(outside)
    index = torch.stack([torch.randint(-wide, max(1, nodes + wide), (count,)) for nodes in (num_src, num_dst)])
    if hub:
        index[1, count // 4 :] = num_dst // 2
    return index.to(DEVICE)


class Launches(TorchDispatchMode):
    """Notes what would start a kernel on a GPU: operators of torch, and kernels of ours, which are not run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seen: list[str] = []
        for name in ("write_keys", "count_parts", "write_tables"):
            monkeypatch.setattr(kernels, name, {grid: partial(self._note, name) for grid in GRIDS})

    def _note(self, name: str, *args: Any, **meta: Any) -> None:
        self.seen.append(name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(word in str(func) for word in ("empty", "unbind", "select", "view", "split")):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


#: Of the launches for the graph below.
GRIDS = [(1,), (1, 1), (1, 2), (2, 2)]
#: Edges, senders, receivers: none, one, less than a block, a piece of more than the least edges.
SIZES = [(0, 0, 0), (0, 3, 2), (1, 1, 1), (300, 1, 1), (500, 40, 3), (700, 70, 300), (8_200, 5, 900)]


@pytest.mark.parametrize(("hub", "outside"), [(False, False), (True, True)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tables_are_those_of_torchs_operators(
    sizes: tuple[int, int, int], hub: bool, outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, num_src, num_dst = sizes
    index = graph(count, num_src, num_dst, hub and num_dst > 0, outside)
    place = torch.randint(0, 11, (count,)).to(DEVICE)
    monkeypatch.setattr(edges, "_launches", lambda index: False)
    wanted = edges.pack(index, num_src, num_dst), edges.pack_intervals(index, place, 11)
    monkeypatch.setattr(edges, "_launches", lambda index: True)
    found = edges.pack(index, num_src, num_dst), edges.pack_intervals(index, place, 11)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_graph_is_sorted_in_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    index = graph(200, 30, 40, True, False)
    monkeypatch.setattr(edges, "_launches", lambda index: True)
    with Launches(monkeypatch) as launches:
        edges.pack(index, 30, 40)
    assert 4 <= len(launches.seen) <= MOST, launches.seen
    assert launches.seen.count("aten.sort.stable") == 1
