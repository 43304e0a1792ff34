"""Labels of potentials: losses of the rows of an error, and the units in which errors are logged."""

import pytest
import torch

from eqlayers.data import TARGETS
from eqlayers.train.steps import ERRORS, LABELS, LOSSES, SHOWN, label_of, metric

ROWS = torch.tensor([[0.3, 0.4, 0.0], [3.0, 0.0, 4.0]]).double()  # of lengths 0.5 and 5


def test_losses_are_of_the_length_of_a_row() -> None:
    """Huber's goes on smoothly where it becomes straight."""
    assert LOSSES["l1"](ROWS).tolist() == pytest.approx([0.5, 5.0])
    assert LOSSES["huber"](ROWS).tolist() == pytest.approx([0.125, 4.5])
    assert LOSSES["mse"](ROWS).tolist() == pytest.approx([0.25 / 3, 25 / 3])
    sizes = torch.tensor([[1 - 1e-7], [1 + 1e-7]], dtype=torch.float64, requires_grad=True)
    values = LOSSES["huber"](sizes)
    (slopes,) = torch.autograd.grad(values.sum(), sizes)
    assert values.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert slopes.flatten().tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


def test_every_error_has_a_unit_that_people_read() -> None:
    assert {name: SHOWN[label.unit] for name, label in ERRORS.items()} == {
        "forces": "meV/A",
        "energy_per_atom": "meV",
        "dipole": "me A",
        "polarizability": "A^3",
        "energy": "meV",
        "stress": "meV/A^3",
    }
    names = [metric(label, "mae") for label in (*ERRORS.values(), *map(label_of, TARGETS.values()))]
    assert all(name.isidentifier() for name in names), "names of metrics become columns"
    assert all((label.errors == f"m{label.values}") is (label.factor == 1000) for label in LABELS.values())
