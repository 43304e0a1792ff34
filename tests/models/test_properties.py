"""Dipoles, polarisabilities and Born charges: by hand, by differences, in batches, in every network, and refusals."""

from typing import Any

import pytest
import torch
from e3nn import io, o3
from torch import Tensor

from eqlayers.errors import ConfigError, IndexRangeError, ShapeError
from eqlayers.models import MACE, TFN, Equiformer, NequIP, Potential, Structures
from eqlayers.models.properties import AtomicProperties, property_irreps
from eqlayers.testing import check_potential

pytest.importorskip("ase")  # the check makes its examples with it
pytest.importorskip("vesin")

ALL = ("energy", "dipole", "polarizability")
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MACE": (MACE, {"correlation": 2, "lmax": 2, "radial_hidden": [8]}),
    "NequIP": (NequIP, {"layers": 2, "radial_hidden": [8]}),
    "TFN": (TFN, {"layers": 1, "radial_hidden": [8]}),
    "Equiformer": (Equiformer, {"heads": 2, "layers": 2, "radial_hidden": [8]}),
}
HIDDEN = "4x0e + 4x1o + 4x2e"
PAIR = torch.tensor([[0, 1], [1, 0]])


def built(name: str, properties: tuple[str, ...] = ALL, hidden: str = HIDDEN) -> Potential:
    torch.manual_seed(1)
    kind, options = NETWORKS[name]
    network = kind([1, 6, 8], hidden=hidden, cutoff=4.0, properties=properties, **options)
    return Potential(network, [1, 6, 8]).double().eval()


class Rods(torch.nn.Module):
    """Energy 0, a dipole along each bond, and a polarisability of its squared direction."""

    cutoff, irreps_sh, properties = 5.0, "0e + 1o + 2e", ("energy", "dipole", "polarizability")

    def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
        vectors, bent = edges.harmonics[:, 1:4], edges.harmonics[:, 4:]
        ones = edges.lengths[:, None]
        columns = torch.cat([0 * ones, ones, ones * vectors / 3**0.5, bent], 1)
        return columns.new_zeros(len(kind), columns.shape[1]).index_add(0, graph.edge_index[1], columns)


def test_by_hand() -> None:
    """Both atoms of a bond along y: vectors from senders to receivers cancel; the tensors add up."""
    rods = Potential(Rods(), [1]).eval()
    pos = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    found = rods(Structures(torch.tensor([1, 1]), pos, PAIR), ALL)
    assert found["dipole"].tolist() == [[0.0, 0.0, 0.0]]
    one_way = Structures(torch.tensor([1, 1]), pos, PAIR[:, :1])
    found = rods(one_way, (*ALL, "born_charges"))
    torch.testing.assert_close(found["dipole"], torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.float64))
    # component normalisation: a unit vector has the norm 5^(1/2), and its traceless square is along y
    change = io.CartesianTensor("ij=ij")
    bent = change.from_cartesian(torch.outer(pos[1], pos[1]) / 4)[-5:]
    want = 2 * torch.eye(3) + change.to_cartesian(torch.cat([torch.zeros(4), bent / bent.norm() * 5**0.5]))
    torch.testing.assert_close(found["polarizability"][0], want.double(), rtol=1e-6, atol=1e-6)
    # the dipole is the bond: one end pulls it back, the other along
    eye = torch.eye(3)
    torch.testing.assert_close(found["born_charges"], torch.stack([-eye, eye]), rtol=1e-6, atol=1e-6)
    rods.set_statistics({}, 1.0, None, {"dipole": 3.0, "polarizability": 0.5})
    scaled = rods(one_way, ("dipole", "polarizability", "born_charges"))
    for name, factor in (("dipole", 3.0), ("polarizability", 0.5), ("born_charges", 3.0)):
        torch.testing.assert_close(scaled[name], factor * found[name], rtol=1e-6, atol=1e-6)
    assert rods.half().split.get_buffer("dipole_scale").dtype == torch.float64


