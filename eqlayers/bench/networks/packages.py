"""Networks of other packages with random weights, and their evaluation on samples of structures.

A function for each package builds its network; atomic energies are multiplied by ``scale``, then ``shift`` is added.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ...core.dtypes import default_dtype
from ...core.errors import ConfigError
from ...models import Potential
from .atoms import CUTOFF, Sample, clusters

Make = Callable[[torch.dtype], torch.nn.Module]
Evaluate = Callable[[torch.nn.Module, bool], tuple[Tensor, Tensor]]
Native = Callable[[torch.nn.Module], Potential]
EMBED = "allegro.nn.TwoBodyBesselScalarEmbed"


@dataclass(frozen=True)
class Subject:
    """A network with a sample of structures, and functions that build, evaluate and convert it."""

    name: str  # short description
    sample: Sample
    make: Make  # builds the network on the CPU in a dtype, always with equal weights
    #: Evaluates energies [G] eV and forces [A, 3] eV/Angstrom of the sample; differentiable if the second argument
    #: (training) is True.
    evaluate: Evaluate
    peer: str = ""  # package of the network; '' for this one
    compiled: Make | None = None  # builds it compiled by torch; None if not supported
    native: Native | None = None  # converts it to a potential of this package; None if not supported


def dtype_and_device(network: torch.nn.Module) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the parameters of a network."""
    first = next(network.parameters())
    return first.dtype, first.device


@contextmanager
def _building() -> Iterator[None]:
    """Context manager for building networks: float64 constants, a fixed random seed, no warnings."""
    with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        yield


def _representable(network: torch.nn.Module) -> torch.nn.Module:
    """Round all parameters to float32, so that networks of different dtypes have the same ones."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.float())
    return network


def _maker(build: Callable[[], torch.nn.Module]) -> Make:
    def make(dtype: torch.dtype) -> torch.nn.Module:
        with _building():
            return _representable(build()).to(dtype)

    return make


# -- MACE -------------------------------------------------------------------------------------------------------------


class _CompiledMace(torch.nn.Module):
    """Call a compiled MACE model with inputs that require gradients and in training mode, as MACE's calculator.

    torch.compile of MACE requires both.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: dict[str, Tensor], training: bool) -> Any:
        inputs = {key: data[key].detach().clone().requires_grad_() for key in ("positions", "node_attrs")}
        return self.model({**data, **inputs}, training=True)


