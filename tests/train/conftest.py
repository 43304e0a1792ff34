"""A small invariant network with the constructor-independent interface of the real one, and quick runs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor, nn

from eqlayers.data import MoleculeDataModule
from eqlayers.train import EMA, PropertyModule, trainer_options

NOISE = (  # of Lightning, about machine and small data
    "ignore:.*does not have many workers",
    "ignore:.*smaller than the logging interval",
    "ignore:.*is deprecated, use .isinstance",
    "ignore:Checkpoint directory",
    "ignore:.*GPU available but not used",
    "ignore:.*multiple `ModelCheckpoint` callbacks",
)


def pytest_itemcollected(item: pytest.Item) -> None:
    for filter_ in NOISE:
        item.add_marker(pytest.mark.filterwarnings(filter_))


class PairNetwork(nn.Module):
    """Sums a learned function of species and distance over edges: enough to learn, far from good."""

    def __init__(self, species: tuple[int, ...] = (1, 6, 7, 8, 9), width: int = 16, cutoff: float = 5.0) -> None:
        super().__init__()
        self.species, self.cutoff, self.pooling = tuple(species), cutoff, "sum"
        self.embedding = nn.Embedding(100, width)
        self.radial = nn.Linear(8, width)
        self.out = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("shifts", torch.zeros(100, dtype=torch.float64))
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("table", torch.arange(3000))  # an integer table, as index lists are

    def set_statistics(self, shifts: Mapping[int, float], scale: float, mean_neighbors: float) -> None:
        self.scale.fill_(scale)
        for number, value in shifts.items():
            self.shifts[number] = value

    def forward(
        self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> Tensor:
        assert batch is not None
        assert num_graphs is not None
        src, dst = edge_index
        length = (pos[src] - pos[dst]).norm(dim=-1, keepdim=True)
        basis = torch.exp(-((length - torch.linspace(0.8, self.cutoff, 8)) ** 2) * 4)
        message = self.embedding(z[src]) * self.radial(basis)
        atoms = self.embedding(z).index_add(0, dst, message) / 4
        energies = self.out(atoms).squeeze(-1).double() * self.scale + self.shifts[z]
        return torch.zeros(num_graphs, dtype=torch.float64).index_add(0, batch, energies)


@pytest.fixture(scope="session")
def network_class() -> type[PairNetwork]:
    return PairNetwork


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # set back by the fixture of all tests


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("neighbors")


@pytest.fixture(scope="session")
def make_data(cache: Path) -> Callable[..., MoleculeDataModule]:
    def make(**options: Any) -> MoleculeDataModule:
        return MoleculeDataModule(**{"limit_train": 96, "batch_size": 32, "cache_dir": str(cache)} | options)

    return make


@pytest.fixture(scope="session")
def make_run_in(make_data: Callable[..., MoleculeDataModule]) -> Callable[..., Any]:
    """Build (trainer, module, data) in a folder with a fixed seed; one epoch is three steps."""

    def make(
        folder: Path, decay: float = 0.9, callbacks: tuple[Any, ...] = (), data: Any = None, **options: Any
    ) -> tuple[Trainer, PropertyModule, MoleculeDataModule]:
        seed_everything(7, verbose=False)
        hparams = {name: options.pop(name) for name in ("learning_rate", "warmup_steps", "loss") if name in options}
        module = PropertyModule(PairNetwork(), **{"learning_rate": 1e-2, "warmup_steps": 2} | hparams)
        parts = trainer_options(folder, facts={"seed": 7}, progress=False)
        parts["callbacks"] += [EMA(decay), *callbacks]
        settings = {"max_epochs": 3, "accelerator": "cpu", "log_every_n_steps": 1} | parts | options
        return Trainer(**settings), module, data or make_data()

    return make


@pytest.fixture
def make_run(tmp_path: Path, make_run_in: Callable[..., Any]) -> Callable[..., Any]:
    """`make_run_in` below the folder of the test."""
    return lambda folder="run", *args, **options: make_run_in(tmp_path / folder, *args, **options)
