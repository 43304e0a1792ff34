"""Radial networks of NequIP and MACE by tables: errors, gradients, other weights, copies, what is left and why."""

import copy
import io
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.radial import TabledEmbedding, TabledRadial
from eqlayers.integrations.radial_families import FAMILIES
from tests.integrations import guests
from tests.integrations.guests import Guest, mace, nequip, sevennet

SIZES = (9, 1, 5)  # molecules of different sizes; an atom without neighbours
MAKE: dict[str, Callable[[], Guest]] = {
    "nequip": lambda: nequip(layers=3, channels=4, sizes=SIZES),
    "mace": lambda: mace(hidden="4x0e + 4x1o", correlation=2, sizes=SIZES),
    "sevennet": lambda: sevennet(layers=3, channels=4, lmax=1, sizes=SIZES),
}
GUESTS = [name for name in MAKE if find_spec(name.removesuffix("et"))]
TOLERANCE = 1e-6


@pytest.fixture(scope="module", params=GUESTS)
def subject(request: pytest.FixtureRequest) -> Guest:
    return MAKE[request.param]()


@pytest.fixture
def tabled(subject: Guest) -> nn.Module:
    return accelerate(subject.make(torch.float64), radial="table", tolerance=TOLERANCE).model


def near(results: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    """Within some times the errors of weights and slopes that were asked for: layers follow one another."""
    return all(error <= 30 * TOLERANCE for error in guests.errors(results, wanted).values())


def test_energies_forces_and_gradients_of_all_weights(subject: Guest) -> None:
    plain = subject.make(torch.float64)
    report = accelerate(copy.deepcopy(plain), radial="table", tolerance=TOLERANCE)
    rows = [row for row in report.rows if row.target == "radial"]
    ends = tuple(family.block[1] for family in FAMILIES)
    layers = sum(row.target == "convolution" and row.path.endswith(ends) for row in report.replaced)
    assert [row.replacement for row in rows].count("TabledRadial") == layers > 1
    assert [row.replacement for row in rows].count("TabledEmbedding") == 1
    errors = [row.error for row in rows if row.replacement == "TabledRadial"]
    assert all(error is not None and 0 < error <= 1 for error in errors)
    assert "knots keep weights within about" in str(report)
    wanted = guests.outcome(subject, plain)
    results = guests.outcome(subject, report.model)
    assert results["gradient"].shape == wanted["gradient"].shape
    assert near(results, wanted)
    assert not torch.equal(results["forces"], wanted["forces"]), "the tables were not read"
    energy, forces = subject.evaluate(report.model, False)
    assert near(results | {"energy": energy.detach().double(), "forces": forces.detach().double()}, wanted)


def test_a_table_follows_its_weights(subject: Guest, tabled: nn.Module) -> None:
    """After a step of training, and after a checkpoint."""
    plain = subject.make(torch.float64)
    before = subject.evaluate(tabled, False)[1].detach()
    with torch.no_grad():
        for model in (plain, tabled):
            for name, parameter in model.named_parameters():
                if any(part in name for part in ("mlp", "conv_tp_weights", "weight_nn")):
                    parameter.mul_(1.1)
    after, wanted = (subject.evaluate(model, False)[1].detach() for model in (tabled, plain))
    assert not torch.allclose(before, after)
    assert float((after - wanted).abs().max()) <= 30 * TOLERANCE * float(wanted.abs().max())
    assert near(guests.outcome(subject, tabled), guests.outcome(subject, plain))
    first = subject.make(torch.float64)
    tabled.load_state_dict(first.state_dict(), strict=False)
    torch.testing.assert_close(subject.evaluate(tabled, False)[1].detach(), before, rtol=1e-12, atol=1e-14)


def test_keys_copies_files_and_the_way_back(subject: Guest, tabled: nn.Module) -> None:
    plain = subject.make(torch.float64)
    assert list(tabled.state_dict()) == list(plain.state_dict())
    wanted = subject.evaluate(tabled, False)[1].detach()
    buffer = io.BytesIO()
    torch.save(tabled, buffer)
    buffer.seek(0)
    for model in (copy.deepcopy(tabled), torch.load(buffer, weights_only=False)):
        assert torch.equal(subject.evaluate(model, False)[1].detach(), wanted)
    moved = copy.deepcopy(tabled).to(torch.float32).to(torch.float64)
    assert float((subject.evaluate(moved, False)[1].detach() - wanted).abs().max()) < 1e-5
    back = deaccelerate(tabled)
    assert not any(isinstance(module, (TabledRadial, TabledEmbedding)) for module in back.modules())
    assert torch.equal(subject.evaluate(back, False)[1].detach(), subject.evaluate(plain, False)[1].detach())


def test_networks_stay_where_their_convolutions_do(subject: Guest) -> None:
    report = accelerate(subject.make(torch.float64), targets=["linear"], radial="table")
    (row,) = [row for row in report.rows if row.target == "radial"]
    assert "whose convolution was not replaced" in row.reason


def averaged(model: nn.Module) -> None:
    """Put averages of weights into a model; versions of tensors do not tell."""
    for parameter in model.parameters():
        parameter.data.mul_(1.05)
    for name, buffer in model.named_buffers():
        if "bessel" in name:
            buffer.data.mul_(1.01)


@pytest.mark.parametrize("frozen", [True, False])
def test_weights_that_change_without_a_trace(subject: Guest, tabled: nn.Module, frozen: bool) -> None:
    plain = subject.make(torch.float64)
    for model in (tabled, plain):
        model.requires_grad_(not frozen)
        subject.evaluate(model, False)
        averaged(model)
    results, wanted = (subject.evaluate(model, False)[1].detach() for model in (tabled, plain))
    assert float((results - wanted).abs().max()) <= 30 * TOLERANCE * float(wanted.abs().max())


def test_gradients_of_weights_in_evaluation_mode(subject: Guest, tabled: nn.Module, monkeypatch) -> None:
    # some packages free the graph of the energy when they have the forces
    monkeypatch.setattr(torch.autograd, "grad", partial(torch.autograd.grad, retain_graph=True))

    def gradients(model: nn.Module) -> tuple[Tensor | None, ...]:
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        energy = subject.evaluate(guests.kept_in_evaluation(model), True)[0]
        assert not any(module.training for module in model.modules())
        return torch.autograd.grad(energy.sum(), weights, allow_unused=True)

    for mine, theirs in zip(gradients(tabled), gradients(subject.make(torch.float64)), strict=True):
        assert (mine is None) is (theirs is None)
        if theirs is not None:
            assert mine is not None
            assert float((mine - theirs).abs().max()) <= 100 * TOLERANCE * (float(theirs.abs().max()) + 1)


def test_forces_in_evaluation_mode_read_the_tables_that_are_there(subject: Guest, tabled: nn.Module) -> None:
    """Also where weights require gradients: no network runs again until a weight has another value."""
    networks = [vars(module)["_table"].network for module in tabled.modules() if isinstance(module, TabledRadial)]
    assert all(any(weight.requires_grad for weight in one.parameters()) for one in networks)
    calls: list[int] = []
    forward = type(networks[0]).forward
    subject.evaluate(tabled, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(networks[0]), "forward", lambda *of: (calls.append(0), forward(*of))[1])
        subject.evaluate(tabled, False)
        assert not calls
        with torch.no_grad():
            next(networks[0].network.parameters()).mul_(1.01)
        subject.evaluate(tabled, False)
        assert len(calls) == 1


def test_forward_mode_and_transforms_go_over_weights_that_are_not_trained(subject: Guest, tabled: nn.Module) -> None:
    """A table without the tangents of its weights would give the tangent 0."""
    network = next(module for module in tabled.requires_grad_(False).modules() if isinstance(module, TabledRadial))
    lengths = torch.tensor([[0.3], [0.9]], dtype=torch.float64)
    state = {name: weight.detach() for name, weight in network.named_parameters()}
    steps = {name: 1e-6 * torch.sin(torch.arange(w.numel()).double()).view_as(w) for name, w in state.items()}

    def weights(state: dict[str, Tensor]) -> Tensor:
        read: Tensor = torch.func.functional_call(network, state, (lengths,)).weights()
        return read

    ahead, behind = (weights({name: w + sign * steps[name] for name, w in state.items()}) for sign in (1, -1))
    tangent = torch.func.jvp(weights, (state,), (steps,))[1]
    size = float((ahead - behind).abs().max())
    assert size > 0
    torch.testing.assert_close(2 * tangent, ahead - behind, rtol=1e-6, atol=1e-6 * size)
    several = torch.func.vmap(weights)({name: torch.stack([w, 1.1 * w]) for name, w in state.items()})
    both = torch.stack([weights(state), weights({name: 1.1 * w for name, w in state.items()})])
    torch.testing.assert_close(several, both, rtol=1e-9, atol=1e-12)
    by_lengths = torch.func.jacfwd(lambda r: network(r).weights().sum(0))(lengths)
    torch.testing.assert_close(by_lengths, torch.func.jacrev(lambda r: network(r).weights().sum(0))(lengths))


def test_a_second_call_makes_them_and_a_third_says_so(subject: Guest) -> None:
    model = subject.make(torch.float64)
    accelerate(model)
    replaced = {row.replacement for row in accelerate(model, radial="table").replaced}
    assert replaced == {"TabledEmbedding", "TabledRadial"}
    report = accelerate(model, radial="table", tolerance=1e-5)
    assert not report.replaced
    assert {row.reason for row in report.skipped} == {"is accelerated already"}


def embedding_of(model: nn.Module) -> nn.Module:
    names = {family.embedding for family in FAMILIES}
    return next(module for module in model.modules() if type(module).__name__ in names)


def reason_of(model: nn.Module) -> str:
    (row,) = [row for row in accelerate(model, radial="table").rows if row.target == "radial"]
    assert row.replacement == ""
    return row.reason


def test_what_is_no_function_of_lengths_alone_stays(subject: Guest) -> None:
    hooked = subject.make(torch.float64)
    embedding_of(hooked).register_forward_hook(lambda module, inputs, output: output)
    assert "has hooks on" in reason_of(hooked)
    noisy, radial = subject.make(torch.float64), [family.block[0] for family in FAMILIES]
    python = [module for module in noisy.modules() if not isinstance(module, torch.jit.ScriptModule)]
    holder, name = next((m, n) for m in python for n in m._modules if n in radial)
    inner = getattr(holder, name)
    setattr(holder, name, nn.Sequential(inner, nn.Dropout(0.5)))
    state = torch.get_rng_state()
    assert "gives other weights in training mode" in reason_of(noisy)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.needs("mace")
def test_forwards_of_others_may_read_the_functions() -> None:
    model = MAKE["mace"]().make(torch.float64)
    inner = next(module for module in model.modules() if hasattr(module, "radial_embedding"))

    class Own(type(inner)):  # type: ignore[misc]
        def forward(self, *args: object, **kwargs: object) -> object:
            return super().forward(*args, **kwargs)

    inner.__class__ = Own
    assert "is read by Own, whose forward is not mace's" in reason_of(model)


@pytest.mark.needs("mace")
def test_what_depends_on_more_than_lengths_stays() -> None:
    subject = mace(
        hidden="4x0e + 4x1o", correlation=2, sizes=SIZES, interaction="RealAgnosticAttResidualInteractionBlock"
    )
    report = accelerate(subject.make(torch.float64), radial="table")
    (row,) = [row for row in report.rows if row.target == "radial"]
    assert "is joined with features of nodes in RealAgnosticAttResidualInteractionBlock" in row.reason
    results, wanted = (guests.outcome(subject, model) for model in (report.model, subject.make(torch.float64)))
    assert all(error < 1e-10 for error in guests.errors(results, wanted).values())


def test_what_generated_code_raises_on_probes_is_not_printed(subject: Guest, capfd: pytest.CaptureFixture[str]) -> None:
    accelerate(subject.make(torch.float32))
    assert "FX-traced" not in capfd.readouterr().err
