"""Gather, product and scatter of NequIP and MACE as one call, on stand-ins. Their numbers: test_networks.py."""

import copy
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import nn

from eqlayers.errors import ConfigError, IndexRangeError
from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.convolution import AcceleratedConvolution, AcceleratedMessages
from eqlayers.integrations.kinds.product import AcceleratedLinear, AcceleratedTensorProduct

CONVOLUTIONS = ["scatter", "blocks.0.conv_tp", "blocks.1.conv_tp"]


def test_what_is_replaced_by_what(network: Any) -> None:
    report = accelerate(network)
    kinds = {row.path: row.replacement for row in report.replaced}
    assert {path: kinds[path] for path in CONVOLUTIONS} == {
        "scatter": "AcceleratedScatter",
        "blocks.0.conv_tp": "AcceleratedConvolution",
        "blocks.1.conv_tp": "AcceleratedConvolution",
    }
    assert [row.path for row in report.rows if row.target == "convolution"] == CONVOLUTIONS
    assert not report.skipped
    assert "scatter.tp" not in kinds
    assert [block.conv_fusion for block in network.blocks] == ["eqlayers", "eqlayers"]
    assert not any(hasattr(block, "conv_fusion") for block in deaccelerate(network).blocks)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_other_backends(network: Any, inputs: Any, close: Any, backend: str) -> None:
    before = inputs.results(network)
    report = accelerate(network, backend=backend)
    assert {row.backend for row in report.replaced if row.target == "convolution"} == {backend}
    close(inputs.results(network), before)


def test_the_product_inside_a_scatter_goes_on_to_work(network: Any, inputs: Any) -> None:
    product = network.scatter.tp
    accelerate(network)
    new = network.scatter.tp
    assert type(new) is AcceleratedTensorProduct
    assert new.weight_numel == product.weight_numel == 16
    assert network.scatter.feature_irreps_in == "4x0e + 4x1o"
    x, y, w = torch.randn(3, 16), torch.randn(3, 4), torch.randn(3, 16)
    torch.testing.assert_close(new(x, y, w), product(x, y, w))


@pytest.mark.parametrize("edges", [torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[2], [4]])])
def test_few_edges(network: Any, inputs: Any, edges: torch.Tensor) -> None:
    before = network(inputs.pos, inputs.attrs, edges)
    accelerate(network)
    after = network(inputs.pos, inputs.attrs, edges)
    torch.testing.assert_close(after, before)


def test_edges_are_read_anew_in_every_call(network: Any, inputs: Any) -> None:
    """A tensor that gets other edges: nothing of the former sorting is kept."""
    plain = copy.deepcopy(network)
    accelerate(network)
    edges = inputs.edges.clone()
    network(inputs.pos, inputs.attrs, edges)
    edges.copy_(edges.flip(0)[:, torch.randperm(edges.shape[1])])
    edges[:, 0] = torch.tensor([1, 5])
    torch.testing.assert_close(network(inputs.pos, inputs.attrs, edges), plain(inputs.pos, inputs.attrs, edges))


def test_an_edge_that_leads_nowhere_is_refused(network: Any, inputs: Any) -> None:
    accelerate(network)
    block = network.blocks[0]
    with pytest.raises(IndexRangeError):
        block.conv_tp(torch.randn(4, 16), torch.randn(2, 4), torch.randn(2, 16), torch.tensor([[0, 1], [0, 4]]))


def test_products_alone(network: Any, inputs: Any, close: Any) -> None:
    """Without the target 'convolution' the patterns stay, and their products are replaced."""
    before = inputs.results(network)
    report = accelerate(network, targets=("product", "linear"))
    assert {"scatter.tp", "blocks.0.conv_tp"} <= {row.path for row in report.replaced if row.target == "product"}
    assert not hasattr(network.blocks[0], "conv_fusion")
    close(inputs.results(network), before)


def test_a_block_that_knows_one_way_only(standins: Any, inputs: Any, float64: None) -> None:
    """It does not ask for a convolution, so its product is one by lazy rows; see test_lazy.py."""
    block = standins["OneWayBlock"]()
    report = accelerate(block)
    (row,) = (row for row in report.rows if row.path == "conv_tp")
    assert (row.target, row.replacement) == ("convolution", "AcceleratedMessages")
    assert not hasattr(block, "conv_fusion")


def test_a_block_that_is_fused_already(standins: Any) -> None:
    block = standins["Block"]()
    block.conv_fusion = "another"
    reasons = [row.reason for row in accelerate(block).skipped]
    assert reasons[0] == "has a fused convolution already"


@pytest.mark.parametrize("where", ["conv_tp", "block.other"])
def test_a_product_that_sits_elsewhere_too(standins: Any, inputs: Any, where: str) -> None:
    """Elsewhere it is called without edges, so it stays a product; and it stays shared."""
    model = nn.Module()
    model.block = standins["Block"]()
    parent, _, name = where.rpartition(".")
    model.get_submodule(parent).add_module(name, model.block.conv_tp)
    (left,) = accelerate(model).skipped
    assert "sits elsewhere too, where it is no convolution" in left.reason
    assert model.get_submodule(where) is model.block.conv_tp
    assert type(model.block.conv_tp) is AcceleratedTensorProduct
    assert not hasattr(model.block, "conv_fusion")


