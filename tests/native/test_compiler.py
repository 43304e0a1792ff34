"""Every value of a native program is the value of its node in the graph."""

from __future__ import annotations

import pytest
import torch

from eqlayers.core.errors import ConfigError
from eqlayers.core.traces.simplify import FORM
from eqlayers.core.traces.trace import Refused
from eqlayers.models import NequIP, Potential
from eqlayers.native.compiler import Compiler
from eqlayers.native.program import CProgram, graph_of
from eqlayers.native.sizes import ATOMS, parts
from eqlayers.native.stages import KEPT, SMALL
from eqlayers.native.sums import _pair

from .conftest import NETWORKS, SPECIES, STRUCTURES, edges_of, made
from .oracle import compare_values

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_values_of_nodes(name: str, dtype: torch.dtype) -> None:
    potential = made(name, dtype)
    compare_values(potential, {what: edges_of(potential, atoms()) for what, atoms in STRUCTURES.items()})


@pytest.mark.parametrize("name", ["MACE, tables", "NequIP"])
def test_little_is_kept_from_stage_to_stage(name: str) -> None:
    """Of gradients by edges, the slopes alone; and of operands that a formula adds, their sum."""
    module = graph_of(made(name))
    assert not any(_pair(node) for node in module.graph.nodes if str(node.target) == FORM)
    kept = [one for one in CProgram(Compiler(module)).stages.entries if one.kind == KEPT and one.when != SMALL]
    assert max(parts(one.buffer.size)[0] for one in kept) == 3


def test_maps_of_many_species_gather_no_matrices() -> None:
    potential = Potential(NequIP([1, 6, 7, 8, 9], "260x0e", 0, 2, 2, radial_hidden=()), [1, 6, 7, 8, 9]).eval()
    watched = compare_values(potential, {"ethanol": edges_of(potential, STRUCTURES["ethanol"]())})
    assert max(one.size for one in watched.compiled.buffers if one.constant is None and one.by_atom) < 1000 * ATOMS


class Odd(torch.nn.Module):
    """A network with an operator that no program has."""

    irreps_sh, cutoff, species = "0e", 4.0, tuple(SPECIES)

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.weight = how, torch.nn.Parameter(torch.ones(3))

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        sums = torch.zeros(atom_types.shape[0], 3, dtype=edges.vectors.dtype).index_add(
            0, graph.ends[1], edges.vectors * self.weight
        )
        if self.how == "erfinv":
            return torch.special.erfinv(sums.tanh()).sum(1)
        if self.how == "largest":
            return sums.new_zeros(sums.shape[0]).scatter_reduce(0, graph.ends[1], edges.lengths, "mean")
        return (sums.sum(1) * float(sums.sum())).float()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("erfinv", r"got aten.erfinv.default \(erf_inv\): it is unknown. Run it by Python"),
        ("largest", "it is no largest value of rows"),
        ("reads", "without numbers of tensors in Python"),
    ],
)
def test_what_cannot_be_compiled_is_named(how: str, words: str) -> None:
    potential = Potential(Odd(how), SPECIES, subtract_isolated=False).eval()
    with pytest.raises(ConfigError, match=words) as caught:
        Compiler(graph_of(potential))
    assert isinstance(caught.value, Refused) == (how == "reads")
