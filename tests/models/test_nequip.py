"""NequIP: what every potential must do, and what this one says of atoms alone."""

from __future__ import annotations

import pytest
import torch

from eqlayers.errors import ConfigError, IrrepsError
from eqlayers.models import NequIP, Potential, Structures
from eqlayers.testing import check_potential

pytest.importorskip("ase")  # the check makes its examples with it
pytest.importorskip("vesin")

OPTIONS = {
    "parity": {"hidden": "4x0e + 4x0o + 2x1o + 2x1e + 2x2o", "lmax": 2, "layers": 4},
    "one step": {"hidden": "8x0e", "lmax": 1, "layers": 1},
    "usual": {"hidden": "6x0e + 6x1o + 6x2e", "lmax": 2, "layers": 3, "radial_hidden": (8, 8), "cutoff_p": 5},
}


def built(name: str) -> Potential:
    torch.manual_seed(1)
    return Potential(NequIP([1, 6, 8], cutoff=4.0, **OPTIONS[name]), [1, 6, 8]).double().eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one == "parity")) for one in OPTIONS])
def test_every_property_of_a_potential_holds(name: str) -> None:
    report = check_potential(built(name))
    assert report.ok, str(report)


def test_an_atom_alone_has_its_shift() -> None:
    potential = built("usual")
    potential.set_statistics({6: -4.5}, 2.0)
    alone = Structures(torch.tensor([6]), torch.zeros(1, 3, dtype=torch.float64), torch.zeros(2, 0, dtype=torch.int64))
    assert potential(alone)["energy"].tolist() == [-4.5]


def test_the_mean_number_of_neighbours_reaches_all_steps() -> None:
    network = NequIP([1], "4x0e + 4x1o", 1, 3)
    network.set_mean_neighbors(17.0)
    assert [float(step.get_buffer("mean_neighbors")) for step in network.steps] == [17.0] * 3
    assert NequIP(**network.options).options == network.options


def test_features_that_cannot_arise_are_left_out() -> None:
    steps = NequIP([1], "4x0e + 4x0o + 4x1o + 4x1e", 1, 3).steps
    # from scalars no axial vectors; from vectors these, but no pseudoscalars yet
    assert [str(step.irreps_out) for step in steps] == ["4x0e+4x1o", "4x0e+4x1o+4x1e", "4x0e"]


def test_bad_options() -> None:
    with pytest.raises(IrrepsError, match="hidden must"):
        NequIP([1], "4x1o")
    with pytest.raises(ConfigError, match="layers must"):
        NequIP([1], layers=0)
    with pytest.raises(ConfigError, match="species must"):
        NequIP([])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_compile_gives_the_same_energies(dtype: torch.dtype) -> None:
    potential = built("usual").to(dtype)
    made = torch.Generator().manual_seed(0)
    pos = torch.rand(5, 3, generator=made, dtype=torch.float64).to(dtype) * 3
    edges = torch.tensor(
        [[i for i in range(5) for j in range(5) if i != j], [j for i in range(5) for j in range(5) if i != j]]
    )
    atoms = Structures(torch.tensor([1, 6, 8, 1, 1]), pos, edges).checked(dtype)
    want = potential.atomic_energies(atoms)
    found = torch.compile(potential.atomic_energies, backend="aot_eager")(atoms)
    torch.testing.assert_close(found, want, rtol=200 * torch.finfo(dtype).eps, atol=200 * torch.finfo(dtype).eps)
