"""Small stand-ins with the structure of NequIP's scatter and of MACE's interaction blocks, and a model of both."""

import copy
import io
import pickle
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from tests.cases import e3nn_defaults

# its networks are other packages', of which an environment has one or none; `nox` makes them
collect_ignore = [] if any(map(find_spec, ("mace", "nequip", "sevenn"))) else ["test_radial.py"]

IRREPS = ("4x0e + 4x1o", "0e + 1o", "4x0e + 4x0e + 4x1o + 4x1o")
PATHS = [(0, 0, 0, "uvu", True), (1, 1, 1, "uvu", True), (0, 1, 2, "uvu", True), (1, 0, 3, "uvu", True)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An environment collects what its packages can run: `needs("mace")` of a test is one that it may not have."""
    absent = [item for item in items if not all(find_spec(mark.args[0]) for mark in item.iter_markers("needs"))]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


@pytest.fixture(autouse=True, scope="module")
def plain_einsums() -> Iterator[None]:
    """Products of e3nn multiply in the order that is written: to look for a better one is half of making a product."""
    with e3nn_defaults(optimize_einsums=False):
        yield


def scatter(src: Tensor, index: Tensor, dim: int, dim_size: int) -> Tensor:
    assert dim == 0
    return src.new_zeros(dim_size, src.shape[1]).index_add(0, index, src)


class TensorProductScatter(nn.Module):
    """NequIP's product and scatter."""

    def __init__(self, feature_irreps_in: Any, irreps_edge_attr: Any, irreps_mid: Any, instructions: Any) -> None:
        super().__init__()
        self.feature_irreps_in = feature_irreps_in
        self.tp = o3.TensorProduct(
            feature_irreps_in, irreps_edge_attr, irreps_mid, instructions, shared_weights=False, internal_weights=False
        )
        self.model_dtype = torch.get_default_dtype()

    def forward(self, x: Tensor, edge_attr: Tensor, edge_weight: Tensor, edge_dst: Tensor, edge_src: Tensor) -> Tensor:
        edge_features = self.tp(x[edge_src], edge_attr, edge_weight)
        return scatter(edge_features, edge_dst, dim=0, dim_size=x.size(0))


class Block(nn.Module):
    """A block like MACE's interaction blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_up = o3.Linear(IRREPS[0], IRREPS[0])
        self.conv_tp = o3.TensorProduct(*IRREPS, instructions=PATHS, shared_weights=False, internal_weights=False)
        self.conv_tp_weights = nn.Linear(3, self.conv_tp.weight_numel)
        self.linear = o3.Linear(IRREPS[2], IRREPS[0])

    def forward(self, node_feats: Tensor, edge_attrs: Tensor, edge_feats: Tensor, edge_index: Tensor) -> Tensor:
        node_feats = self.linear_up(node_feats)
        tp_weights = self.conv_tp_weights(edge_feats)
        if hasattr(self, "conv_fusion"):
            message = self.conv_tp(node_feats, edge_attrs, tp_weights, edge_index)
        else:
            mji = self.conv_tp(node_feats[edge_index[0]], edge_attrs, tp_weights)
            message = scatter(mji, index=edge_index[1], dim=0, dim_size=node_feats.shape[0])
        return self.linear(message)


class SpecialBlock(Block):
    """A block that another one derives from, with a forward around it."""

    def forward(self, node_feats: Tensor, edge_attrs: Tensor, edge_feats: Tensor, edge_index: Tensor) -> Tensor:
        return 2 * super().forward(node_feats, edge_attrs, edge_feats, edge_index)


class OneWayBlock(Block):
    """A block whose own forward knows the edges' product only."""

    def forward(self, node_feats: Tensor, edge_attrs: Tensor, edge_feats: Tensor, edge_index: Tensor) -> Tensor:
        mji = self.conv_tp(node_feats[edge_index[0]], edge_attrs, self.conv_tp_weights(edge_feats))
        return self.linear(scatter(mji, index=edge_index[1], dim=0, dim_size=node_feats.shape[0]))


class Network(nn.Module):
    """Energies of atoms: a scatter, two blocks and a self-connection."""

    def __init__(self) -> None:
        super().__init__()
        self.radial = nn.Linear(3, 16)
        self.scatter = TensorProductScatter(*IRREPS, PATHS)
        self.mix = o3.Linear(IRREPS[2], IRREPS[0])
        self.skip = o3.FullyConnectedTensorProduct(IRREPS[0], "2x0e", IRREPS[0])
        self.blocks = nn.ModuleList([Block(), SpecialBlock()])
        self.readout = o3.Linear(IRREPS[0], "0e")

    def forward(self, pos: Tensor, attrs: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        vector = pos[dst] - pos[src]
        edge_attrs = o3.spherical_harmonics([0, 1], vector, True, normalization="component")
        edge_feats = torch.cat([vector.norm(dim=-1, keepdim=True) ** k for k in (1, 2, 3)], -1).sin()
        x = torch.cat([attrs, attrs.flip(-1), attrs.new_zeros(len(attrs), 12)], -1)
        x = self.mix(self.scatter(x, edge_attrs, self.radial(edge_feats), edge_dst=dst, edge_src=src))
        x = x + self.skip(x, attrs)
        for block in self.blocks:
            x = x + block(x, edge_attrs, edge_feats, edge_index)
        return self.readout(x)


class Inputs:
    """Positions, attributes and edges of six atoms; the last one has no neighbours."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(7)
        self.pos = torch.randn(6, 3, generator=generator, dtype=torch.float64).to(dtype)
        self.attrs = torch.randn(6, 2, generator=generator, dtype=torch.float64).to(dtype)
        self.edges = torch.tensor([(i, j) for i in range(5) for j in range(5) if i != j]).T

    def energy_and_forces(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        pos = self.pos.clone().requires_grad_()
        energy = model(pos, self.attrs, self.edges)
        (forces,) = torch.autograd.grad(-energy.sum(), pos, create_graph=True)
        return energy, forces

    def results(self, model: nn.Module) -> dict[str, Tensor]:
        """Energies, forces, and the gradients of a loss of both."""
        energy, forces = self.energy_and_forces(model)
        named = dict(model.named_parameters())
        grads = torch.autograd.grad(energy.square().sum() + forces.square().sum(), list(named.values()))
        return {"energy": energy, "forces": forces, **dict(zip(named, grads, strict=True))}


@pytest.fixture
def float64() -> Iterator[None]:
    """e3nn rounds its coefficients to the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def network(float64: None) -> Network:
    return Network()


@pytest.fixture
def inputs() -> Inputs:
    return Inputs()


@pytest.fixture
def standins() -> dict[str, type]:
    return {c.__name__: c for c in (TensorProductScatter, Block, SpecialBlock, OneWayBlock, Network, Inputs)}


def assert_close(results: dict[str, Tensor], expected: dict[str, Tensor], scale: float = 1e3) -> None:
    """Equal to rounding: ``scale`` roundings of the largest element, for sums over edges, channels and layers."""
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        error = float((results[name] - value).detach().abs().max())
        assert error <= scale * torch.finfo(value.dtype).eps * float(value.detach().abs().max()), name


def copies(model: nn.Module) -> tuple[Any, Any, Any]:
    """Copies of a model by deepcopy, by pickle and through a file."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)


@pytest.fixture
def close() -> Any:
    return assert_close
