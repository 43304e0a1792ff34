"""Tables for radial networks of every kind of MACE: densities, transforms, envelopes behind networks, species."""

import copy
import io
from typing import Any

import pytest
import torch
from mace import modules
from torch import nn

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations import radial as tables
from eqlayers.integrations.radial import TabledRadial
from eqlayers.layers.radial.radial_table import table_error
from tests.integrations import guests
from tests.integrations.guests import Guest, mace

TOLERANCE = 1e-6
DENSITY, NONLINEAR = "RealAgnosticDensityResidualInteractionBlock", "RealAgnosticResidualNonLinearInteractionBlock"
#: Options of MACE, and how many networks become tables of two layers.
VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "density": ({"interaction": DENSITY, "first": "RealAgnosticDensityInteractionBlock"}, 4),
    "agnesi": ({"distance_transform": "Agnesi"}, 2),
    "soft": ({"distance_transform": "Soft"}, 2),
    "envelope behind": ({"apply_cutoff": False}, 2),
    "density, agnesi": ({"interaction": DENSITY, "distance_transform": "Agnesi"}, 4),
    "density, soft, envelope behind": (
        {"interaction": DENSITY, "distance_transform": "Soft", "apply_cutoff": False},
        4,
    ),
    "nonlinear": ({"interaction": NONLINEAR, "apply_cutoff": False}, 4),
    "nonlinear, agnesi": ({"interaction": NONLINEAR, "distance_transform": "Agnesi", "apply_cutoff": False}, 4),
}


def subject_of(options: dict[str, Any]) -> Guest:
    return mace(hidden="4x0e + 4x1o", lmax=2, correlation=2, sizes=(9, 1, 5), **options)


