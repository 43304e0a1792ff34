"""Small networks of other packages on clusters of atoms, and how a changed network compares with itself.

A module of another package is imported where its network is made: an environment has one of them or none.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn

from tests.cases import default_dtype, quiet_warnings

CUTOFF = 4.0  # Angstrom
SPECIES = {1: "H", 6: "C", 7: "N", 8: "O"}
ROUNDINGS = 10
QUANTITIES = ("energy", "forces", "gradient")
Build = Callable[[], nn.Module]
Evaluate = Callable[[nn.Module, bool], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Guest:
    """A package's network: made in a dtype with the same numbers each time, and its energies and forces."""

    peer: str
    make: Callable[[torch.dtype], nn.Module]
    evaluate: Evaluate


class Atoms:
    """Clusters on a shaken cubic lattice: species [A], positions [A, 3] and numbers of clusters [A]."""

    def __init__(self, sizes: Sequence[int]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.sizes, self.clusters = sizes, []
        for size in sizes:
            side = math.ceil(size ** (1 / 3)) + 1
            grid = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64) - (side - 1) / 2] * 3)
            nearest = (grid.norm(dim=-1) + 1e-3 * grid[:, 0]).argsort(stable=True)[:size]
            shaken = 1.7 * grid[nearest] + 0.3 * (torch.rand(size, 3, generator=generator, dtype=torch.float64) - 0.5)
            self.clusters.append((torch.randint(len(SPECIES), (size,), generator=generator), shaken))
        self.species, self.pos = (torch.cat(parts) for parts in zip(*self.clusters, strict=True))
        self.member = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        near = (torch.cdist(self.pos, self.pos) < CUTOFF) & (self.member[:, None] == self.member)
        self.pairs = near.fill_diagonal_(False).nonzero().T  # receivers, senders
        self.neighbors = max(1.0, self.pairs.shape[1] / len(self.pos))


def kind_of(network: nn.Module) -> torch.dtype:
    return next(network.parameters()).dtype