def test_blocks_that_share_a_product(standins: Any) -> None:
    first, second = standins["Block"](), standins["SpecialBlock"]()
    second.conv_tp = first.conv_tp
    accelerate(nn.ModuleList([first, second]))
    assert first.conv_tp is second.conv_tp
    assert type(first.conv_tp) is AcceleratedConvolution
    assert first.conv_fusion == second.conv_fusion == "eqlayers"


def test_hooks_on_the_product_keep_it(standins: Any) -> None:
    """They would see nodes where they saw edges."""
    block = standins["Block"]()
    block.conv_tp.register_forward_hook(lambda module, args, result: None)
    report = accelerate(block)
    assert "hooks that would not see the edges" in report.skipped[0].reason
    assert type(block.conv_tp) is AcceleratedTensorProduct


def test_a_block_by_itself(standins: Any) -> None:
    """It is changed inside, so it needs no place."""
    block = standins["Block"]()
    assert accelerate(block).model is block
    assert type(block.conv_tp) is AcceleratedConvolution
    assert type(block.linear) is AcceleratedLinear


def test_a_scatter_that_holds_more(standins: Any) -> None:
    model = nn.ModuleList([standins["TensorProductScatter"]("2x0e", "0e", "2x0e", [(0, 0, 0, "uvu", True)])])
    model[0].scale = nn.Parameter(torch.ones(()))
    report = accelerate(model)
    assert [row.reason for row in report.skipped] == ["holds more than its product"]
    assert type(model[0].tp) is AcceleratedMessages


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 cannot compile e3nn's spherical harmonics")
def test_compiled(network: Any, inputs: Any) -> None:
    """Compiled before or after: the compiled model follows what is in it now, without graph breaks."""
    before = network(inputs.pos, inputs.attrs, inputs.edges)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs.pos, inputs.attrs, inputs.edges), before)
    report = accelerate(compiled)
    assert {row.path.split(".")[0] for row in report.replaced} == {"_orig_mod"}
    seen: list[int] = []
    handle = network.scatter.register_forward_hook(lambda *args: seen.append(1))
    torch.testing.assert_close(compiled(inputs.pos, inputs.attrs, inputs.edges), before)
    handle.remove()
    assert seen
    deaccelerate(compiled)
    torch.testing.assert_close(compiled(inputs.pos, inputs.attrs, inputs.edges), before)


def test_scripted(network: Any, inputs: Any, standins: Any) -> None:
    """TorchScript has operators for products and linear maps, none for the fused convolutions: the error names them."""
    scatter = standins["TensorProductScatter"]("2x0e", "0e", "2x0e", [(0, 0, 0, "uvu", True)])
    for model in (nn.ModuleList([scatter]), nn.ModuleList([network.blocks[0]])):
        accelerate(model)
        with pytest.raises(
            ConfigError, match=r"must hold no replacement but.*targets=\('product', 'linear', 'harmonics'\)"
        ):
            torch.jit.script(model)
    model = nn.Sequential(o3.Linear("2x0e + 1o", "3x0e + 1o"), o3.TensorSquare("3x0e + 1o"))
    x = torch.randn(4, 5)
    accelerate(model)
    expected = model(x)
    torch.testing.assert_close(torch.jit.script(copy.deepcopy(model))(x), expected)


def test_the_product_of_a_message_passing_network(close: Any, float64: None) -> None:
    """torch-geometric gathers and sums by itself; the product in between is replaced."""
    geometric = pytest.importorskip("torch_geometric.nn")

    class Conv(geometric.MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="sum")
            self.tp = o3.TensorProduct(
                "4x0e + 4x1o", "0e + 1o", "4x0e + 4x1o", [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)],
                shared_weights=False, internal_weights=False,
            )  # fmt: skip
            self.radial = nn.Linear(1, self.tp.weight_numel)
            self.linear = o3.Linear("4x0e + 4x1o", "2x0e + 1o")

        def forward(self, x: torch.Tensor, pos: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.linear(self.propagate(edge_index, x=x, pos=pos))

        def message(self, x_j: torch.Tensor, pos_i: torch.Tensor, pos_j: torch.Tensor) -> torch.Tensor:
            vector = pos_j - pos_i
            attrs = o3.spherical_harmonics([0, 1], vector, True, normalization="component")
            return self.tp(x_j, attrs, self.radial(vector.norm(dim=-1, keepdim=True)))

    conv = Conv()
    x, pos = torch.randn(5, 16), torch.randn(5, 3).requires_grad_()
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])

    def results() -> dict[str, torch.Tensor]:
        energy = conv(x, pos, edges).square().sum()
        (forces,) = torch.autograd.grad(energy, pos, create_graph=True)
        grads = torch.autograd.grad(forces.square().sum(), list(conv.parameters()))
        return {"energy": energy, "forces": forces, **{str(i): g for i, g in enumerate(grads)}}

    before = results()
    assert {row.path for row in accelerate(conv).replaced} == {"tp", "linear"}
    close(results(), before)
