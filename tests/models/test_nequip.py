"""NequIP: numbers of neighbours, and features that arise. The laws of potentials: test_every_model.py."""

from eqlayers.models import NequIP


def test_the_mean_number_of_neighbours_reaches_all_steps() -> None:
    network = NequIP([1], "4x0e + 4x1o", 1, 3)
    network.set_mean_neighbors(17.0)
    assert [float(step.get_buffer("mean_neighbors")) for step in network.steps] == [17.0] * 3
    assert NequIP(**network.options).options == network.options


def test_features_that_cannot_arise_are_left_out() -> None:
    steps = NequIP([1], "4x0e + 4x0o + 4x1o + 4x1e", 1, 3).steps
    # from scalars no axial vectors; from vectors these, but no pseudoscalars yet
    assert [str(step.irreps_out) for step in steps] == ["4x0e+4x1o", "4x0e+4x1o+4x1e", "4x0e"]
