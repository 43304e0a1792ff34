"""Energies of lone atoms are shifts, in every network, mode and way of calling; converted models keep their own."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eqlayers.errors import IndexRangeError
from eqlayers.models import (
    MACE,
    TFN,
    Committee,
    Equiformer,
    NequIP,
    Potential,
    Structures,
    compress,
    extend_potential,
    load_potential,
    save_potential,
)
from eqlayers.nn import ZBL
from tests.each import each

SPECIES, SHIFTS = [29, 79], torch.tensor([3.51, -2.5], dtype=torch.float64)
SMALL = {"hidden": "4x0e + 4x1o", "radial_hidden": [4], "cutoff": 4.0, "layers": 2}
NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "MACE": lambda: MACE(SPECIES, correlation=2, lmax=1, **SMALL),
    "MACE, density": lambda: MACE(
        SPECIES, correlation=2, lmax=1, interactions="RealAgnosticDensityInteractionBlock", **SMALL
    ),
    "MACE, sigmoid": lambda: MACE(
        SPECIES, correlation=1, lmax=1, interactions="RealAgnosticInteractionBlock", activation="sigmoid", **SMALL
    ),
    "MACE, dipoles": lambda: MACE(SPECIES, correlation=1, lmax=2, properties=["energy", "dipole"], **SMALL),
    "TFN": lambda: TFN(SPECIES, lmax=1, **SMALL),
    "NequIP": lambda: NequIP(SPECIES, lmax=1, **SMALL),
    "Equiformer": lambda: Equiformer(SPECIES, heads=2, attention_hidden=4, **SMALL),
}


def built(name: str, dtype: torch.dtype = torch.float64, **options: object) -> Potential:
    torch.manual_seed(0)
    shifts = dict(zip(SPECIES, SHIFTS.tolist(), strict=True))
    return Potential(NETWORKS[name](), SPECIES, shifts, {29: 1.5, 79: 0.5}, **options).to(dtype)


def lone(dtype: torch.dtype = torch.float64, cells: bool = False) -> Structures:
    """An atom of each species, and a pair."""
    pos = torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1.0, 2.0]], dtype=dtype)
    pairs, batch = torch.tensor([[2, 3], [3, 2]]), torch.tensor([0, 1, 2, 2])
    structures = Structures(torch.tensor([29, 79, 29, 79]), pos, pairs, batch, 3)
    if not cells:
        return structures
    return structures._replace(cell=20 * torch.eye(3, dtype=dtype).repeat(3, 1, 1), shifts=torch.zeros(2, 3).long())


@each("name", NETWORKS)
def test_a_lone_atom_has_its_shift(name: str) -> None:
    """In both dtypes and modes, with cells and without, beside others and with a repulsion, which ends far off."""
    for dtype in (torch.float32, torch.float64):
        potential = built(name, dtype, repulsion=ZBL())
        for training, cells in ((True, False), (False, True)):
            energies = potential.train(training)(lone(dtype, cells), ("energy", "forces"))
            rounding = 64 * torch.finfo(dtype).eps
            torch.testing.assert_close(energies["energy"][:2], SHIFTS, rtol=rounding, atol=rounding)
            assert not energies["forces"][:2].any()
            assert abs(float(energies["energy"][2].detach() - SHIFTS.sum())) > 1e-4  # neighbours do something


@each("name", ["MACE", "TFN", "Equiformer"])
def test_what_the_network_gives_lone_atoms_can_stay(name: str, tmp_path: Path) -> None:
    """The difference is one number for each atom of a species, so forces are the same; a file keeps the choice."""
    potential, kept = built(name).eval(), built(name, subtract_isolated=False).eval()
    kept.load_state_dict(potential.state_dict())
    less, more = potential(lone(), ("energies", "forces")), kept(lone(), ("energies", "forces"))
    alone = more["energies"] - less["energies"]
    assert alone[:2].abs().min() > 1e-3
    torch.testing.assert_close(alone[2:], alone[:2], rtol=0, atol=1e-12)
    torch.testing.assert_close(more["forces"], less["forces"], rtol=0, atol=1e-12)
    torch.testing.assert_close(potential.shifts_of_network(), SHIFTS - alone[:2], rtol=0, atol=1e-12)
    assert torch.equal(kept.shifts_of_network(), SHIFTS)
    for one, energies in ((potential, less), (kept, more)):
        save_potential(one, tmp_path / "a.pt")
        loaded = load_potential(tmp_path / "a.pt")
        assert torch.equal(loaded(lone(), ("energies",))["energies"], energies["energies"])


def test_new_weights_leave_no_stale_energies() -> None:
    """An optimizer's step, a loaded state and weights that are averaged, in evaluation mode."""
    potential = built("MACE").eval()
    potential(lone())
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    torch.testing.assert_close(potential(lone())["energy"][:2], SHIFTS, rtol=0, atol=1e-12)
    potential.load_state_dict(built("MACE").state_dict())
    torch.testing.assert_close(potential(lone())["energy"][:2], SHIFTS, rtol=0, atol=1e-12)


