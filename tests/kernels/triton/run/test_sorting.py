"""The kernels that sort the edges of a graph, in Triton's interpreter or on a GPU, against torch's operators."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run import edges, sorting
from tests.core.backends.triton.test_forms import DEVICE

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")

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
            monkeypatch.setattr(sorting, name, {grid: partial(self._note, name) for grid in GRIDS})

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