def mace(
    *,
    hidden: str = "128x0e + 128x1o",
    lmax: int = 3,
    correlation: int = 3,
    interaction: str = "RealAgnosticResidualInteractionBlock",
    first: str | None = None,
    sample: Sample | None = None,
    scale: float = 0.5,
    shift: float = 0.0,
    **more: Any,
) -> Subject:
    """A MACE network with two layers; further arguments are MACE's, such as ``distance_transform``."""
    from mace import data, modules, tools
    from mace.tools import torch_geometric
    from mace.tools.compile import prepare

    atoms = sample or clusters()
    species = list(atoms.species)

    def build() -> torch.nn.Module:
        torch.manual_seed(1)
        model: torch.nn.Module = modules.ScaleShiftMACE(
            r_max=atoms.cutoff,
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
            avg_num_neighbors=atoms.mean_neighbors,
            atomic_numbers=species,
            correlation=correlation,
            gate=torch.nn.functional.silu,
            atomic_inter_scale=scale,
            atomic_inter_shift=shift,
            **more,
        )
        return _representable(model)

    def compiled(dtype: torch.dtype) -> torch.nn.Module:
        with _building():
            return _CompiledMace(torch.compile(prepare(build)().to(dtype)))

    @lru_cache(maxsize=2)
    def load(dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        numbers, table = torch.tensor(species), tools.AtomicNumberTable(species)
        unused: dict[str, Any] = {"properties": {}, "property_weights": {}}
        with default_dtype(dtype):
            items = []
            for s in atoms.batch:
                periods = {} if s.cell is None else {"cell": s.cell.numpy(), "pbc": (True, True, True)}
                config = data.Configuration(numbers[s.species].numpy(), s.pos.numpy(), **unused, **periods)
                items.append(data.AtomicData.from_config(config, z_table=table, cutoff=atoms.cutoff))
            loader = torch_geometric.dataloader.DataLoader(items, batch_size=len(items), shuffle=False)
            loaded: dict[str, Tensor] = next(iter(loader)).to(device).to_dict()
        return loaded

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype, device = dtype_and_device(network)
        inputs = load(dtype, device)
        with default_dtype(dtype):
            out = network(inputs | {"positions": inputs["positions"].detach().clone()}, training=training)
        return out["energy"], out["forces"]

    about = f"MACE, 2 layers, {hidden}, edges to l = {lmax}, correlation {correlation}, {interaction}"
    return Subject(about, atoms, _maker(build), evaluate, "mace-torch", compiled)


# -- NequIP and Allegro, which is an extension of it ------------------------------------------------------------------


def _size(layers: int, channels: int, lmax: int, parity: bool) -> str:
    return f"{layers} layers, {channels} channels, l <= {lmax}{', both parities' if parity else ''}"


def nequip(*, layers: int = 4, channels: int = 64, lmax: int = 2, parity: bool = True, **where: Any) -> Subject:
    """A NequIP network."""
    from nequip.model import NequIPGNNModel

    options = {"num_layers": layers, "num_features": channels, "l_max": lmax, "parity": parity}
    about = f"NequIP, {_size(layers, channels, lmax, parity)}"
    return _of_nequip(about, "nequip", NequIPGNNModel, options, **where)


def allegro(
    *, layers: int = 2, channels: int = 32, scalars: int = 64, lmax: int = 2, parity: bool = True, **where: Any
) -> Subject:
    """An Allegro network."""
    from allegro.model import AllegroModel

    options: dict[str, Any] = {"num_layers": layers, "num_tensor_features": channels, "num_scalar_features": scalars}
    options |= {"l_max": lmax, "parity": parity, "radial_chemical_embed": {"_target_": EMBED}}
    return _of_nequip(f"Allegro, {_size(layers, channels, lmax, parity)}", "allegro", AllegroModel, options, **where)


def _of_nequip(
    about: str,
    package: str,
    build: Callable[..., torch.nn.Module],
    options: dict[str, Any],
    *,
    sample: Sample | None = None,
    scale: float = 0.5,
    shift: float = 0.0,
) -> Subject:
    from nequip.data import AtomicDataDict, compute_neighborlist_, from_dict
    from nequip.utils.global_state import set_global_state

    atoms = sample or clusters()
    names = list(atoms.species.values())

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with _building():
            set_global_state()  # NequIP's data are float64, whatever its network is
            model = build(
                seed=1,
                model_dtype=str(dtype).removeprefix("torch."),
                type_names=names,
                r_max=atoms.cutoff,
                avg_num_neighbors=atoms.mean_neighbors,
                per_type_energy_scales=dict.fromkeys(names, scale),
                per_type_energy_shifts={name: shift - 1.0 - number for number, name in enumerate(names)},
                **options,
            )
            if dtype == torch.float64:
                return _representable(model)
            first = list(make(torch.float64).parameters())
            with torch.no_grad():
                for parameter, right in zip(model.parameters(), first, strict=True):
                    parameter.copy_(right)
        return model

    def frame(structure: Any) -> Any:
        periods = {} if structure.cell is None else {"cell": structure.cell, "pbc": torch.ones(3, dtype=torch.bool)}
        fields = {"pos": structure.pos, "atom_types": structure.species}
        return compute_neighborlist_(from_dict(fields | periods), atoms.cutoff)

    @lru_cache(maxsize=1)
    def data(device: torch.device) -> dict[str, Tensor]:
        with default_dtype(torch.float64):
            loaded = AtomicDataDict.batched_from_list([frame(structure) for structure in atoms.batch])
        return {key: value.to(device) for key, value in loaded.items()}

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        with default_dtype(torch.float64):
            out = network(dict(data(dtype_and_device(network)[1])))
        return out["total_energy"].squeeze(-1), out["forces"]

    def compiled(dtype: torch.dtype) -> torch.nn.Module:
        # not by its compile_mode, which runs batches of one structure eagerly
        return torch.compile(make(dtype))  # type: ignore[return-value]

    return Subject(about, atoms, make, evaluate, package, compiled)


# -- SevenNet ---------------------------------------------------------------------------------------------------------


class _OneHot(torch.nn.Module):
    """SevenNet's one-hot species converted to the dtype of vectors, as SevenNet always gives float32."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        data = self.theirs(data)
        for key in (self.theirs.key_output, self.theirs.key_additional_output):
            data[key] = data[key].to(data["edge_vec"].dtype)
        return data


def sevennet(
    *,
    layers: int = 5,
    channels: int = 128,
    lmax: int = 2,
    sample: Sample | None = None,
    scale: float = 0.5,
    shift: float = 0.0,
) -> Subject:
    """A SevenNet network."""
    from sevenn._const import DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG
    from sevenn.model_build import build_E3_equivariant_model

    atoms = sample or clusters()
    species = list(atoms.species)

    def build() -> torch.nn.Module:
        options: dict[str, Any] = copy.deepcopy(DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG) | {
            "cutoff": atoms.cutoff,
            "channel": channels,
            "lmax": lmax,
            "num_convolution_layer": layers,
            "is_parity": False,
            "conv_denominator": [atoms.mean_neighbors**0.5] * layers,
            "_type_map": {z: number for number, z in enumerate(species)},
            "_number_of_species": len(species),
            "chemical_species": list(atoms.species.values()),
            "scale": scale,
            "shift": [shift - 1.0 - number for number in range(len(species))],
        }
        network: Any = build_E3_equivariant_model(options)
        network.replace_module("onehot_idx_to_onehot", _OneHot(network.onehot_idx_to_onehot))
        return network

    @lru_cache(maxsize=2)
    def load(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        batch = atoms.structures(dtype, device)
        assert batch.batch is not None
        receiver, sender = batch.edge_index.flip(0)  # of SevenNet's rows, vectors lead from the first to the second
        vectors = batch.pos[sender] - batch.pos[receiver]
        if batch.shifts is not None and batch.cell is not None:
            vectors = vectors - torch.einsum("ei,eij->ej", batch.shifts, batch.cell[batch.batch[receiver]])
        volume = vectors.new_ones(batch.num_graphs) if batch.cell is None else torch.linalg.det(batch.cell)
        of_edges = {"edge_index": torch.stack([receiver, sender]), "edge_vec": vectors, "cell_volume": volume}
        of_atoms = {"x": batch.z, "atomic_numbers": batch.z, "pos": batch.pos, "batch": batch.batch}
        return of_atoms | of_edges | {"num_atoms": torch.bincount(batch.batch)}

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype, device = dtype_and_device(network)
        inputs = load(dtype, device)
        with default_dtype(dtype):
            out = network(inputs | {"edge_vec": inputs["edge_vec"].clone()})
        return out["inferred_total_energy"], out["inferred_force"]

    return Subject(f"SevenNet, {_size(layers, channels, lmax, False)}", atoms, _maker(build), evaluate, "sevenn")


# -- e3nn.nn.models, which find their edges themselves ----------------------------------------------------------------


def _points(name: str, build: Callable[..., torch.nn.Module], sample: Sample, **options: Any) -> Subject:
    batch = sample.batch
    species = torch.nn.functional.one_hot(torch.cat([s.species for s in batch]), len(sample.species))
    pos = torch.cat([s.pos for s in batch])
    member = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor([len(s.pos) for s in batch]))
    common = {
        "max_radius": CUTOFF,
        "num_nodes": float(max(len(s.pos) for s in batch)),
        "num_neighbors": sample.mean_neighbors,
    }

    def started() -> torch.nn.Module:
        model = build(**common, **options)
        with torch.no_grad():
            for parameter in model.parameters():
                if not parameter.any():  # v2106 starts with convolutions that add nothing
                    parameter.normal_(std=0.5)
        return model

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype, _ = dtype_and_device(network)
        points, species_rows = pos.to(dtype, copy=True).requires_grad_(), species.to(dtype)
        with default_dtype(dtype):
            energy = network({"pos": points, "x": species_rows, "z": species_rows, "batch": member}).squeeze(-1)
        (gradient,) = torch.autograd.grad(energy.sum(), points, create_graph=training)
        return energy, -gradient

    return Subject(name, sample, _maker(started), evaluate, "e3nn")


def gate_points_2101(*, channels: int = 32, layers: int = 3, lmax: int = 2, sample: Sample | None = None) -> Subject:
    """The network ``e3nn.nn.models.gate_points_2101.Network``."""
    from e3nn.nn.models.gate_points_2101 import Network

    hidden = o3.Irreps([(channels, (l, p)) for l in range(lmax + 1) for p in (1, -1)])
    irreps = {"irreps_in": "4x0e", "irreps_hidden": hidden, "irreps_out": "0e", "irreps_node_attr": "4x0e"}
    irreps["irreps_edge_attr"] = o3.Irreps.spherical_harmonics(lmax)
    radial = {"number_of_basis": 10, "radial_layers": 1, "radial_neurons": 64}
    about = f"e3nn, gate_points_2101, {layers} gates, {channels} channels, l <= {lmax}"
    return _points(about, Network, sample or clusters(), layers=layers, **irreps, **radial)


def simple_network_2106(*, channels: int = 32, layers: int = 3, lmax: int = 2, sample: Sample | None = None) -> Subject:
    """The network ``e3nn.nn.models.v2106.gate_points_networks.SimpleNetwork``."""
    from e3nn.nn.models.v2106.gate_points_networks import SimpleNetwork

    about = f"e3nn, v2106.SimpleNetwork, {layers} gates, {channels} channels, l <= {lmax}"
    size = {"mul": channels, "layers": layers, "lmax": lmax}
    return _points(about, partial(SimpleNetwork, "4x0e", "0e"), sample or clusters(), **size)


#: Packages that `eqlayers bench networks` knows.
PACKAGES: dict[str, Callable[..., Subject]] = {"mace": mace, "nequip": nequip, "allegro": allegro, "sevennet": sevennet}
#: Names that `eqlayers bench accelerate` knows, and the networks that it measures.
NETWORKS: dict[str, tuple[Callable[..., Subject], ...]] = {
    **{name: (make,) for name, make in PACKAGES.items()},
    "e3nn": (gate_points_2101, simple_network_2106),
}


def absent(what: str, name: str, error: ModuleNotFoundError) -> ConfigError:
    """The error if a package is not installed; ``what`` begins the sentence."""
    return ConfigError(
        f"{what} the package {error.name}, which is not installed. Install {name} in an "
        f"environment of its own (docs/howto/{name}.md says how), and run the command there."
    )