@each("name", ["MACE", "TFN", "Equiformer"])
def test_gradients_of_weights_see_what_is_subtracted(name: str) -> None:
    """Gradients of a loss of energies and forces are differences; gradients of a lone atom's energy are zero."""
    potential, step = built(name), 1e-5
    weights = dict(potential.named_parameters())

    def loss() -> tuple[torch.Tensor, torch.Tensor]:
        results = potential(lone(), ("energy", "forces"))
        assert results["forces"].requires_grad
        return results["energy"], results["energy"][2] + results["forces"].square().sum()

    energies, total = loss()
    assert energies.requires_grad
    slopes = torch.autograd.grad(total, list(weights.values()), materialize_grads=True, retain_graph=True)
    for slope in torch.autograd.grad(energies[:2].sum(), list(weights.values()), materialize_grads=True):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)
    for (weight, parameter), slope in zip(weights.items(), slopes, strict=True):
        way, ends = torch.randn_like(parameter), []
        for sign in (1, -2, 1):
            with torch.no_grad():
                parameter += sign * step * way
            ends.append(float(loss()[1].detach()))
        assert float((slope * way).sum()) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-7), weight


@each("name", ["MACE", "TFN"])
def test_tables_files_and_float32_keep_the_energies(name: str, tmp_path: Path) -> None:
    """Radial networks by tables, which a file brings back, and in float32; lone atoms alone and beside others."""
    potential = built(name).eval()
    alone = Structures(torch.tensor([29, 79]), torch.zeros(2, 3).double(), torch.empty(2, 0, dtype=torch.int64))
    wanted = potential(lone(), ("energies",))["energies"].detach()
    compress(potential, knots=200)
    save_potential(potential, tmp_path / "tables.pt")
    for one, bound in ((potential, 1e-5), (load_potential(tmp_path / "tables.pt"), 1e-5), (potential.float(), 3e-5)):
        results = one(lone(one.dtype), ("energies",))["energies"].detach()
        assert 0 < float((results[2:] - wanted[2:]).abs().max()) < bound
        rounding = 64 * torch.finfo(one.dtype).eps
        for energies in (results[:2], one(alone._replace(pos=alone.pos.to(one.dtype)), ("energies",))["energies"]):
            torch.testing.assert_close(energies, SHIFTS, rtol=rounding, atol=rounding)


def test_no_edge_reaches_an_atom_that_is_not_there() -> None:
    """Behind the atoms are those that are subtracted."""
    with pytest.raises(IndexRangeError, match=r"edge_index must lie in \[0, 4\), the number of atoms, got .* to 4"):
        built("TFN")(lone()._replace(edge_index=torch.tensor([[2, 4], [4, 2]])))


def test_members_of_a_committee_and_more_species() -> None:
    """Members with the species in another order, one of which keeps what its network gives, share edges."""
    one, kept = built("TFN"), built("MACE", subtract_isolated=False)
    torch.manual_seed(1)
    other = Potential(TFN(SPECIES[::-1], lmax=1, **SMALL), SPECIES[::-1], {29: 3.51, 79: -2.5}).double()
    members = [one, kept, other]
    results = Committee(members).eval().each(lone(), ("energy", "forces"))
    for member, predictions in zip(members, results, strict=True):
        for name, value in member(lone(), ("energy", "forces")).items():
            torch.testing.assert_close(predictions[name], value, rtol=0, atol=1e-12)
    wider = extend_potential(built("MACE"), [8], {8: -7.0})
    atom = Structures(torch.tensor([8]), torch.zeros(1, 3).double(), torch.empty(2, 0, dtype=torch.int64))
    assert wider(atom)["energy"].item() == pytest.approx(-7.0, abs=1e-12)
    assert not extend_potential(kept, [8]).subtract_isolated


def test_the_hessian_and_no_atoms() -> None:
    potential = built("TFN").eval()
    pair = Structures(torch.tensor([29, 79]), lone().pos[2:], torch.tensor([[0, 1], [1, 0]]))
    push = torch.zeros(2, 3).double()
    push[1, 2] = 1e-4
    ends = [potential(pair._replace(pos=pair.pos + sign * push))["forces"] for sign in (1, -1)]
    torch.testing.assert_close(potential.hessian(pair)[1, 2], (ends[1] - ends[0]) / 2e-4, rtol=0, atol=1e-6)
    none = torch.empty(0, dtype=torch.int64)
    empty = Structures(none, torch.empty(0, 3).double(), none.view(1, 0).repeat(2, 1), none, 0)
    cells = empty._replace(cell=torch.empty(0, 3, 3).double(), shifts=torch.empty(0, 3).long())
    for structures in (empty, cells):
        assert potential(structures)["energy"].shape == (0,)
