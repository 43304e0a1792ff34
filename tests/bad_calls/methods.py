"""Calls of layers' forwards and methods that no other file has, for the table of bad calls."""

import functools
from typing import Any

import numpy as np
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers import models, nn
from eqlayers.nn import EdgeVectors

NAN = float("nan")
EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])
GRAPH = eq.Graph(EDGES, 4)
X, R, KIND = torch.ones(4, 5), torch.ones(3), torch.tensor([0, 1, 1, 0])
FEW = [None, 1, "x", [1.0], object()]


def edges(lengths: Any = R) -> EdgeVectors:
    """Edges of which only the lengths are read."""
    return EdgeVectors(None, lengths, None, None)  # type: ignore[arg-type]


def molecule(**changes: Any) -> models.Structures:
    """Four atoms in a row."""
    pos = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0]])
    return models.Structures(torch.tensor([1, 8, 8, 1]), pos, EDGES)._replace(**changes)


def listed(function: Any) -> Any:
    """A generator's function that runs it to its end."""
    return functools.wraps(function)(lambda **arguments: list(function(**arguments)))


def spread(function: Any) -> Any:
    """A function of any number of arguments that takes them as one list."""
    return functools.wraps(function)(lambda **arguments: function(*next(iter(arguments.values()))))


def entered(function: Any) -> Any:
    """A context manager that is entered."""

    def call(**arguments: Any) -> None:
        with function(**arguments):
            pass

    return functools.wraps(function)(call)