def representable(network: nn.Module) -> nn.Module:
    """With parameters that float32 holds, so that networks of different dtypes have the same ones."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.float())
    return network


def made(build: Build) -> Callable[[torch.dtype], nn.Module]:
    def make(dtype: torch.dtype) -> nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            torch.manual_seed(1)
            return representable(build()).to(dtype)

    return make


def mace(
    hidden: str = "4x0e + 4x1o",
    lmax: int = 3,
    correlation: int = 3,
    interaction: str = "RealAgnosticResidualInteractionBlock",
    first: str | None = None,
    sizes: Sequence[int] = (27,),
    **more: Any,
) -> Guest:
    from mace import data, modules, tools
    from mace.tools import torch_geometric

    atoms, species = Atoms(sizes), list(SPECIES)

    def build() -> nn.Module:
        return modules.ScaleShiftMACE(
            r_max=CUTOFF,
            num_bessel=8,
            num_polynomial_cutoff=5,
            max_ell=lmax,
            interaction_cls=modules.interaction_classes[interaction],
            interaction_cls_first=modules.interaction_classes[first or interaction],
            num_interactions=2,
            num_elements=len(species),
            hidden_irreps=o3.Irreps(hidden),
            MLP_irreps=o3.Irreps("16x0e"),
            atomic_energies=-torch.arange(1.0, 1.0 + len(species)).numpy(),
            avg_num_neighbors=atoms.neighbors,
            atomic_numbers=species,
            correlation=correlation,
            gate=torch.nn.functional.silu,
            atomic_inter_scale=0.5,
            atomic_inter_shift=0.0,
            **more,
        )

    @lru_cache(maxsize=2)
    def load(dtype: torch.dtype) -> dict[str, Tensor]:
        numbers, kind = torch.tensor(species), {"properties": {}, "property_weights": {}}
        with default_dtype(dtype):
            items = [
                data.AtomicData.from_config(
                    data.Configuration(numbers[kinds].numpy(), pos.numpy(), **kind),
                    z_table=tools.AtomicNumberTable(species),
                    cutoff=CUTOFF,
                )
                for kinds, pos in atoms.clusters
            ]
            loader = torch_geometric.dataloader.DataLoader(items, batch_size=len(items), shuffle=False)
            return next(iter(loader)).to_dict()

    def evaluate(network: nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        given = load(kind_of(network))
        with default_dtype(kind_of(network)):
            out = network(given | {"positions": given["positions"].detach().clone()}, training=training)
        return out["energy"], out["forces"]

    return Guest("mace-torch", made(build), evaluate)


def nequip(layers: int = 3, channels: int = 4, sizes: Sequence[int] = (27,)) -> Guest:
    from nequip.model import NequIPGNNModel

    options = {"num_layers": layers, "num_features": channels, "l_max": 2, "parity": True}
    return _of_nequip("nequip", NequIPGNNModel, options, sizes)


def allegro(channels: int = 3, scalars: int = 8, sizes: Sequence[int] = (27,)) -> Guest:
    from allegro.model import AllegroModel

    embed = {"_target_": "allegro.nn.TwoBodyBesselScalarEmbed"}
    options = {"num_tensor_features": channels, "num_scalar_features": scalars, "radial_chemical_embed": embed}
    return _of_nequip("allegro", AllegroModel, {"num_layers": 2, "l_max": 2, "parity": True, **options}, sizes)


def _of_nequip(peer: str, model: Callable[..., nn.Module], options: dict[str, Any], sizes: Sequence[int]) -> Guest:
    from nequip.data import AtomicDataDict, compute_neighborlist_, from_dict
    from nequip.utils.global_state import set_global_state

    atoms, names = Atoms(sizes), list(SPECIES.values())

    def make(dtype: torch.dtype) -> nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            set_global_state()  # NequIP's data are float64, whatever its network is
            network = model(
                seed=1,
                model_dtype=str(dtype).removeprefix("torch."),
                type_names=names,
                r_max=CUTOFF,
                avg_num_neighbors=atoms.neighbors,
                per_type_energy_scales=dict.fromkeys(names, 0.5),
                per_type_energy_shifts={name: -1.0 - number for number, name in enumerate(names)},
                **options,
            )
            if dtype == torch.float64:
                return representable(network)
            with torch.no_grad():
                for parameter, right in zip(network.parameters(), make(torch.float64).parameters(), strict=True):
                    parameter.copy_(right)
        return network

    @lru_cache(maxsize=1)
    def load() -> Any:
        frames = [from_dict({"pos": pos, "atom_types": kinds}) for kinds, pos in atoms.clusters]
        return AtomicDataDict.batched_from_list([compute_neighborlist_(frame, CUTOFF) for frame in frames])

    def evaluate(network: nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        with default_dtype(torch.float64):
            out = network(dict(load()))
        return out["total_energy"].squeeze(-1), out["forces"]

    return Guest(peer, make, evaluate)


class OneHot(nn.Module):
    """One-hot species in the dtype of the vectors, where SevenNet's are float32 whatever the network is."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        data = self.theirs(data)
        for key in (self.theirs.key_output, self.theirs.key_additional_output):
            data[key] = data[key].to(data["edge_vec"].dtype)
        return data


