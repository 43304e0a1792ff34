"""The share of a model that `accelerate` knows, and where the rest of its parameters is."""

from typing import Any

import pytest
import torch
from e3nn import o3
from torch import nn

import eqlayers
from eqlayers.integrations import accelerate


class Foreign(nn.Module):
    """Equivariant perhaps, but nothing of e3nn's."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(torch.ones(numel))


def foreign_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def test_a_model_without_a_layer_of_e3nn_says_so() -> None:
    """Allegro is such a model: its contractions are its own."""
    model = nn.Sequential(nn.Linear(3, 4), Foreign(1200), nn.SiLU(), nn.Linear(4, 1))
    report = accelerate(model)
    coverage = report.coverage
    assert (coverage.modules, coverage.known_modules, coverage.parameters, coverage.known_parameters) == (5, 0, 1221, 0)
    assert coverage.elsewhere == ((foreign_name(Foreign), 1200), ("torch.nn.Linear", 21))
    sentence = (
        "no layer of e3nn was found: 0 of 5 modules and 0 of 1,221 parameters are in layers that eqlayers knows; "
        f"the other parameters are in {foreign_name(Foreign)} (1,200), torch.nn.Linear (21)"
    )
    assert str(coverage) == sentence
    assert str(report).splitlines() == [sentence, "0 modules replaced, 0 left"]


def test_what_eqlayers_knows_counts_replaced_or_not(network: Any) -> None:
    """A product in a scatter, a product and two linear maps per block, three more; e3nn's generated code does not."""
    network.again = network.readout
    report = accelerate(network, targets="product")
    coverage = report.coverage
    known = [network.mix, network.skip, network.readout, *(m for b in network.blocks for m in (b.linear_up, b.linear))]
    assert coverage.known_modules == 1 + 2 * 3 + 3
    assert coverage.modules == 10 + 4 + 2 * 2  # the model, radial, scatter, the list of blocks; blocks, their networks
    assert coverage.known_parameters == sum(p.numel() for m in known for p in m.parameters())
    assert coverage.parameters == sum(p.numel() for p in network.parameters())
    assert coverage.elsewhere == (("torch.nn.Linear", coverage.parameters - coverage.known_parameters),)
    again = accelerate(network, inplace=False).coverage
    assert again == coverage, "what was replaced before counts as before"


def test_parameters_of_every_kind_count_once() -> None:
    """In a layer that is compiled by itself, parametrized or TorchScript; shared; without a shape yet."""
    tied = nn.Linear(2, 2, bias=False)
    tied.weight = nn.Parameter(torch.zeros(2, 2))
    other = nn.Linear(2, 2)
    other.weight = tied.weight
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3, bias=False)))
    model = nn.ModuleList([tied, other, nn.LazyLinear(7), scripted, torch.compile(o3.Linear("2x0e", "3x0e"))])
    coverage = accelerate(model).coverage
    assert (coverage.parameters, coverage.known_parameters, coverage.known_modules) == (4 + 2 + 9 + 6, 6, 1)
    assert coverage.elsewhere == (("Sequential in TorchScript", 9), ("torch.nn.Linear", 6))
    only = accelerate(nn.Sequential(torch.jit.script(o3.Linear("2x0e", "3x0e")))).coverage
    assert (only.known_modules, only.known_parameters, only.elsewhere) == (1, 6, ())


def test_the_sentence_is_short_and_tells_the_rest() -> None:
    kinds = [type(f"Kind{number}", (Foreign,), {}) for number in range(6)]
    model = nn.ModuleList([o3.Linear("2x0e", "2x0e"), *(kind(10 * (9 - n)) for n, kind in enumerate(kinds))])
    text = str(accelerate(model).coverage)
    assert text.startswith("1 of 8 modules and 4 of 394 parameters are in layers that eqlayers knows; the other ")
    assert [f".Kind{number} (" in text for number in range(6)] == [True, True, True, False, False, False]
    assert text.endswith("and 3 more kinds of module (150)")
    bare = str(accelerate(nn.Sequential(nn.ReLU())).coverage)
    assert bare == "no layer of e3nn was found: 0 of 2 modules and 0 of 0 parameters are in layers that eqlayers knows"
    whole = str(accelerate(nn.Sequential(o3.Linear("2x0e", "2x0e"))).coverage)
    assert whole == "1 of 2 modules and 4 of 4 parameters are in layers that eqlayers knows"


def test_layers_of_eqlayers_are_known() -> None:
    coverage = accelerate(nn.Sequential(eqlayers.Linear("2x0e", "2x0e"), nn.Linear(2, 1))).coverage
    assert (coverage.known_modules, coverage.known_parameters, coverage.parameters) == (1, 4, 7)
    assert not str(coverage).startswith("no layer")


def test_a_model_of_this_packages_layers_has_nothing_to_replace() -> None:
    """The report does not look like a failure, and names what makes such a model faster."""
    report = accelerate(nn.Sequential(eqlayers.Linear("2x0e", "2x0e"), nn.SiLU(), eqlayers.Linear("2x0e", "1x0e")))
    assert report.ours == 2
    last = str(report).splitlines()[-1]
    assert last == report.summary()
    assert last.startswith("nothing to replace: the model already runs 2 layers of eqlayers. For simulations, ")
    assert "0 modules replaced" not in str(report)
    for name in ("eqlayers.compress(", "eqlayers.explain(", "backend"):
        assert name in last
    one = accelerate(nn.Sequential(eqlayers.Linear("2x0e", "2x0e")), radial="table")
    assert one.summary().startswith("nothing to replace, 1 left: the model already runs 1 layer of eqlayers.")
    assert "eqlayers.compress(model) makes tables of its own" in str(one)


def test_what_was_replaced_is_no_layer_of_the_model() -> None:
    """A second call says that the layers are accelerated, a mixed model says how many were replaced."""
    model = nn.Sequential(o3.Linear("2x0e", "2x0e"), eqlayers.Linear("2x0e", "2x0e"))
    report = accelerate(model)
    assert report.ours == 1
    assert report.summary().startswith("1 module replaced, 0 left")
    twice = accelerate(nn.Sequential(model[0]))
    assert twice.ours == 0
    assert "is accelerated already" in str(twice)


@pytest.mark.parametrize("rich", [True, False])
def test_both_tables_have_the_sentence(rich: bool, capsys: pytest.CaptureFixture[str]) -> None:
    report = accelerate(nn.Sequential(o3.Linear("2x0e", "2x0e")))
    if rich:
        pytest.importorskip("rich.console").Console(width=200).print(report)
    else:
        print(report)
    assert str(report.coverage) in capsys.readouterr().out
