"""Networks that other packages made, each with a batch of structures: what `eqlayers.accelerate` is measured on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ..errors import ConfigError
from .implementation import default_dtype

CUTOFF = 4.0  # Angstrom
SPECIES = {1: "H", 6: "C", 7: "N", 8: "O"}
#: Atoms of the structures of a batch; with the spacing below an atom has about twenty neighbours.
SIZES = (27,) * 10
SPACING = 1.7  # Angstrom


@dataclass(frozen=True)
class Structure:
    """One structure without periodic boundaries.

    Attributes:
        species: ``[A]``, 0 to 3.
        pos: ``[A, 3]`` Angstrom, float64.
    """

    species: Tensor
    pos: Tensor


def structures(sizes: Sequence[int] = SIZES, seed: int = 0) -> list[Structure]:
    """Clusters of atoms on a shaken cubic lattice, with random species; a size of 1 gives an isolated atom.

    Example:
        >>> [tuple(s.pos.shape) for s in structures((3, 1))]
        [(3, 3), (1, 3)]
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for size in sizes:
        side = math.ceil(size ** (1 / 3)) + 1
        grid = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64) - (side - 1) / 2] * 3)
        nearest = (grid.norm(dim=-1) + 1e-3 * grid[:, 0]).argsort(stable=True)[:size]
        shaken = SPACING * grid[nearest] + 0.3 * (torch.rand(size, 3, generator=generator, dtype=torch.float64) - 0.5)
        found.append(Structure(torch.randint(len(SPECIES), (size,), generator=generator), shaken))
    return found


def num_edges(batch: Sequence[Structure]) -> int:
    """Pairs of atoms of one structure within the cutoff, both orders counted."""
    return sum(int((torch.cdist(s.pos, s.pos) < CUTOFF).sum()) - len(s.pos) for s in batch)


@dataclass(frozen=True)
class Subject:
    """A network of another package and a batch for it.

    Attributes:
        name: What it is, in a few words.
        batch: The structures.
        make: The network in a dtype, on the CPU; the same numbers in every dtype and every call.
        evaluate: Energies ``[G]`` eV and forces ``[A, 3]`` eV/Angstrom of the batch, from a network in its dtype; with
            the graph of the forces if the second argument says so.
    """

    name: str
    batch: list[Structure]
    make: Callable[[torch.dtype], torch.nn.Module]
    evaluate: Callable[[torch.nn.Module, bool], tuple[Tensor, Tensor]]


def dtype_of(network: torch.nn.Module) -> torch.dtype:
    """The dtype of a network's parameters."""
    return next(p.dtype for p in network.parameters())


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Other packages' advice on how to train is not wanted here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def representable(network: torch.nn.Module) -> torch.nn.Module:
    """Round all parameters to float32, so that networks of different dtypes have the same ones."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.float())
    return network


def nequip(
    *, layers: int = 4, channels: int = 64, lmax: int = 2, parity: bool = True, sizes: Sequence[int] = SIZES
) -> Subject:
    """NequIP's network."""
    from nequip.data import AtomicDataDict, compute_neighborlist_, from_dict
    from nequip.model import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    batch = structures(sizes)
    neighbors = num_edges(batch) / sum(sizes)

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            set_global_state()  # NequIP's data are float64, whatever its network is
            options: dict[str, Any] = {"num_layers": layers, "num_features": channels, "l_max": lmax, "parity": parity}
            model: torch.nn.Module = NequIPGNNModel(
                seed=1,
                model_dtype=str(dtype).removeprefix("torch."),
                type_names=list(SPECIES.values()),
                r_max=CUTOFF,
                avg_num_neighbors=max(1.0, neighbors),
                per_type_energy_scales=dict.fromkeys(SPECIES.values(), 0.5),
                per_type_energy_shifts={"H": -1.0, "C": -2.0, "N": -3.0, "O": -4.0},
                **options,
            )
            if dtype == torch.float64:
                return representable(model)
            first = dict(make(torch.float64).named_parameters())
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(first[name])
        return model

    with default_dtype(torch.float64):
        frames = [from_dict({"pos": s.pos, "atom_types": s.species}) for s in batch]
        data = AtomicDataDict.batched_from_list([compute_neighborlist_(frame, r_max=CUTOFF) for frame in frames])

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        with default_dtype(torch.float64):
            out = network(dict(data))
        return out["total_energy"].squeeze(-1), out["forces"]

    about = f"NequIP, {layers} layers, {channels} channels, l <= {lmax}{', both parities' if parity else ''}"
    return Subject(about, batch, make, evaluate)