def sevennet(layers: int = 3, channels: int = 4, lmax: int = 2, sizes: Sequence[int] = (27,)) -> Guest:
    from sevenn._const import DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG
    from sevenn.model_build import build_E3_equivariant_model

    atoms, species = Atoms(sizes), list(SPECIES)

    def build() -> nn.Module:
        options: dict[str, Any] = copy.deepcopy(DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG) | {
            "cutoff": CUTOFF,
            "channel": channels,
            "lmax": lmax,
            "num_convolution_layer": layers,
            "is_parity": False,
            "conv_denominator": [atoms.neighbors**0.5] * layers,
            "_type_map": {z: number for number, z in enumerate(species)},
            "_number_of_species": len(species),
            "chemical_species": list(SPECIES.values()),
            "scale": 0.5,
            "shift": [-1.0 - number for number in range(len(species))],
        }
        network: Any = build_E3_equivariant_model(options)
        network.replace_module("onehot_idx_to_onehot", OneHot(network.onehot_idx_to_onehot))
        return network

    def evaluate(network: nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype, (receiver, sender) = kind_of(network), atoms.pairs
        numbers, pos = torch.tensor(species)[atoms.species], atoms.pos.to(dtype)
        given = {"x": numbers, "atomic_numbers": numbers, "pos": pos, "edge_index": atoms.pairs}
        given |= {"edge_vec": pos[sender] - pos[receiver], "batch": atoms.member}
        given |= {"num_atoms": torch.tensor(atoms.sizes), "cell_volume": pos.new_ones(len(atoms.sizes))}
        with default_dtype(dtype):
            out = network(given)
        return out["inferred_total_energy"], out["inferred_force"]

    return Guest("sevenn", made(build), evaluate)


def _points(build: Callable[[float], nn.Module], sizes: Sequence[int]) -> Guest:
    """Of ``e3nn.nn.models``, which find their edges themselves."""
    atoms = Atoms(sizes)

    def started() -> nn.Module:
        network = build(atoms.neighbors)
        with torch.no_grad():
            for parameter in network.parameters():
                if not parameter.any():  # v2106 starts with convolutions that add nothing
                    parameter.normal_(std=0.5)
        return network

    def evaluate(network: nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype = kind_of(network)
        pos = atoms.pos.to(dtype, copy=True).requires_grad_()
        kinds = torch.nn.functional.one_hot(atoms.species, len(SPECIES)).to(dtype)
        with default_dtype(dtype):
            energy = network({"pos": pos, "x": kinds, "z": kinds, "batch": atoms.member}).squeeze(-1)
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=training)
        return energy, -gradient

    return Guest("e3nn", made(started), evaluate)


def gate_points_2101(channels: int = 3, layers: int = 1, lmax: int = 1, sizes: Sequence[int] = (27,)) -> Guest:
    from e3nn.nn.models.gate_points_2101 import Network

    hidden = o3.Irreps([(channels, (l, p)) for l in range(lmax + 1) for p in (1, -1)])
    irreps = {"irreps_in": "4x0e", "irreps_hidden": hidden, "irreps_out": "0e", "irreps_node_attr": "4x0e"}
    irreps["irreps_edge_attr"] = o3.Irreps.spherical_harmonics(lmax)
    radial = {"number_of_basis": 10, "radial_layers": 1, "radial_neurons": 64, "max_radius": CUTOFF}
    more = {**irreps, **radial, "layers": layers, "num_nodes": float(max(sizes))}
    return _points(lambda neighbors: Network(num_neighbors=neighbors, **more), sizes)


def simple_network_2106(channels: int = 3, layers: int = 2, lmax: int = 1, sizes: Sequence[int] = (27,)) -> Guest:
    from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork

    more = {"max_radius": CUTOFF, "num_nodes": float(max(sizes)), "mul": channels, "layers": layers, "lmax": lmax}
    return _points(lambda neighbors: SimpleNetwork("4x0e", "0e", num_neighbors=neighbors, **more), sizes)


def force_loss(forces: Tensor) -> Tensor:
    """Mean squared error of forces [A, 3] beside fixed labels."""
    labels = torch.sin(torch.arange(forces.numel(), dtype=torch.float64)).view_as(forces)
    return (forces - labels.to(forces)).square().mean()


def outcome(guest: Guest, network: nn.Module) -> dict[str, Tensor]:
    """Energies, forces, and the gradient of a force loss by all parameters, in float64."""
    energy, forces = guest.evaluate(network, True)
    parameters = [p for _, p in sorted(network.named_parameters()) if p.requires_grad]
    gradients = torch.autograd.grad(force_loss(forces), parameters, allow_unused=True, materialize_grads=True)
    flat = torch.cat([gradient.flatten().double() for gradient in gradients])
    return {"energy": energy.detach().double(), "forces": forces.detach().double(), "gradient": flat}


def errors(found: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference over the largest entry of the reference."""
    return {key: float((found[key] - reference[key]).abs().max() / reference[key].abs().max()) for key in QUANTITIES}


def allowed(rounding: dict[str, float], dtype: torch.dtype) -> dict[str, float]:
    """Bounds in a dtype: ten times the errors that the plain network has in float32, in proportion to the epsilon."""
    eps = torch.finfo(torch.float32).eps
    return {key: ROUNDINGS * max(value, eps) * torch.finfo(dtype).eps / eps for key, value in rounding.items()}


def compare(guest: Guest, change: Callable[[nn.Module], Any]) -> dict[str, dict[str, float]]:
    """Errors of a changed network beside the plain one in float64, by dtype, and the largest over their bounds."""
    plain = {dtype: guest.make(dtype) for dtype in (torch.float64, torch.float32)}
    exact = outcome(guest, plain[torch.float64])
    rounding = errors(outcome(guest, plain[torch.float32]), exact)
    found: dict[str, dict[str, float]] = {}
    shares = []
    for dtype, network in plain.items():
        change(network)
        mine, bounds = errors(outcome(guest, network), exact), allowed(rounding, dtype)
        found[str(dtype).removeprefix("torch.")] = mine
        shares.append({key: mine[key] / bounds[key] for key in QUANTITIES})
    return found | {"of the bound": {key: max(share[key] for share in shares) for key in QUANTITIES}}