#: Kinds of wrong values that the common table lacks.
WRONG: dict[str, list[Any]] = {
    "lengths of edges": [*FEW, np.ones(3), R.long(), R * 1j, torch.ones(1), torch.ones(4), torch.ones(3, 1),
        torch.ones(())],
    "places": [*FEW, KIND.double(), KIND.bool(), KIND[:2], KIND[None], KIND - 1, KIND + 2, KIND * 1j],
    "places of ends": [*FEW, R, KIND[:3].bool(), KIND[:1], KIND[None, :3], KIND[:3] - 1, KIND[:3] + 2],
    "optional positive": [0, -1.0, NAN, "5", [5.0], True, torch.ones(2), 1j],
    "size of an error": [-1.0, NAN, "5", None, [5.0], True, torch.ones(2), 1j],
    "graph or edges": [*FEW, EDGES.double(), EDGES.T, EDGES + 9],
    "graph": [*FEW, EDGES, eq.Graph(EDGES[:, :2], 4), eq.Graph(EDGES + 9, 20)],
    "numbers of atoms": [*FEW, KIND.double() + 1, KIND.bool(), KIND[:2] + 1, KIND[None] + 1, KIND, KIND - 9,
        KIND + 118],
    "edge vectors": [*FEW, edges(None), edges(1.0), edges(R.long()), edges(R * 1j), edges(torch.ones(4))],
    "transformed": [1, "x", [1.0], R.long(), R * 1j, torch.ones(4), torch.ones(3, 1), object()],
    "radial functions": [1, "x", [1.0], torch.ones(3, 9), torch.ones(3, 8).long(), torch.ones(3, 8) * 1j, object()],
    "radial functions of edges": [1, "x", torch.ones(3, 9), torch.ones(3, 8).long(), torch.ones(4, 8), object()],
    "any lengths": [*FEW, np.ones(3), R.long(), R * 1j],
    "samples": [0, 1, -1, 1.5, "8", None, NAN, [8], torch.ones(2), 8.0, True],
    "instruction": [-1, 9, 1.5, "0", None, NAN, [0], torch.ones(2), True],
    "flat weights": [1.0, "x", [1.0], torch.ones(999), torch.ones(()), object()],
    "shown": ["x", 1.0, torch.ones(999), torch.ones(()), object()],
    "an irrep": ["x", None, 1.5, "2e", object(), b"0e"],
    "edges of any nodes": [*FEW, [[0], [1]], EDGES.numpy(), EDGES.T, EDGES.double(), EDGES.bool(), EDGES[0]],
    "vectors": ["x", [], [torch.ones(3)], [torch.ones(3)] * 3, [torch.ones(3), torch.ones(2)], [1.0, torch.ones(3)],
        [torch.ones(3), torch.ones(3).long()], [torch.ones(3), torch.ones(3).double()]],
    "merged": ["x", [], [torch.ones(4, 5)], torch.ones(4, 5), [1, 2]],
    "inversions": ["x", 1.5, [1.0], R * 0.5, R * 1j, object()],
    "species of atoms": [1, "x", [1.0], KIND.double(), KIND[:2], KIND[None], KIND - 1, KIND + 2, object()],
    "shifts": ["x", 1.0, [1.0], {"Xx": 1.0}, {7: 1.0}, {1: NAN}, {1: "x"}, {1: None}, object()],
    "scales": ["x", [1.0], 0.0, -1.0, NAN, {7: 1.0}, {1: 0.0}, {1: NAN}, {1: "x"}, True, object()],
    "further outputs": [1, "x", "", ["q"], {"q": "b"}, {"q": 1}, {1: "atom"}, {"y": "sum"}, object()],
    "parts of a sum": [1, "x", ["x"], [1], object()],
    "further statistics": ["x", 1.0, [1.0], {"x": ({}, 1.0)}, {"q": 1.0}, {"q": ({}, 0.0)}, {"q": (1, 1.0)}, object()],
    "tensor scales": ["x", 1.0, [1.0], {"dipole": 1.0}, {"foo": 1.0}, object()],
    "network": [1, "x", None, torch.nn.Linear, torch.nn.Linear(1, 1), object()],
    "module of parts": [1, "x", None, torch.nn.Linear, object()],
    "structures": [*FEW, molecule(z=None), molecule(z=KIND.double()), molecule(z=KIND + 2), molecule(z=KIND[:2]),
        molecule(pos=None), molecule(pos=X), molecule(pos=torch.ones(4, 3).long()), molecule(pos=torch.ones(4, 3) * 1j),
        molecule(edge_index=None), molecule(edge_index=EDGES.double()), molecule(edge_index=EDGES + 2),
        molecule(edge_index=EDGES.T), molecule(batch="x"), molecule(batch=KIND), molecule(batch=KIND.double()),
        molecule(num_graphs="x"), molecule(num_graphs=-1), molecule(num_graphs=1.5), molecule(num_graphs=None),
        molecule(cell=torch.eye(3)[None]), molecule(shifts=torch.zeros(3, 3)), molecule(cell="x"),
        molecule(shifts="x"),
        molecule(cell=torch.eye(3), shifts=torch.zeros(3, 3)),
        molecule(cell=torch.eye(3)[None], shifts=torch.zeros(2, 3))],
    "outputs": [1, "energy", [1], ["foo"], [None], ["stress"], object()],
    "repulsion": [1, "x", [], torch.nn.Linear, object()],
    "chunk": [0, -1, 1.5, "8", NAN, [8], torch.ones(2), True],
    "path of nothing": [None, 1, "", [], "a/b/c.pt", b"x", object()],
    "path to write": [None, 1, "", [], b"x", object()],
    "potential": [None, 1, "x", [], torch.nn.Linear(1, 1), object()],
    "description": [None, 1, "x", [], {}, {"network": "x"}, object()],
    "molecules' irreps": [None, 5, "xx", "3x1o", "", [1]],
    "molecules' elements": [None, "HCNO", 6, (), (1, 1), (0,), (119,), (1.5,), ("h",), {1: 2}],
    "positions": [*FEW, X[:, :3].double(), X[:2, :3], X[:, :2], X[:, :3].long(), X[:, :3] * 1j, X[0]],
    "facts": [1, "x", [1], {1: 2}, {"a": object()}, object()],
    "optional dtype": ["float32", torch.int64, torch.complex64, 32, np.float32],
}  # fmt: skip

BETWEEN = {"lengths": R, "first": KIND[:3], "second": KIND[:3]}
AGNESI, RADIAL, TABLE = nn.AgnesiTransform([1, 8]), nn.RadialNetwork(3), nn.RadialTable(nn.RadialNetwork(3))
TP = eq.FullyConnectedTensorProduct("2x0e", "0e", "2x0e")
SQUARE, LINEAR = eq.TensorSquare("2x0e", irreps_out="2x0e"), eq.Linear("5x0e", "3x0e")
STEP = nn.Interaction("5x0e", "0e", "5x0e", self_connection="species", num_species=2)
INTERACT = {"x": X, "edge_attr": torch.ones(3, 1), "lengths": R, "edge_index": EDGES, "species": KIND}
POTENTIAL = models.Potential(models.TFN([1, 8], "2x0e + 2x1o", radial_hidden=[2], backend="torch"), [1, 8]).eval()
BUILT = {"hidden": "2x0e + 2x1o", "radial_hidden": [2]}
MOLECULES = models.MoleculeNetwork([1, 8], "2x0e + 2x1o", radial_hidden=[2], backend="torch", auxiliary={"q": "atom"})

