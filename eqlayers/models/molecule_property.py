"""A property of molecules that `eqlayers fit` has learned: its network, its name and its unit, from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.checks import check_device
from .classes import Classes, build_part
from .saving import fill, read_content, unusable
from .structures import Structures

PREFIX = "model."  # of the weights in a checkpoint


class MoleculeProperty(nn.Module):
    """A network of molecules with what it predicts.

    Args:
        network: As :class:`eqlayers.train.PropertyModule` trains it, with ``species`` and ``cutoff``.
        name: Of the property.
        unit: Of its values.

    Example:
        >>> from eqlayers.models import MoleculeNetwork
        >>> gap = MoleculeProperty(MoleculeNetwork(["H"], hidden="2x0e + 2x1o", layers=1), "gap", "eV")
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> gap(Structures(torch.tensor([1, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.74]]), pair)).shape
        torch.Size([1])
    """

    def __init__(self, network: nn.Module, name: str, unit: str) -> None:
        super().__init__()
        self.network, self.name, self.unit = network, name, unit
        self.species, self.cutoff = tuple(map(int, network.species)), float(network.cutoff)  # type: ignore[arg-type]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the network, and of the positions that it takes."""
        return next(self.network.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def forward(self, molecules: Structures) -> Tensor:
        """Values ``[G]`` float64 in the unit, of molecules without a period."""
        values: Tensor = self.network(*molecules[:5])
        return values.double()


def load_property(
    path: str | Path, dtype: torch.dtype | None = None, device: Any = "cpu", classes: Classes | None = None
) -> MoleculeProperty | None:
    """A property from a checkpoint, in evaluation mode; None if the file is of another kind.

    Arguments and errors are as of :func:`eqlayers.models.load_potential`.

    Example:
        >>> import tempfile
        >>> torch.save({"hyper_parameters": {}}, path := f"{tempfile.mkdtemp()}/other.ckpt")
        >>> load_property(path) is None
        True
    """
    content = read_content(path)
    options = content.get("hyper_parameters") if isinstance(content, dict) else None
    saved = options.get("property") if isinstance(options, dict) else None
    if saved is None:
        return None
    state = content.get("state_dict")
    if not (isinstance(saved, dict) and {"network", "name", "unit"} <= saved.keys() and isinstance(state, dict)):
        raise unusable(path, "a description or weights are missing in it")
    if not (isinstance(name := saved["name"], str) and isinstance(unit := saved["unit"], str)):
        raise unusable(path, "name and unit of its property are no texts")
    with torch.random.fork_rng(devices=[]):  # weights are drawn and thrown away
        learned = MoleculeProperty(build_part("the network", saved["network"], classes), name, unit)
    weights = {f"network.{key.removeprefix(PREFIX)}": t for key, t in state.items() if str(key).startswith(PREFIX)}
    fill(path, learned, learned.network, weights)
    return learned.to(device=check_device("device", device), dtype=dtype).eval()
