"""Structures are looked at before a potential sees them: shapes, dtypes, ranges, and cells with their shifts."""

from types import SimpleNamespace

import torch

from eqlayers.errors import ConfigError, DTypeError, EqlayersError, IndexRangeError, ShapeError
from eqlayers.models import Structures
from tests.each import refused

PAIR = torch.tensor([[0, 1], [1, 0]])
GOOD = Structures(torch.tensor([1, 8]), torch.zeros(2, 3), PAIR)
CELLS = {"cell": torch.eye(3)[None], "shifts": torch.zeros(2, 3)}


def test_one_structure_gets_the_batch_of_one() -> None:
    checked = GOOD.checked(torch.float32)
    assert checked.batch is not None
    assert checked.batch.tolist() == [0, 0]
    assert checked._replace(batch=None) == GOOD, "the rest is as it was"
    empty = Structures(torch.empty(0, dtype=torch.int64), torch.empty(0, 3), PAIR[:, :0], num_graphs=0)
    assert empty.checked(torch.float32).batch.shape == (0,)  # type: ignore[union-attr]
    periodic = GOOD._replace(**CELLS).checked(torch.float32)
    assert periodic.cell is CELLS["cell"]


test_tensors_that_do_not_fit = refused(
    "changes, error, message",
    [
        ({"z": torch.tensor([1])}, ShapeError, r"must be \[A\], \[A, 3\] and \[A\], got \[1\], \[2, 3\] and \[1\]"),
        ({"pos": torch.zeros(2, 2)}, ShapeError, r"must be \[A\], \[A, 3\] and \[A\], got \[2\], \[2, 2\]"),
        ({"pos": torch.zeros(6)}, ShapeError, "pos"),
        ({"pos": torch.zeros(2, 3).double()}, DTypeError, "pos must have the dtype of the model, torch.float32, got"),
        ({"pos": torch.zeros(2, 3).long()}, EqlayersError, "pos must be"),
        ({"z": torch.tensor([1.0, 8.0])}, DTypeError, "z and batch must be int64, got torch.float32"),
        ({"batch": torch.zeros(2)}, DTypeError, "z and batch must be int64, got torch.int64 and torch.float32"),
        ({"batch": torch.tensor([0, 1])}, IndexRangeError, "batch"),
        ({"batch": torch.tensor([0])}, ShapeError, r"and \[1\]\. Give one row per atom"),
        ({"num_graphs": True}, ConfigError, "num_graphs must be an integer"),
        ({"num_graphs": 1.5}, ConfigError, "num_graphs must be an integer, at least 0, got 1.5"),
        ({"num_graphs": 0}, IndexRangeError, r"batch must lie in \[0, 0\), the number of structures"),
        ({"edge_index": PAIR[0]}, ShapeError, "edge_index must"),
        ({"cell": CELLS["cell"]}, ShapeError, "cell and shifts must come together, got one of them"),
        ({"shifts": CELLS["shifts"]}, ShapeError, "cell and shifts must come together, got one of them"),
        ({**CELLS, "cell": torch.eye(3)}, ShapeError, r"cell must be \[1, 3, 3\], one for each .*, got \[3, 3\]"),
        ({**CELLS, "cell": torch.eye(3).double()[None]}, DTypeError, "cell must have the dtype of the model"),
    ],
    lambda changes: GOOD._replace(**changes).checked(torch.float32),
)


def test_a_batch_of_a_loader_is_taken_by_its_attributes() -> None:
    batch = SimpleNamespace(z=GOOD.z, pos=GOOD.pos, edge_index=PAIR, num_graphs=None, batch=None)
    assert Structures.of(batch) == GOOD
    more = SimpleNamespace(**vars(batch) | CELLS | {"num_graphs": 2, "batch": torch.tensor([0, 1])})
    assert Structures.of(more)[3:] == (more.batch, 2, more.cell, more.shifts, False)
