"""Frames as files keep them: computed results beside the labels that were there."""

import numpy as np
from ase import Atoms

from eqlayers.simulate.frames import with_results


def test_labels_of_the_name_of_a_result_get_a_free_name() -> None:
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])
    atoms.info.update(energy=1.0, REF_energy=2.0, source="mine")
    atoms.arrays["forces"] = np.ones((2, 3))
    kept = with_results(atoms, {"energy": 3.0, "forces": np.zeros((2, 3))})
    assert kept.get_potential_energy() == 3.0
    assert kept.info == {"REF_energy": 2.0, "given_energy": 1.0, "source": "mine"}
    np.testing.assert_array_equal(kept.arrays["REF_forces"], np.ones((2, 3)))
    assert "forces" not in kept.arrays
    assert not kept.get_forces().any()
    assert atoms.info["energy"] == 1.0
