"""Committees in the commands of potentials: the models that are typed, and deviations beside errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eqlayers.models.committee import MARK
from eqlayers.simulate.committee import Compared, chosen, is_model, one_option_each


@pytest.mark.parametrize(
    ("typed", "first", "expected"),
    [
        ("-m a.pt b.pt x.xyz", False, "-m a.pt -m b.pt x.xyz"),
        ("x.xyz -m a b.ckpt --steps 3", False, "x.xyz -m a -m b.ckpt --steps 3"),
        ("--model=a.pt b.pt x.xyz", False, "--model=a.pt -m b.pt x.xyz"),
        ("-m a.pt x.xyz b.pt", False, "-m a.pt x.xyz b.pt"),
        ("-m -m", False, "-m -m"),
        ("a.pt b.pt x.xyz --seed 3", True, "a.pt x.xyz --seed 3 -m b.pt"),
        ("--device cpu a.pt -m b.pt c.pt", True, "--device cpu a.pt -m b.pt -m c.pt"),
        ("a b", True, "a b"),
    ],
)
def test_models_that_are_typed_one_after_the_other(typed: str, first: bool, expected: str) -> None:
    assert one_option_each(typed.split(), first) == expected.split()


def test_models_are_told_from_structures_by_their_ending_or_by_the_mark_of_a_run(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text("{}")
    words = ["a.pt", "b.ckpt", "c.pth", str(tmp_path), "water.xyz", "a.pt.xyz", str(tmp_path / "none")]
    assert [is_model(word) for word in words] == [True] * 4 + [False] * 3
    assert (chosen(["runs/*"]), chosen(["a", "b"])) == ("runs/*", ["a", "b"])


def test_errors_and_deviations_of_structures_are_put_together() -> None:
    """Two structures of two atoms, one of which has no label; the third structure has none at all."""
    compared = Compared("forces", "meV/A")
    assert compared.error_rows() == compared.deviation_rows() == []
    nan = [np.nan] * 3
    compared.add(np.array([[0.003, 0, 0], nan]), [0.001, 0.1])
    compared.add(np.array([[0.0, -0.006, 0], [0, 0, 0.012]]), np.array([0.002, 0.004]))
    compared.add(None, [0.005, 0.006])
    ((name, text),) = compared.error_rows()
    assert name == "error of forces"
    # 9 components of three atoms: 3, 6 and 12 meV/A, and zeros
    assert text == f"mean {21 / 9:.4g}, root mean square {(189 / 9) ** 0.5:.4g} meV/A"
    ((name, text),) = compared.deviation_rows()
    assert text.startswith(f"mean {118 / 6:.4g}, largest 100 meV/A; its correlation with the error is 1.00, ")
    assert text.endswith("errors are 3.0 times as large")
    energies = Compared("energy", "meV/atom")
    energies.add(np.array([0.008]), 0.002, per=4)
    assert energies.error_rows() == [("error of energy", "mean 2, root mean square 2 meV/atom")]
    assert energies.deviation_rows()[0][1].startswith("mean 0.5, largest 0.5 meV/atom")
