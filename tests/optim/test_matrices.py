"""Matrices among weights: of every layer, of e3nn's, and of layers of one's own."""

import math
from itertools import islice
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from eqlayers import FullyConnectedTensorProduct, Linear, SO3Scale, TensorProduct
from eqlayers.errors import ConfigError
from eqlayers.models import MACE, TFN, Equiformer, NequIP
from eqlayers.nn import SO2Convolution, SO2Linear, SpeciesLinear, SymmetricContraction
from eqlayers.optim import matrices_of, parameter_groups
from eqlayers.optim.matrices import shapes_of

IRREPS = "6x0e + 4x1o + 3x0e"


def parts(module: Any) -> list[Tensor]:
    """The matrices of the weights of a layer, as `matrices_of` tells them."""
    flat = module.weight.detach().flatten()
    shapes = shapes_of(module)["weight"]
    return [part.view(shape) for part, shape in zip(flat.split(list(map(math.prod, shapes))), shapes, strict=True)]


@pytest.mark.parametrize("cls", [Linear, o3.Linear])
def test_a_linear_map_has_a_matrix_for_each_path(cls: Any) -> None:
    layer = cls(IRREPS, "5x0e + 2x1o", biases=True)
    views = list(islice(layer.weight_views(), 3))  # e3nn's fails for the bias
    assert [tuple(part.shape) for part in parts(layer)] == [(6, 5), (4, 2), (3, 5)]
    assert all(torch.equal(part, view) for part, view in zip(parts(layer), views, strict=True))
    assert shapes_of(layer)["bias"] == [(5,)]


@pytest.mark.parametrize("cls", [Linear, o3.Linear])
def test_channels_before_the_features_have_matrices_of_their_own(cls: Any) -> None:
    layer = cls(IRREPS, "5x0e", f_in=2, f_out=3)
    (view, _) = layer.weight_views()
    assert torch.equal(torch.stack(parts(layer)[::2]).view(2, 3, 6, 5), view)


@pytest.mark.parametrize("cls", [FullyConnectedTensorProduct, o3.FullyConnectedTensorProduct])
def test_a_fully_connected_path_is_a_matrix_from_pairs_to_results(cls: Any) -> None:
    layer = cls("3x0e + 2x1o", "2x0e + 1o", "4x0e + 2x1o")
    expected = [view.flatten(0, 1) for view in layer.weight_views()]
    assert all(torch.equal(part, view) for part, view in zip(parts(layer), expected, strict=True))


def test_pairs_within_one_input_have_matrices() -> None:
    layer = o3.TensorSquare("4x0e", "3x0e")
    assert shapes_of(layer) == {"weight": [(6, 3), (4, 3)]}
    assert all(torch.equal(part, view) for part, view in zip(parts(layer), layer.weight_views(), strict=True))


@pytest.mark.parametrize("cls", [TensorProduct, o3.TensorProduct])
def test_weights_of_single_products_are_vectors(cls: Any) -> None:
    layer = cls("4x0e", "1o", "4x1o", [(0, 0, 0, "uvu", True)])
    assert shapes_of(layer) == {"weight": [(4,)]}


def test_species_have_matrices_of_their_own() -> None:
    layer = SpeciesLinear(IRREPS, "5x0e + 2x1o", 3)
    assert shapes_of(layer)["weight"] == [(6, 5), (4, 2), (3, 5)] * 3


def test_orders_of_a_convolution_in_frames_have_matrices() -> None:
    for layer in (SO2Linear("3x0e + 2x1o", "4x0e + 2x1o"), SO2Convolution("3x0e + 2x1o", "4x0e + 2x1o")):
        expected = [matrix for _, views in layer.weight_views() for matrix in views]
        assert all(torch.equal(part, view) for part, view in zip(parts(layer), expected, strict=True))


def test_other_parameters_are_told_by_their_axes() -> None:
    layer = SymmetricContraction("2x0e + 2x1o", "2x0e", correlation=2, num_elements=3)
    assert all(shapes == [(p.numel(),)] for p, shapes in matrices_of(layer).items())
    assert [group["weight_decay"] for group in parameter_groups(layer, 0.1)] == [0.1]
    assert shapes_of(nn.Linear(3, 2)) == {"weight": [(2, 3)], "bias": [(2,)]}
    assert list(shapes_of(SO3Scale("2x0e + 1o")).values()) == [[(3,)]]


@pytest.mark.parametrize("network", [MACE, NequIP, Equiformer, TFN])
def test_nearly_all_numbers_of_a_network_are_in_matrices(network: Any) -> None:
    options = {"mmax": 1} if network is Equiformer else {"lmax": 2}
    shapes = matrices_of(network([1, 8], hidden="16x0e + 16x1o", layers=2, **options))
    inside = sum(math.prod(shape) for those in shapes.values() for shape in those if len(shape) == 2)
    assert inside > 0.98 * sum(parameter.numel() for parameter in shapes if parameter.dim() < 3)


def test_a_shared_parameter_is_listed_once() -> None:
    layer = Linear("4x0e", "4x0e")
    assert list(matrices_of(nn.ModuleList([layer, nn.Sequential(layer)])).values()) == [[(4, 4)]]


class Own(nn.Module):
    """A layer with a flat weight whose matrices it tells."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self.weight, self.told = nn.Parameter(torch.randn(12)), told

    def weight_matrices(self) -> dict[str, Any]:
        return {"weight": self.told}


def test_a_layer_of_ones_own_tells_its_matrices() -> None:
    assert list(matrices_of(Own([(2, 4), (4,)])).values()) == [[(2, 4), (4,)]]


@pytest.mark.parametrize("told", [(12,), [12], "abc", None, [(3.0, 4.0)], [(-2, -6)], [(2, 2, 3)]])
def test_matrices_are_told_as_shapes(told: Any) -> None:
    with pytest.raises(ConfigError, match=r"weight_matrices\(\) of Own must return a dictionary"):
        matrices_of(Own(told))


def test_matrices_are_told_of_weights_that_a_layer_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for told in ({"weigth": [(3, 4)]}, [(3, 4)]):
        monkeypatch.setattr(Own, "weight_matrices", lambda self, told=told: told)
        with pytest.raises(ConfigError, match=r"weight_matrices\(\) of Own must return a dictionary"):
            matrices_of(Own(None))


@pytest.mark.parametrize("told", [[(2, 4)], [(2, 4), (5,)], []])
def test_matrices_must_cover_the_weights(told: Any) -> None:
    with pytest.raises(ConfigError, match=r"weight_matrices\(\) of Own must cover the 12 numbers of weight"):
        matrices_of(Own(told))


def test_matrices_alone_are_decayed() -> None:
    layers = {"linear": nn.Linear(3, 3), "norm": nn.LayerNorm(3), "flat": o3.Linear("2x0e+1o", "2x0e+1o", biases=True)}
    model = nn.ModuleDict(layers)
    groups = {group["weight_decay"]: group["params"] for group in parameter_groups(model, 0.1)}
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert {names[parameter] for parameter in groups[0.1]} == {"linear.weight", "flat.weight"}
    assert {names[parameter] for parameter in groups[0.0]} == {"linear.bias", "norm.weight", "norm.bias", "flat.bias"}
