"""Pictures of runs: parity with its errors, learning curves with near baselines, histograms, curves of many runs."""

import numpy as np
import pytest

from eqlayers.errors import ShapeError
from eqlayers.train.plots import histogram, learning_curve, parity_plot

pytestmark = pytest.mark.pictures


def test_groups_have_colours_and_the_small_ones_share_one() -> None:
    x = np.arange(24.0)
    names = [f"kind {n}" for n in range(12) for _ in range(2)]
    labels = parity_plot(x, x, "mu", "D", "", names).axes[0].get_legend_handles_labels()[1]
    assert labels == [*(f"kind {n}" for n in (0, 1, 10, 11, 2, 3, 4)), "5 others"]
    assert parity_plot(x, x, "mu", "D", "").axes[0].get_legend() is None
    with pytest.raises(ShapeError, match="groups must have a name for each of the 24 points, got 3"):
        parity_plot(x, x, "mu", "D", "", names[:3])


def test_histograms_count_every_value() -> None:
    axis = histogram({"a": np.arange(50.0), "none": [], "b": [0.0, 60.0]}, "energy (eV)", "structures").axes[0]
    assert [float(patch.get_data().values.sum()) for patch in axis.patches] == [50.0, 2.0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b"]


def test_far_baselines_are_left_out_of_the_curve() -> None:
    rows = [{"step": step, "train_mae": 10.0 / step, "val_mae": 12.0 / step} for step in (1, 2, 3)]
    axis = learning_curve(rows, "U0", "meV", {"near": 20.0, "far": 1e4}, test=4.0).axes[0]
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels[2:] == ["near: 20 meV", "test: 4 meV"]
    assert "U0 (meV)" in axis.get_ylabel()


def test_parity_shows_every_molecule_and_its_error() -> None:
    values, errors = parity_plot([1.0, 2.0, 4.0], [1.5, 2.0, 3.0], "mu", "D", "").axes
    assert np.asarray(values.collections[0].get_offsets()).tolist() == [[1.0, 1.5], [2.0, 2.0], [4.0, 3.0]]
    assert np.asarray(errors.collections[0].get_offsets()).tolist() == [[1.0, 0.5], [2.0, 0.0], [4.0, -1.0]]


def test_parity_of_equal_values_can_be_drawn() -> None:
    figure = parity_plot([1.0, 1.0], [1.0, 1.0], "mu", "D", "")
    assert figure.axes[0].get_xlim()[0] < 1.0 < figure.axes[0].get_xlim()[1]
