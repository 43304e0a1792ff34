"""The line and the table of a network count every parameter once, and name the layers and their backends."""

import io
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from eqlayers import nn
from eqlayers.models import MoleculeNetwork
from eqlayers.train import LayerSummary, page
from eqlayers.train.summary import layer_cells, layer_rows, layers_in_words, summary_line, summary_table


def test_a_fit_says_its_network_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    module = SimpleNamespace(model=MoleculeNetwork(hidden="4x0e + 4x1o", layers=1, radial_hidden=(8,)), device="cpu")
    trainer = SimpleNamespace(is_global_zero=True)
    LayerSummary().on_fit_start(trainer, module)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("network: MoleculeNetwork on cpu, ")
    assert re.search(r", \d+ equivariant layers with backend ", line)
    layers = page.network(module.model, "cpu", {}).blocks[0].rows["layers"]
    assert line.endswith(f" parameters, {layers}"), "the report counts otherwise"
    LayerSummary(whole=True).on_fit_start(trainer, module)
    assert "irreps in" in capsys.readouterr().out


@pytest.mark.kernels
def test_layer_table_counts_every_parameter_once() -> None:
    model = MoleculeNetwork(hidden="4x0e + 4x1o", layers=2, radial_hidden=(8,))
    rows = {row.path: row for row in layer_rows(model)}
    product = rows["interactions.1.product"]
    assert (product.kind, product.depth, product.num_paths) == ("TensorProductConv", 1, 2)  # to scalars only
    assert product.irreps_in == "4x0e+4x1o × 1x0e+1x1o"
    assert product.backend == "cpu"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(model))
    total = sum(parameter.numel() for parameter in model.parameters())
    outside = total - sum(row.parameters for row in rows.values() if row.depth == 0)
    assert outside == model.embedding.weight.numel()
    assert f"{total:,} parameters, {outside:,} of them" in console.export_text()


def test_layers_inside_layers_are_indented_and_counted_once() -> None:
    """Layers below these have no row: they are part of them."""
    inner = torch.nn.Sequential(nn.Linear("2x0e", "3x0e"))
    outer = torch.nn.ModuleDict({"whole": nn.Linear("2x0e", "2x0e"), "plain": torch.nn.Linear(2, 2)})
    outer["whole"].part = inner
    inner[0].deeper = nn.Linear("4x0e", "4x0e")
    rows = layer_rows(outer)
    assert [(row.path, row.depth, row.parameters) for row in rows] == [
        ("whole", 0, 4 + 6 + 16),
        ("whole.part.0", 1, 22),
    ]
    assert [cells[0] for cells in layer_cells(rows, "- ")] == ["whole", "- 0"]
    assert layers_in_words(rows).startswith("1 equivariant layer with backend ")
    assert summary_line(torch.nn.Linear(2, 2)) == "network: Linear on cpu, 6 parameters, no equivariant layers"