#: Name -> the callable, arguments that work, and keys of wrong values that names and annotations do not imply.
ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "AgnesiTransform.forward": (AGNESI.forward, {"lengths": R, "kind": KIND, "graph": GRAPH},
        {"lengths": "lengths of edges", "kind": "places"}),
    "AgnesiTransform.between": (AGNESI.between, BETWEEN, {"lengths": "lengths of edges", "first": "places of ends",
        "second": "places of ends"}),
    "ZBL.forward": (nn.ZBL().forward, {"z": KIND + 1, "edges": edges(), "graph": GRAPH}, {"z": "numbers of atoms",
        "edges": "edge vectors"}),
    "ZBL.reach": (nn.ZBL().reach, {"species": [1, 8]}, {}),
    "BesselBasis.forward of transformed": (nn.BesselBasis().forward, {"lengths": R}, {"lengths": "any lengths",
        "transformed": "transformed"}),
    "RadialNetwork.forward of functions": (RADIAL.forward, {"lengths": R}, {"lengths": "any lengths",
        "basis": "radial functions"}),
    "RadialTable.forward of functions": (TABLE.forward, {"lengths": R}, {"lengths": "any lengths",
        "basis": "radial functions"}),
    "RadialTable.error": (TABLE.error, {}, {"samples": "samples"}),
    "Interaction of species": (nn.Interaction, {"irreps_in": "4x0e", "irreps_sh": "0e", "irreps_out": "4x0e"},
        {"self_connection": "choice", "num_species": "width", "gate": "choice", "residual": "flag", "p": "power"}),
    "Interaction.forward of species": (STEP.forward, INTERACT, {"species": "species of atoms",
        "basis": "radial functions of edges"}),
    "CartesianTensor.forward": (nn.CartesianTensor("ij").forward, {"tensor": torch.eye(3)}, {"tensor": "tensor"}),
    "CartesianTensor.from_vectors": (spread(nn.CartesianTensor("ij").from_vectors), {
        "vectors": [torch.ones(3), torch.ones(3)]}, {"vectors": "vectors"}),
    "CartesianTensor.to_irreps": (nn.CartesianTensor("ij").to_irreps, {"data": torch.eye(3)}, {"data": "tensor"}),
    "ChangeOfBasis.matrix": (nn.ChangeOfBasis("1o", "polar_z").matrix, {"ir": "1o"}, {"ir": "an irrep"}),
    "Merge.forward": (spread(nn.Merge(["2x0e", "1o"]).forward), {
        "features": [torch.ones(4, 2), torch.ones(4, 3)]}, {"features": "merged"}),
    "NormalizedActivation.forward": (nn.NormalizedActivation("silu").forward, {"x": X}, {"x": "any lengths"}),
    "WignerD.D_from_angles": (nn.WignerD("1o").D_from_angles, dict.fromkeys(("alpha", "beta", "gamma"), R),
        {"alpha": "any lengths", "beta": "any lengths", "gamma": "any lengths", "k": "inversions"}),
    "WignerD.D_from_quaternion of parities": (nn.WignerD("1o").D_from_quaternion, {"q": torch.ones(3, 4)},
        {"k": "inversions"}),
    "TensorProduct.weight_view_for_instruction": (TP.weight_view_for_instruction, {"instruction": 0},
        {"instruction": "instruction", "weight": "flat weights"}),
    "TensorProduct.weight_views": (listed(TP.weight_views), {}, {"weight": "flat weights"}),
    "TensorProduct.visualize": (TP.visualize, {}, {"weight": "shown", "aspect_ratio": "positive", "ax": "shown"}),
    "Linear.weight_view_for_instruction": (LINEAR.weight_view_for_instruction, {"instruction": 0},
        {"instruction": "instruction", "weight": "flat weights"}),
    "Linear.weight_views": (listed(LINEAR.weight_views), {}, {"weight": "flat weights"}),
    "TensorSquare of irreps_out": (eq.TensorSquare, {"irreps_in": "2x0e", "irreps_out": "2x0e"},
        {"irreps_out": "irreps"}),
    "TensorSquare.forward": (SQUARE.forward, {"x": torch.ones(4, 2)}, {"weight": "flat weights"}),
    "TensorSquare.from_e3nn": (eq.TensorSquare.from_e3nn, {"module": o3.TensorSquare("0e")}, {"module": "module"}),
    "NequIP": (models.NequIP, {"species": [1, 8], **BUILT}, {"embedding": "width"}),
    "MoleculeNetwork": (models.MoleculeNetwork, {"species": [1, 8], **BUILT}, {"species": "molecules' elements",
        "hidden": "molecules' irreps", "auxiliary": "further outputs", "sum_of": "parts of a sum"}),
    "MoleculeNetwork.forward": (MOLECULES.forward, {"z": molecule().z, "pos": molecule().pos, "edge_index": EDGES,
        "batch": torch.zeros(4).long(), "num_graphs": 1}, {"z": "numbers of atoms", "pos": "positions",
        "batch": "species of atoms", "num_graphs": "chunk"}),
    "MoleculeNetwork.outputs": (MOLECULES.outputs, {"z": molecule().z, "pos": molecule().pos, "edge_index": EDGES,
        "batch": torch.zeros(4).long(), "num_graphs": 1}, {"z": "numbers of atoms", "pos": "positions",
        "batch": "species of atoms", "num_graphs": "chunk"}),
    "MoleculeNetwork.set_statistics": (MOLECULES.set_statistics, {"shifts": {1: 0.0, 8: 0.0}, "scale": 1.0,
        "mean_neighbors": 1.0}, {"auxiliary": "further statistics"}),
    "MACE.set_mean_neighbors": (models.MACE([1], "2x0e", correlation=1, layers=1).set_mean_neighbors, {"number": 2.0},
        {}),
    "NequIP.set_mean_neighbors": (models.NequIP([1], "2x0e", 1).set_mean_neighbors, {"number": 2.0}, {}),
    "TFN.set_mean_neighbors": (models.TFN([1], "2x0e", 1).set_mean_neighbors, {"number": 2.0}, {}),
    "Potential": (models.Potential, {"network": POTENTIAL.network, "species": [1, 8]}, {"network": "network",
        "repulsion": "repulsion", "subtract_isolated": "option flag"}),
    "Potential.forward": (POTENTIAL.forward, {"structures": molecule()}, {"structures": "structures"}),
    "Potential.compile": (POTENTIAL.compile, {}, dict.fromkeys(("enabled", "required", "record"), "flag")),
    "Potential.atomic_energies": (POTENTIAL.atomic_energies, {"structures": molecule()}, {"structures": "structures"}),
    "Potential.hessian": (POTENTIAL.hessian, {"structures": molecule()}, {"structures": "structures"}),
    "Potential.kind_of": (POTENTIAL.kind_of, {"z": molecule().z}, {"z": "numbers of atoms"}),
    "Potential.set_statistics": (POTENTIAL.set_statistics, {"shifts": {1: 0.0}, "scale": 1.0},
        {"mean_neighbors": "positive", "tensor_scales": "tensor scales"}),
    "build_potential": (models.build_potential, {"description": models.describe_potential(POTENTIAL)},
        {"description": "description", "classes": "classes"}),
    "describe_potential": (models.describe_potential, {"potential": POTENTIAL}, {}),
    "extend_potential": (models.extend_potential, {"potential": POTENTIAL, "species": [1, 6, 8]}, {}),
    "recomputed": (entered(models.recomputed), {"network": models.TFN([1], "2x0e", 1)}, {"network": "module of parts"}),
    "SO2Linear.weight_views": (listed(nn.SO2Linear("2x0e", "2x0e").weight_views), {}, {"weight": "flat weights"}),
    "FormulaLayer.forward on a graph": (nn.FormulaLayer(lambda x: [x[0]], {"x": "5x0e"}, "5x0e",
        rows={"x": "src"}).forward, {"x": X, "graph": GRAPH}, {"graph": "graph or edges"}),
}  # fmt: skip
