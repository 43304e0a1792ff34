"""accelerate: two of e3nn's own networks, made faster without changing a number, and what that is worth."""

import statistics

import torch
from e3nn.nn.models.gate_points_2102 import Network
from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork

import eqlayers
from eqlayers.bench.measure import alternate

RADIUS, MOLECULES, ATOMS = 2.2, 8, 20
Results = dict[str, torch.Tensor]


def gate_points() -> torch.nn.Module:
    """e3nn's network of February 2021: gates, and a radial network that weights the product of every edge."""
    return Network(
        irreps_in=None,
        irreps_hidden="32x0e + 32x1o + 16x2e",
        irreps_out="0e",
        irreps_node_attr=None,
        irreps_edge_attr="0e + 1o + 2e",
        layers=2,
        max_radius=RADIUS,
        number_of_basis=8,
        radial_layers=1,
        radial_neurons=32,
        num_neighbors=12.0,
        num_nodes=ATOMS,
    )


def message_passing() -> torch.nn.Module:
    """e3nn's network of June 2021, with 50 channels of every irrep up to l = 1."""
    model = SimpleNetwork("1x0e", "0e", RADIUS, num_neighbors=12.0, num_nodes=ATOMS, layers=1, lmax=1)
    for name, parameter in model.named_parameters():
        if ".alpha." in name:  # they start at 0, where no force arises; training moves them away
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def molecules() -> Results:
    """Atoms near the points of a lattice, in clusters that do not see each other."""
    lattice = 1.4 * torch.cartesian_prod(torch.arange(5.0), torch.arange(2.0), torch.arange(2.0))
    pos = (lattice + 0.2 * torch.randn(MOLECULES, ATOMS, 3)).reshape(-1, 3)
    return {"pos": pos, "x": torch.ones(len(pos), 1), "batch": torch.arange(MOLECULES).repeat_interleave(ATOMS)}


def inference(model: torch.nn.Module, data: Results, train: bool = False) -> Results:
    """Energies [molecules, 1] and forces [atoms, 3]; with ``train`` both can be differentiated again."""
    pos = data["pos"].clone().requires_grad_()
    energies = model({**data, "pos": pos})
    (gradient,) = torch.autograd.grad(energies.sum(), pos, create_graph=train)
    return {"energies": energies, "forces": -gradient}


def training_step(model: torch.nn.Module, data: Results) -> Results:
    """Energy and forces, with the gradients of a loss of the forces by parameter."""
    found = inference(model, data, train=True)
    model.zero_grad()
    found["forces"].square().mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {**{name: value.detach() for name, value in found.items()}, **grads}


def compare_speed(name: str, plain: torch.nn.Module, fast: torch.nn.Module, data: Results) -> None:
    """Both in turn, so that what else the machine does hits both."""
    step = {"inference": inference, "training step": training_step}[name]
    theirs, ours = alternate([lambda: step(plain, data), lambda: step(fast, data)], 7)
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds"
    print(f"{name}: {statistics.median(ratios):.2f} times as fast as with e3nn ({spread})")


for make in (gate_points, message_passing):
    print(f"\n{make.__name__}: {make.__doc__}")
    torch.manual_seed(0)
    model, data = make(), molecules()
    before = training_step(model, data)

    # 1. One call. `inplace=False` leaves the model and changes a copy; by default the model itself is changed.
    report = eqlayers.accelerate(model, inplace=False)
    fast = report.model
    print(report)

    # 2. The same numbers: both compute the same sums in another order.
    after = training_step(fast, data)
    print("largest difference, relative to the largest element (one rounding is 1e-07):")
    for kind, names in {
        "energies": ["energies"],
        "forces": ["forces"],
        "gradients of a force loss": before.keys() - {"energies", "forces"},
    }.items():
        sizes = [float(before[name].abs().max()) for name in names]
        errors = [float((after[name] - before[name]).abs().max()) for name in names]
        assert max(sizes) > 0
        print(f"  {kind}: {max(errors) / max(sizes):.0e}")

    # 3. Speed.
    for name in ("inference", "training step"):
        compare_speed(name, model, fast, data)

    # 4. The way back: e3nn's modules, with the parameters of now.
    eqlayers.deaccelerate(fast)
    left = sum(type(module).__name__.startswith("Accelerated") for module in fast.modules())
    error = float((inference(fast, data)["forces"] - before["forces"]).abs().max() / before["forces"].abs().max())
    print(f"after deaccelerate: {left} replacements left, forces differ by {error:.0e}")