def test_what_is_kept_in_float64_loses_nothing_in_other_dtypes() -> None:
    split = AtomicProperties(ALL)
    split.set_scales({"dipole": 1 / 3, "polarizability": 1 / 7})
    values, batch = torch.randn(4, 10, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    want = split(values, batch, 2)[1]
    for moved in (split.float(), split.half(), split.double()):
        found = moved(values, batch, 2)[1]
        assert all(torch.equal(found[name], want[name]) for name in ("dipole", "polarizability"))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("properties", [("dipole",), ("energy", "polarizability"), ALL], ids="+".join)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_property_holds(name: str, properties: tuple[str, ...]) -> None:
    report = check_potential(built(name, properties))
    assert report.ok, str(report)
    named = {row.name.split(": ")[-1] for row in report.rows}
    assert {*properties} <= named
    assert ("Born charges sum to zero" in named) == ("dipole" in properties)


def test_a_broken_tensor_is_named() -> None:
    """One component that does not turn with the others."""
    potential = built("TFN", ("dipole", "polarizability"))
    inner = potential.network.forward
    potential.network.forward = lambda *a: inner(*a) * torch.tensor([1.0, 1.0, 1.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0])  # type: ignore[method-assign]
    assert {row.name for row in check_potential(potential).failures} == {"rotation: dipole"}
    potential.network.forward = lambda *a: inner(*a) + torch.arange(9.0)  # type: ignore[method-assign]
    broken = {row.name for row in check_potential(potential).failures}
    assert {"rotation: dipole", "inversion: dipole", "rotation: polarizability"} <= broken
    assert "inversion: polarizability" not in broken


@pytest.mark.kernels
@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "TFN")) for one in NETWORKS])
def test_batches_training_and_compilation(name: str) -> None:
    potential, made = built(name), torch.Generator().manual_seed(3)
    pos = 2.0 * torch.rand(6, 3, dtype=torch.float64, generator=made)
    one = torch.tensor([[0, 1, 1, 2, 0, 2], [1, 0, 2, 1, 2, 0]])
    z, asked = torch.tensor([1, 6, 8, 8, 1, 1]), (*ALL, "born_charges", "forces")
    both = Structures(z, pos, torch.cat([one, one + 3], 1), torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    whole = potential(both, asked)
    parts = [potential(Structures(z[a : a + 3], pos[a : a + 3], one), asked) for a in (0, 3)]
    for output in asked:
        torch.testing.assert_close(whole[output], torch.cat([p[output] for p in parts]), rtol=1e-12, atol=1e-12)
        assert not whole[output].requires_grad
    followed = potential(both, ("born_charges", "dipole"), create_graph=True)
    loss = followed["born_charges"].square().sum() + followed["dipole"].square().sum()
    grads = torch.autograd.grad(loss, list(potential.parameters()), allow_unused=True)
    assert sum(bool(g is not None and torch.isfinite(g).all() and g.abs().max() > 0) for g in grads) > len(grads) // 2
    atoms = both.checked(torch.float64)
    compiled = torch.compile(potential._predicted, backend="aot_eager")(atoms)
    torch.testing.assert_close(compiled["polarizability"], whole["polarizability"], rtol=1e-12, atol=1e-12)
    alone = potential(Structures(z[:1], pos[:1], PAIR[:, :0]), ("dipole", "born_charges"))
    assert float(alone["dipole"].abs().max()) == float(alone["born_charges"].abs().max()) == 0.0


def test_the_irreps_that_a_network_returns() -> None:
    assert property_irreps(ALL) == o3.Irreps("2x0e + 1x1o + 1x2e")
    assert built("NequIP", ("dipole",)).network.read.irreps_out == o3.Irreps("1o")  # type: ignore[union-attr]
    assert built("MACE").properties == ALL
    # without outputs: what needs no differentiation, and forces
    pair = Structures(torch.tensor([1, 6]), torch.eye(3, dtype=torch.float64)[:2], PAIR)
    assert built("TFN", ("dipole",))(pair).keys() == {"dipole"}
    assert built("TFN")(pair).keys() == {"energy", "forces", "dipole", "polarizability"}


def test_refusals() -> None:
    pair = Structures(torch.tensor([1, 6]), torch.eye(3, dtype=torch.float64)[:2], PAIR)
    with pytest.raises(ConfigError, match="outputs must"):
        built("TFN", ("dipole",))(pair, ("forces",))
    with pytest.raises(ConfigError, match="outputs must"):
        built("TFN", ("energy",))(pair, ("born_charges",))
    with pytest.raises(ConfigError, match="of the network, dipole, got energy"):
        built("TFN", ("dipole",)).hessian(pair)
    with pytest.raises(ConfigError, match=r"hidden must hold 2e for energy, dipole, polarizability"):
        built("NequIP", hidden="4x0e + 4x1o")
    with pytest.raises(ConfigError, match=r"hidden must hold 1o for dipole"):
        built("MACE", ("dipole",), hidden="4x0e")
    with pytest.raises(ConfigError, match="properties must"):
        built("TFN", ())
    with pytest.raises(ConfigError, match="properties must"):
        built("TFN", ("charge",))
    with pytest.raises(IndexRangeError, match="tensor scales must"):
        built("TFN", ("energy",)).set_statistics({}, 1.0, None, {"dipole": 1.0})
    with pytest.raises(ConfigError, match="the scale of dipole must"):
        built("TFN").set_statistics({}, 1.0, None, {"dipole": 0.0})
    with pytest.raises(ShapeError, match=r"\[A, columns\] = \[2, 4\], 1x0e\+1x1o of energy, dipole, got \[2\]"):
        AtomicProperties(("energy", "dipole"))(torch.zeros(2), torch.zeros(2, dtype=torch.int64), 1)
