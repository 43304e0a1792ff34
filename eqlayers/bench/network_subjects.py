"""Networks of other packages and our own, each with atoms for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ..errors import ConfigError
from ..integrations import from_mace
from .atoms import CUTOFF, SIZES, Place, clusters
from .implementation import default_dtype
from .network_nequip import allegro, nequip
from .network_sevennet import sevennet
from .subject import Subject, kind_of, quiet_warnings, representable


class _CompiledMace(torch.nn.Module):
    """Gives a compiled model inputs that require gradients, and asks for training, as MACE's calculator does.

    It cannot be compiled without.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: dict[str, Tensor], training: bool) -> Any:
        wanted = {key: given[key].detach().clone().requires_grad_() for key in ("positions", "node_attrs")}
        return self.model({**given, **wanted}, training=True)


def mace(
    *,
    hidden: str = "128x0e + 128x1o",
    lmax: int = 3,
    correlation: int = 3,
    interaction: str = "RealAgnosticResidualInteractionBlock",
    first: str | None = None,
    sizes: Sequence[int] = SIZES,
    place: Place | None = None,
    scale: float = 0.5,
    shift: float = 0.0,
    **more: Any,
) -> Subject:
    """MACE's network with two layers, on clusters of some sizes or on other atoms; see :func:`nequip`.

    Args:
        more: Further arguments of MACE's, such as ``distance_transform``.
    """
    from mace import data, modules, tools
    from mace.tools import torch_geometric
    from mace.tools.compile import prepare

    atoms = clusters(sizes) if place is None else place
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
        return representable(model)

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            return build().to(dtype)

    def compiled(dtype: torch.dtype) -> torch.nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            return _CompiledMace(torch.compile(prepare(build)().to(dtype)))

    @lru_cache(maxsize=2)
    def load(dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        numbers, table = torch.tensor(species), tools.AtomicNumberTable(species)
        kind: dict[str, Any] = {"properties": {}, "property_weights": {}}
        with default_dtype(dtype):
            items = [
                data.AtomicData.from_config(
                    data.Configuration(
                        numbers[s.species].numpy(),
                        s.pos.numpy(),
                        **kind,
                        **({} if s.cell is None else {"cell": s.cell.numpy(), "pbc": (True, True, True)}),
                    ),
                    z_table=table,
                    cutoff=atoms.cutoff,
                )
                for s in atoms.batch
            ]
            loader = torch_geometric.dataloader.DataLoader(items, batch_size=len(items), shuffle=False)
            loaded: dict[str, Tensor] = next(iter(loader)).to(device).to_dict()
        return loaded

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype, device = kind_of(network)
        kept = load(dtype, device)
        with default_dtype(dtype):
            out = network(kept | {"positions": kept["positions"].detach().clone()}, training=training)
        return out["energy"], out["forces"]

    about = f"MACE, 2 layers, {hidden}, edges to l = {lmax}, correlation {correlation}, {interaction}"
    return Subject(about, atoms, make, evaluate, "mace-torch", compiled, from_mace)


def _points(name: str, build: Callable[[float], torch.nn.Module], sizes: Sequence[int]) -> Subject:
    """A network of ``e3nn.nn.models``, which finds its edges itself."""
    place = clusters(sizes)
    batch, neighbors = place.batch, place.mean_neighbors
    species = torch.nn.functional.one_hot(torch.cat([s.species for s in batch]), len(place.species))
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
        dtype, _ = kind_of(network)
        points, kinds = pos.to(dtype, copy=True).requires_grad_(), species.to(dtype)
        with default_dtype(dtype):
            energy = network({"pos": points, "x": kinds, "z": kinds, "batch": member}).squeeze(-1)
        (gradient,) = torch.autograd.grad(energy.sum(), points, create_graph=training)
        return energy, -gradient

    return Subject(name, place, make, evaluate, "e3nn")


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


#: Packages that `eqlayers bench networks` knows.
PACKAGES: dict[str, Callable[..., Subject]] = {
    "mace": mace,
    "nequip": nequip,
    "allegro": allegro,
    "sevennet": sevennet,
}
#: What `eqlayers bench accelerate` knows: name -> the networks it measures.
NETWORKS: dict[str, tuple[Callable[..., Subject], ...]] = {
    **{name: (make,) for name, make in PACKAGES.items()},
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
