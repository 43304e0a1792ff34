"""A table of the equivariant layers: irreps, paths, parameters and backend of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rich.table
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from torch import nn

from ..core.checks import check_device, check_flag, check_module
from ..pages.page import Table

HEADINGS = ("layer", "class", "irreps in", "irreps out", "backend", "paths", "parameters")
IRREPS_IN = ("irreps_in", "irreps_in1", "irreps_in2")


@dataclass(frozen=True)
class LayerRow:
    """One equivariant layer.

    Attributes:
        path: Name inside the model.
        depth: 0, or 1 for a layer directly inside another one.
        kind: Class.
        irreps_in: Irreps of its inputs; two inputs are joined by a cross.
        irreps_out: Irreps of its output.
        num_paths: Paths (instructions), or None where the layer has none.
        parameters: Learned numbers, including layers inside it.
        backend: The backend that runs it on its device, or None where there is no choice.
    """

    path: str
    depth: int
    kind: str
    irreps_in: str
    irreps_out: str
    num_paths: int | None
    parameters: int
    backend: str | None


def count_parameters(module: nn.Module) -> int:
    """Number of parameters that are learned."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def layer_rows(model: nn.Module, device: torch.device | str = "cpu") -> list[LayerRow]:
    """The layers of a model that state irreps, and those directly inside them; deeper ones are part of these.

    Args:
        model: Any module.
        device: Where it will run; the backend depends on it.

    Returns:
        One row a layer, in the order of ``named_modules``.

    Example:
        >>> layer_rows(nn.Linear(2, 2))
        []
    """
    check_module("model", model)
    check_device("device", device)
    rows: list[LayerRow] = []
    equivariant: list[str] = []
    for path, module in model.named_modules():
        inputs = [str(getattr(module, name)) for name in IRREPS_IN if hasattr(module, name)]
        if not inputs or not hasattr(module, "irreps_out"):
            continue
        depth = sum(path.startswith(outer) for outer in equivariant)
        equivariant.append(f"{path}." if path else "")
        if depth > 1:
            continue
        irreps = " × ".join(inputs), str(module.irreps_out)
        numbers = getattr(module, "num_paths", None), count_parameters(module)
        rows.append(LayerRow(path, depth, type(module).__name__, *irreps, *numbers, _backend(module, device)))
    return rows


def _backend(module: Any, device: torch.device | str) -> str | None:
    selected = getattr(module, "selected_backend", None)
    if callable(selected):
        chosen = selected(torch.device(device))
        return None if chosen is None else str(chosen)
    return getattr(module, "backend", None)


def layer_cells(rows: Sequence[LayerRow], indent: str = "  ") -> list[tuple[str, ...]]:
    """The rows as texts, a layer inside another one behind ``indent``."""
    cells = list[tuple[str, ...]]()
    for row in rows:
        name = f"{indent}{row.path.rpartition('.')[2]}" if row.depth else row.path or row.kind
        numbers = "-" if row.num_paths is None else str(row.num_paths), f"{row.parameters:,}"
        cells.append((name, row.kind, row.irreps_in, row.irreps_out, row.backend or "-", *numbers))
    return cells


def summary_table(model: nn.Module, device: torch.device | str = "cpu") -> rich.table.Table:
    """The rows and totals as a Rich table.

    Example:
        >>> summary_table(nn.Linear(2, 2)).caption
        '6 parameters, 6 of them in no equivariant layer; device cpu'
    """
    rows = layer_rows(model, device)
    total = count_parameters(model)
    table = Table(HEADINGS, layer_cells(rows), left=5).rich(f"{type(model).__name__}: equivariant layers")
    for column in table.columns:
        column.overflow, column.no_wrap = "fold", column.justify == "right"
    rest = total - sum(row.parameters for row in rows if row.depth == 0)
    table.caption = f"{total:,} parameters, {rest:,} of them in no equivariant layer; device {device}"
    table.caption_justify = "left"
    return table


def layers_in_words(rows: Sequence[LayerRow]) -> str:
    """The number of layers, without the layers inside them, and their backends."""
    whole = [row for row in rows if row.depth == 0]
    if not whole:
        return "no equivariant layers"
    counts = Counter(row.backend for row in whole if row.backend)
    backends = f" with backend {', '.join(f'{name} ({n})' for name, n in counts.most_common())}" if counts else ""
    return f"{len(whole)} equivariant layer{'' if len(whole) == 1 else 's'}{backends}"


def summary_line(model: nn.Module, device: torch.device | str = "cpu") -> str:
    """Network, numbers of layers and parameters, and the backends of the layers, in one line."""
    layers, where = layers_in_words(layer_rows(model, device)), torch.device(device)
    name = f" ({torch.cuda.get_device_name(where)})" if where.type == "cuda" else ""
    return f"network: {type(model).__name__} on {device}{name}, {count_parameters(model):,} parameters, {layers}"


class LayerSummary(Callback):
    """Says in one line what is trained when training starts, or prints the table of layers.

    Args:
        whole: Whether to print the table.

    Raises:
        ConfigError: ``whole`` is no bool.
    """

    def __init__(self, whole: bool = False) -> None:
        self.whole = check_flag("whole", whole)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print once, on the first process."""
        if not trainer.is_global_zero:
            return
        model: nn.Module = pl_module.model  # type: ignore[assignment]
        if not self.whole:
            print(summary_line(model, pl_module.device), flush=True)
            return
        table = summary_table(model, pl_module.device)
        terminal = Console()
        console = terminal if terminal.is_terminal else Console(width=120)  # files are not narrow
        console.print(table if table.row_count else f"{type(model).__name__}: {table.caption}")