def mace(
    *,
    hidden: str = "128x0e + 128x1o",
    lmax: int = 3,
    correlation: int = 3,
    interaction: str = "RealAgnosticResidualInteractionBlock",
    first: str | None = None,
    sizes: Sequence[int] = SIZES,
) -> Subject:
    """MACE's network with two layers."""
    from mace import data, modules, tools
    from mace.tools import torch_geometric

    batch = structures(sizes)
    neighbors = num_edges(batch) / sum(sizes)

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            torch.manual_seed(1)
            model: torch.nn.Module = modules.ScaleShiftMACE(
                r_max=CUTOFF,
                num_bessel=8,
                num_polynomial_cutoff=5,
                max_ell=lmax,
                interaction_cls=modules.interaction_classes[interaction],
                interaction_cls_first=modules.interaction_classes[first or interaction],
                num_interactions=2,
                num_elements=len(SPECIES),
                hidden_irreps=o3.Irreps(hidden),
                MLP_irreps=o3.Irreps("16x0e"),
                atomic_energies=-torch.arange(1.0, 5.0).numpy(),
                avg_num_neighbors=max(1.0, neighbors),
                atomic_numbers=list(SPECIES),
                correlation=correlation,
                gate=torch.nn.functional.silu,
                atomic_inter_scale=0.5,
                atomic_inter_shift=0.0,
            )
        return representable(model).to(dtype)

    def load(dtype: torch.dtype) -> dict[str, Tensor]:
        numbers = torch.tensor(list(SPECIES))
        table = tools.AtomicNumberTable(list(SPECIES))
        with default_dtype(dtype):
            items = [
                data.AtomicData.from_config(
                    data.Configuration(numbers[s.species].numpy(), s.pos.numpy(), properties={}, property_weights={}),
                    z_table=table,
                    cutoff=CUTOFF,
                )
                for s in batch
            ]
            loader = torch_geometric.dataloader.DataLoader(items, batch_size=len(items), shuffle=False)
            loaded: dict[str, Tensor] = next(iter(loader)).to_dict()
        return loaded

    kept = {dtype: load(dtype) for dtype in (torch.float32, torch.float64)}

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype = dtype_of(network)
        given = kept[dtype] | {"positions": kept[dtype]["positions"].detach().clone()}
        with default_dtype(dtype):
            out = network(given, training=training)
        return out["energy"], out["forces"]

    about = f"MACE, 2 layers, {hidden}, edges to l = {lmax}, correlation {correlation}, {interaction}"
    return Subject(about, batch, make, evaluate)


def _points(name: str, build: Callable[[float], torch.nn.Module], sizes: Sequence[int]) -> Subject:
    """A network of ``e3nn.nn.models``, which finds its edges itself."""
    batch = structures(sizes)
    neighbors = max(1.0, num_edges(batch) / sum(sizes))
    species = torch.nn.functional.one_hot(torch.cat([s.species for s in batch]), len(SPECIES))
    pos = torch.cat([s.pos for s in batch])
    member = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor([len(s.pos) for s in batch]))

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            torch.manual_seed(1)
            model = build(neighbors)
            with torch.no_grad():
                for parameter in model.parameters():
                    if not parameter.any():  # v2106 starts with convolutions that add nothing
                        parameter.normal_(std=0.5)
        return representable(model).to(dtype)

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype = dtype_of(network)
        points, kinds = pos.to(dtype, copy=True).requires_grad_(), species.to(dtype)
        with default_dtype(dtype):
            energy = network({"pos": points, "x": kinds, "z": kinds, "batch": member}).squeeze(-1)
        (gradient,) = torch.autograd.grad(energy.sum(), points, create_graph=training)
        return energy, -gradient

    return Subject(name, batch, make, evaluate)


def gate_points_2101(*, channels: int = 32, layers: int = 3, lmax: int = 2, sizes: Sequence[int] = SIZES) -> Subject:
    """``e3nn.nn.models.gate_points_2101.Network``."""
    from e3nn.nn.models.gate_points_2101 import Network

    hidden = o3.Irreps([(channels, (l, p)) for l in range(lmax + 1) for p in (1, -1)])

    def build(neighbors: float) -> torch.nn.Module:
        network: torch.nn.Module = Network(
            irreps_in="4x0e",
            irreps_hidden=hidden,
            irreps_out="0e",
            irreps_node_attr="4x0e",
            irreps_edge_attr=o3.Irreps.spherical_harmonics(lmax),
            layers=layers,
            max_radius=CUTOFF,
            number_of_basis=10,
            radial_layers=1,
            radial_neurons=64,
            num_neighbors=neighbors,
            num_nodes=float(max(sizes)),
        )
        return network

    return _points(f"e3nn, gate_points_2101, {layers} gates, {channels} channels, l <= {lmax}", build, sizes)


def simple_network_2106(*, channels: int = 32, layers: int = 3, lmax: int = 2, sizes: Sequence[int] = SIZES) -> Subject:
    """``e3nn.nn.models.v2106.gate_points_networks.SimpleNetwork``."""
    from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork

    def build(neighbors: float) -> torch.nn.Module:
        kind = {"max_radius": CUTOFF, "num_neighbors": neighbors, "num_nodes": float(max(sizes))}
        network: torch.nn.Module = SimpleNetwork("4x0e", "0e", **kind, mul=channels, layers=layers, lmax=lmax)
        return network

    return _points(f"e3nn, v2106.SimpleNetwork, {layers} gates, {channels} channels, l <= {lmax}", build, sizes)


#: What `eqlayers bench accelerate` knows: name -> the networks it measures.
NETWORKS: dict[str, tuple[Callable[..., Subject], ...]] = {
    "nequip": (nequip,),
    "mace": (mace,),
    "e3nn": (gate_points_2101, simple_network_2106),
}


def subjects(name: str) -> list[Subject]:
    """The networks of one name.

    Raises:
        ConfigError: The package that has them is not installed.
    """
    try:
        return [make() for make in NETWORKS[name]]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the networks of {name!r} need the package {error.name}, which is not installed. Install {name} in an "
            f"environment of its own (docs/howto/{name}.md says how), and run the command there."
        ) from error
