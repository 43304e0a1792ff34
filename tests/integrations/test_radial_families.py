"""Packages with radial networks that become tables: the lengths that they hand on, and modules that must stay."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from eqlayers.integrations.radial_families import FAMILIES, PairSpecies, refuse_calls, refuse_holder
from tests.each import each

MACE, NEQUIP, SEVENNET = FAMILIES
LENGTHS = torch.tensor([1.0, 2.5, 1.5])


def named(name: str, **attributes: Any) -> nn.Module:
    """A module of a class of that name; other packages are recognised so."""
    module = type(name, (nn.Module,), {})()
    for key, value in attributes.items():
        setattr(module, key, value)
    return module


def test_mace_hands_on_lengths_and_pairs_of_species() -> None:
    """A pair in either order has one table where functions know no direction, and two where maps of both ends do."""
    embedding = SimpleNamespace(apply_cutoff=False, cutoff_fn=lambda lengths: lengths / 10)
    species, edges = torch.eye(3)[[0, 2, 1]], torch.tensor([[0, 1, 2], [1, 0, 2]])  # of three atoms
    arguments = (embedding, 1.0, LENGTHS[:, None], species, edges, torch.tensor([1, 6, 8]))
    lengths, envelope = MACE.lengths(*arguments)
    assert (lengths.dtype, lengths.flatten().tolist()) == (torch.float64, LENGTHS.tolist())
    assert torch.equal(envelope, LENGTHS[:, None] / 10)
    ordered, _ = MACE.lengths(*arguments, pairs="ordered")
    assert ordered[:, 1].tolist() == [0 * 3 + 2, 2 * 3 + 0, 1 * 3 + 1]
    either, _ = MACE.lengths(*arguments, pairs="either order")
    assert either[:, 1].tolist() == [0 * 3 + 2, 0 * 3 + 2, 1 * 3 + 1]
    del embedding.apply_cutoff  # of older releases, which multiply by the envelope before the network
    assert MACE.lengths(*arguments)[1] is None


def test_functions_are_those_that_the_packages_compute() -> None:
    def of_lengths(lengths: Tensor) -> Tensor:
        return torch.cat([lengths, lengths**2], 1)

    plain = MACE.functions(lambda lengths, *others: (of_lengths(lengths), None), LENGTHS)
    assert torch.equal(plain, of_lengths(LENGTHS[:, None]))
    pairs = PairSpecies(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]), torch.tensor([1, 8]))

    def with_species(lengths: Tensor, attrs: Tensor, edges: Tensor, numbers: Tensor) -> tuple[Tensor, None]:
        return lengths * numbers[attrs[edges[0]].argmax(1)][:, None] + numbers[attrs[edges[1]].argmax(1)][:, None], None

    assert MACE.functions(with_species, LENGTHS, pairs).flatten().tolist() == [1 + 8, 2.5 * 8 + 8, 1.5 * 8 + 1]
    fields = SimpleNamespace(norm_length_field="length", edge_invariant_field="functions")

    class Encoding(SimpleNamespace):
        def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
            return {**data, "functions": of_lengths(data["length"])}

    encoding = Encoding(**vars(fields))
    assert torch.equal(NEQUIP.functions(encoding, LENGTHS), of_lengths(LENGTHS[:, None]))
    handed = NEQUIP.lengths(encoding, 4.0, {"length": LENGTHS[:, None]})
    assert handed["functions"].flatten().tolist() == (LENGTHS / 4).tolist()
    parts = SimpleNamespace(
        basis_function=lambda r: of_lengths(r[:, None]), cutoff_function=SimpleNamespace(cutoff_length=None, r_cut=4.5)
    )
    assert SEVENNET.cutoff(parts) == 4.5
    parts.cutoff_function = lambda r: r / 2
    assert torch.equal(SEVENNET.functions(parts, LENGTHS), of_lengths(LENGTHS[:, None]) * LENGTHS[:, None] / 2)


def test_factors_of_nequip_multiply_where_they_apply_to_the_functions() -> None:
    embedding = named("BesselEdgeLengthEncoding", edge_invariant_field="functions")
    modules = [
        named("ApplyFactor", in_field=name, factor=f) for name, f in (("functions", 2), ("x", 5), ("functions", 3))
    ]
    assert NEQUIP.factor(embedding, modules) == 6.0
    assert NEQUIP.factor(embedding, []) == SEVENNET.factor(embedding, modules) == 1.0


@each(
    "family, modules, reason",
    [
        (MACE, [nn.Linear(1, 1)], None),
        (MACE, [named("Attention", conv_tp_weights=1, linear_down=2)], "is joined with features of nodes in Attention"),
        (NEQUIP, [named("ScalarMLP", irreps_in=1, _init_irreps=2), named("Reader", irreps_in=1)], None),
        (NEQUIP, [named("Reader", irreps_in=1, _init_irreps=2)], "may be read by Reader, which this package does not"),
        (SEVENNET, [named("A", key_weight_input="edge_embedding"), nn.Linear(1, 1)], None),
        (SEVENNET, [named("A", key_weight_input="other")], "is not what is read as other"),
    ],
)
def test_models_that_read_the_functions_in_other_places_stay(family: Any, modules: Any, reason: str | None) -> None:
    answer = family.refuse(None, modules)
    assert answer is None if reason is None else answer.startswith(reason)


def test_networks_that_are_more_than_functions_of_lengths_stay() -> None:
    embedding, network = nn.Identity(), nn.Sequential(nn.Linear(1, 2))
    assert refuse_calls(embedding, network) is None
    handle = network[0].register_forward_pre_hook(lambda *args: None)
    assert refuse_calls(embedding, network) == "has hooks on Linear, which would see lengths and tables"
    handle.remove()
    torch.nn.utils.parametrizations.weight_norm(network[0])
    assert refuse_calls(embedding, network) is None, "tables are made of the weights as they are computed"
    embedding.forward = lambda x: x  # type: ignore[method-assign]
    assert refuse_calls(embedding, network) == "has had its forward replaced on the object"


@each("package", ["ours", "theirs"])
def test_the_caller_of_the_functions_is_of_their_package(package: str) -> None:
    embedding, holder = named("Embedding"), named("Model")
    type(embedding).__module__ = "ours.blocks"
    type(holder).forward = lambda self: None  # type: ignore[method-assign]
    type(holder).forward.__module__ = f"{package}.models"
    answer = refuse_holder(embedding, holder)
    assert answer == (None if package == "ours" else "is read by Model, whose forward is not ours's")
    assert refuse_holder(embedding, nn.Sequential(embedding)) is None
    assert refuse_holder(embedding, None) == "has no place in a model"
