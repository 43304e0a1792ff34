"""Small networks of other packages on clusters of atoms, and how a changed network compares with itself."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eqlayers.bench.networks import packages as networks
from eqlayers.bench.networks.atoms import SPECIES, clusters
from eqlayers.bench.networks.packages import Subject as Guest

__all__ = ["SPECIES", "Guest", "allegro", "gate_points_2101", "mace", "nequip", "sevennet", "simple_network_2106"]
ROUNDINGS = 10
QUANTITIES = ("energy", "forces", "gradient")


def small(make: Callable[..., Guest], **size: Any) -> Callable[..., Guest]:
    """A network of few channels on clusters of some numbers of atoms."""

    def guest(sizes: Sequence[int] = (27,), **options: Any) -> Guest:
        return make(sample=clusters(sizes), **{**size, **options})

    return guest


mace = small(networks.mace, hidden="4x0e + 4x1o")
nequip = small(networks.nequip, layers=3, channels=4)
allegro = small(networks.allegro, channels=3, scalars=8)
sevennet = small(networks.sevennet, layers=3, channels=4)
gate_points_2101 = small(networks.gate_points_2101, channels=3, layers=1, lmax=1)
simple_network_2106 = small(networks.simple_network_2106, channels=3, layers=2, lmax=1)


def force_loss(forces: Tensor) -> Tensor:
    """Mean squared error of forces [A, 3] beside fixed labels."""
    labels = torch.sin(torch.arange(forces.numel(), dtype=torch.float64)).view_as(forces)
    return (forces - labels.to(forces)).square().mean()


def kept_in_evaluation(network: nn.Module) -> nn.Module:
    """A network in evaluation mode that stays so where `Guest.evaluate` keeps the graph for gradients of weights."""
    network.eval().__dict__["train"] = lambda mode=True: network
    return network


def outcome(guest: Guest, network: nn.Module) -> dict[str, Tensor]:
    """Energies, forces, and the gradient of a force loss by all parameters, in float64."""
    energy, forces = guest.evaluate(network, True)
    parameters = [p for _, p in sorted(network.named_parameters()) if p.requires_grad]
    gradients = torch.autograd.grad(force_loss(forces), parameters, allow_unused=True, materialize_grads=True)
    flat = torch.cat([gradient.flatten().double() for gradient in gradients])
    return {"energy": energy.detach().double(), "forces": forces.detach().double(), "gradient": flat}


def errors(results: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference over the largest entry of the reference."""
    return {key: float((results[key] - reference[key]).abs().max() / reference[key].abs().max()) for key in QUANTITIES}


def allowed(rounding: dict[str, float], dtype: torch.dtype) -> dict[str, float]:
    """Bounds in a dtype: ten times the errors that the plain network has in float32, in proportion to the epsilon."""
    eps = torch.finfo(torch.float32).eps
    return {key: ROUNDINGS * max(value, eps) * torch.finfo(dtype).eps / eps for key, value in rounding.items()}


def compare(guest: Guest, change: Callable[[nn.Module], Any]) -> dict[str, dict[str, float]]:
    """Errors of a changed network beside the plain one in float64, by dtype, and the largest over their bounds."""
    plain = {dtype: guest.make(dtype) for dtype in (torch.float64, torch.float32)}
    exact = outcome(guest, plain[torch.float64])
    rounding = errors(outcome(guest, plain[torch.float32]), exact)
    by_mode: dict[str, dict[str, float]] = {}
    shares = []
    for dtype, network in plain.items():
        change(network)
        mine, bounds = errors(outcome(guest, network), exact), allowed(rounding, dtype)
        by_mode[str(dtype).removeprefix("torch.")] = mine
        shares.append({key: mine[key] / bounds[key] for key in QUANTITIES})
    return by_mode | {"of the bound": {key: max(share[key] for share in shares) for key in QUANTITIES}}
