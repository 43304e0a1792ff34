"""Problems and graphs of the benchmarks: the numbers that describe them, and what is answered where they are wrong."""

from pathlib import Path

import numpy as np
import pytest
from e3nn import o3

from eqlayers.bench.products.problems import GraphSpec, Problem, choose, read_graphs, read_problems
from eqlayers.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "bench"
PROBLEMS = {
    name: problem
    for file in ("uvu", "uvw", "small")
    for name, problem in read_problems(FOLDER / f"{file}.yaml").items()
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_the_numbers_of_a_problem_are_those_of_its_e3nn_layer(problem: Problem) -> None:
    layer = o3.TensorProduct(**problem.arguments())
    irreps = (layer.irreps_in1, layer.irreps_in2, layer.irreps_out)
    dims = tuple(r.dim for r in irreps)
    terms = 0
    for ins in layer.instructions:
        degrees = [r[i].ir.l for r, i in zip(irreps, (ins.i_in1, ins.i_in2, ins.i_out), strict=True)]
        terms += int((o3.wigner_3j(*degrees).abs() > 1e-6).sum())
    assert problem.facts() == (*dims, layer.weight_numel, len(layer.instructions), terms)


def test_channelwise_paths_follow_the_rule() -> None:
    """in1 outermost, then in2, then the irreps of the product; every path has an output of its own, sorted."""
    problem = PROBLEMS["nequip-water"]
    in1, in2, keep = (o3.Irreps(text) for text in (problem.in1, problem.in2, problem.out))
    expected = [
        (i, j, ir) for i, (_, a) in enumerate(in1) for j, (_, b) in enumerate(in2) for ir in a * b if ir in keep
    ]
    assert [(i, j, problem.irreps_out[k].ir) for i, j, k, *_ in problem.instructions] == expected
    outputs = [k for _, _, k, *_ in problem.instructions]
    assert sorted(outputs) == list(range(len(outputs)))
    assert problem.irreps_out == problem.irreps_out.sort().irreps


def test_graphs_have_their_edges_sorted_by_receiver() -> None:
    for spec in read_graphs(FOLDER / "graphs.yaml").values():
        src, dst = spec.edge_index().numpy()
        assert len(src) == spec.edges
        assert (np.diff(dst * spec.nodes + src) >= 0).all()
        assert 0 <= min(src.min(), dst.min()) <= max(src.max(), dst.max()) < spec.nodes


def test_diamond_and_molecules_connect_what_they_should() -> None:
    src, dst = read_graphs(FOLDER / "graphs.yaml")["carbon"].edge_index().numpy()
    assert set(np.bincount(dst)) == set(np.bincount(src)) == {158}
    assert len(np.unique(dst * 1000 + src)) == 158000
    src, dst = GraphSpec("m", 64, 500, "molecules").edge_index().numpy()
    assert (src // 2 == dst // 2).all()
    assert (src != dst).all()


def test_a_graph_with_another_number_of_edges() -> None:
    with pytest.raises(ConfigError, match="'ring' must have 5 edges between 3 nodes, how: complete gives 6"):
        GraphSpec("ring", 3, 5, "complete").edge_index()


def test_patterns_choose_problems_in_the_order_of_their_file() -> None:
    chosen = choose(PROBLEMS, ["own-*", "mace-first", "own-l6"], "choose")
    assert [problem.name for problem in chosen] == [
        name for name in PROBLEMS if name == "mace-first" or name.startswith("own-")
    ]
    with pytest.raises(ConfigError, match=r"choose must match a problem among .*, got 'mice-\*'\. Correct it"):
        choose(PROBLEMS, ["mace-*", "mice-*"], "choose")