def radials(model: nn.Module) -> list[TabledRadial]:
    return [module for module in model.modules() if isinstance(module, TabledRadial)]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_radial_network_has_a_table(name: str) -> None:
    options, count = VARIANTS[name]
    subject = subject_of(options)
    plain = subject.make(torch.float64)
    report = accelerate(copy.deepcopy(plain), radial="table", tolerance=TOLERANCE)
    rows = [row for row in report.rows if row.target == "radial"]
    assert [row.replacement for row in rows].count("TabledRadial") == count, report
    assert all(row.error is not None and 0 < row.error <= 1 for row in rows if row.replacement == "TabledRadial")
    tabled = report.model
    wanted, trained = (guests.outcome(subject, model) for model in (plain, tabled))
    assert all(error <= 30 * TOLERANCE for error in guests.errors(trained, wanted).values())
    energy, forces = subject.evaluate(tabled.requires_grad_(False), False)
    assert any(vars(one)["_splines"].last is not None for one in radials(tabled)), "no table was made"
    results = trained | {"energy": energy.detach().double(), "forces": forces.detach().double()}
    assert all(error <= 30 * TOLERANCE for error in guests.errors(results, wanted).values())
    assert not torch.equal(results["forces"], wanted["forces"]), "the tables were not read"
    buffer = io.BytesIO()
    torch.save(tabled, buffer)
    buffer.seek(0)
    for model in (copy.deepcopy(tabled), torch.load(buffer, weights_only=False)):
        torch.testing.assert_close(subject.evaluate(model, False)[1], forces)
        assert list(model.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        for model in (plain, tabled):
            for key, parameter in model.named_parameters():
                if any(part in key for part in ("conv_tp_weights", "density_fn", "_embedding")):
                    parameter.mul_(1.1)
    after, exact = (subject.evaluate(model, False)[1] for model in (tabled, plain))
    assert not torch.allclose(after, forces)
    assert float((after - exact).abs().max()) <= 30 * TOLERANCE * float(exact.abs().max())
    back = deaccelerate(tabled)
    assert torch.equal(subject.evaluate(back, False)[1], exact)


def test_only_pairs_that_come_have_tables() -> None:
    """Species may have any number; later ones are added; too many get no table."""
    subject = subject_of({"distance_transform": "Agnesi"})
    model = accelerate(subject.make(torch.float64), radial="table", tolerance=1e-4).model.requires_grad_(False)
    first = radials(model)[0]
    shared, table = vars(first)["_shared"], vars(first)["_table"]
    assert "for each pair of species that occurs" in repr(first)
    assert not len(shared.last[-1])
    wanted = subject.evaluate(model, False)[1]
    came = shared.last[-1].clone()
    assert 1 < len(came) <= len(table.network.species) ** 2
    assert vars(first)["_splines"].last[1].shape[0] == 3 * table.knots.count * len(came) + 1
    shared.last = (*shared.last[:-1], came[::2].clone())
    torch.testing.assert_close(subject.evaluate(model, False)[1], wanted)
    assert torch.equal(shared.last[-1], came)
    before = tables.MOST_BYTES
    try:
        tables.MOST_BYTES = 0
        forces = subject.evaluate(model, False)[1]
    finally:
        tables.MOST_BYTES = before
    assert not torch.equal(forces, wanted)
    assert float((forces - wanted).abs().max()) <= 3e-3 * float(wanted.abs().max())


def test_every_pair_keeps_the_tolerance() -> None:
    """Some are tried when the knots are chosen, at four fifths of it."""
    for options in ({"distance_transform": "Agnesi"}, {"interaction": NONLINEAR, "apply_cutoff": False}):
        model = accelerate(subject_of(options).make(torch.float32), radial="table", tolerance=1e-4).model
        table = vars(radials(model)[0])["_table"]
        every = range(len(table.network.species) ** 2)
        for exact in tables.of_pairs(tables.in_float64(table.network), every):
            assert max(table_error(table.knots, exact, torch.float32).error) <= 1e-4


@pytest.mark.parametrize("name", ["agnesi", "nonlinear"])
def test_tables_of_pairs_follow_the_dtype_and_the_weights(name: str) -> None:
    """A model that is moved after `accelerate`, and derivatives of kept tables in evaluation mode."""
    options, _ = VARIANTS[name]
    subject = subject_of(options)
    model = accelerate(subject.make(torch.float64), radial="table", tolerance=1e-6).model
    plain = subject.make(torch.float64)
    parameters = ([p for n, p in sorted(m.named_parameters()) if p.requires_grad] for m in (model, plain))
    mine, theirs = (
        torch.autograd.grad(
            guests.force_loss(subject.evaluate(guests.kept_in_evaluation(m), True)[1]),
            ps,
            allow_unused=True,
            materialize_grads=True,
        )
        for m, ps in zip((model, plain), parameters, strict=True)
    )
    assert all(vars(radial)["_splines"].last is not None for radial in radials(model))
    for a, b in zip(mine, theirs, strict=True):
        assert float((a - b).abs().max()) <= 100 * TOLERANCE * (float(b.abs().max()) + 1)
    del vars(model)["train"]
    model.requires_grad_(False)
    wanted = subject.evaluate(model, False)[1]
    forces = subject.evaluate(copy.deepcopy(model).float(), False)[1]
    assert forces.dtype == torch.float32
    assert float((forces - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())


class Louder(modules.interaction_classes["RealAgnosticResidualInteractionBlock"]):  # type: ignore[misc]
    """Arithmetic on weights, which a table's do not take."""

    def forward(self, *arguments: Any, **named: Any) -> Any:
        network = self.conv_tp_weights
        weights = 1.1 * network(arguments[3])
        return super().forward(*arguments, **named), weights


def test_blocks_with_a_forward_of_their_own_are_found_before_the_swap() -> None:
    model = subject_of({}).make(torch.float64)
    model.interactions[1].__class__ = Louder
    report = accelerate(model, radial="table")
    (row,) = [row for row in report.rows if row.target == "radial"]
    assert "is read by Louder, whose forward is not mace's" in row.reason
    assert not radials(model)
