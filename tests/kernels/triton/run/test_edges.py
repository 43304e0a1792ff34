"""Tables of sorted edges hold each edge once, in pieces of one node that are about as long as one another."""

import numpy as np
import pytest
import torch

from eqlayers_kernels.triton.run import edges
from eqlayers_kernels.triton.run.edges import TraversalTables, interval_length, length, pack, pack_intervals, unpack
from tests.each import each


def check(table: TraversalTables, key: np.ndarray, other: np.ndarray, nodes: int) -> None:
    """Hold the pieces of a walk against NumPy's stable sort."""
    order = np.argsort(key, kind="stable")
    np.testing.assert_array_equal(table.edges, order)
    np.testing.assert_array_equal(table.others, other[order])
    assert table.num_nodes == nodes
    real = (table.targets >= 0).nonzero().flatten().tolist()
    assert len(real) <= table.nodes.shape[0] == nodes + key.size // edges.LEAST
    targets, end = [], 0
    for number in real:
        node, first, stop = (int(part[number]) for part in table[:3])
        assert first == end, "pieces follow one another"
        assert stop - first <= 1.5 * edges.LEAST
        assert (key[order[first:stop]] == node).all()
        targets.append((node, int(table.targets[number])))
        end = stop
    assert end == key.size
    assert sorted({node for node, _ in targets}) == list(range(nodes)), "a node without edges has a piece for its zeros"
    workspace_ptr = 0
    for node in range(nodes):
        rows = [place for piece_of, place in targets if piece_of == node]
        assert int(table.workspace_ptr[node]) == workspace_ptr
        workspace_ptr += len(rows) if len(rows) > 1 else 0
        assert rows == (
            [node] if len(rows) == 1 else [nodes + int(table.workspace_ptr[node]) + n for n in range(len(rows))]
        )
    assert int(table.workspace_ptr[nodes]) == workspace_ptr <= table.workspace_rows
    rest = torch.ones(table.targets.shape[0], dtype=torch.bool)
    rest[real] = False
    assert not (table.stop - table.first)[rest].any(), "pieces that are none"


@each("count, senders, receivers, least", [(0, 0, 0, 8), (0, 3, 2, 8), (1, 1, 1, 8), (40, 7, 3, 2), (200, 1, 90, 8)])
def test_pieces_hold_each_edge_once(count: int, senders: int, receivers: int, least: int) -> None:
    """Both walks of a graph, and the walk by intervals of a table behind them."""
    rng = np.random.default_rng(count)
    src, dst, place = (rng.integers(max(n, 1), size=count) for n in (senders, receivers, 11))
    dst[: count // 2] = receivers // 2  # one node has most of them
    index = torch.from_numpy(np.stack([src, dst]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "LEAST", least)
        packed = pack(index.to(torch.int32), senders, receivers)
        assert packed.dtype == torch.int64
        assert packed.shape == (length(count, senders, receivers),)
        tables = unpack(packed, count, senders, receivers)
        assert tables["by_dst"].endpoints is None
        check(tables["by_dst"], dst, src, receivers)
        check(tables["by_src"], src, dst, senders)
        more = pack_intervals(index, torch.from_numpy(place), 11)
        assert more.shape == (interval_length(count, 11),)
        tables = unpack(torch.cat([packed, more]), count, senders, receivers, 11)
        check(tables["by_place"], place, src, 11)
        np.testing.assert_array_equal(tables["by_place"].endpoints, dst[tables["by_place"].edges])
        np.testing.assert_array_equal(tables["by_dst"].endpoints, place)
        np.testing.assert_array_equal(tables["by_src"].endpoints, place)
