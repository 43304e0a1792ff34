"""The network for molecules: symmetries, batches, forces, statistics in float64, bad input; checkpoints."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.errors import ConfigError, DataError, DTypeError, EqlayersError, IndexRangeError, IrrepsError, ShapeError
from eqlayers.models import MoleculeNetwork, Structures, load_potential
from eqlayers.models.molecule import MoleculeProperty, load_property
from eqlayers.models.saving import describe_part
from eqlayers.testing import random_orthogonal
from tests.each import each, refused

Z = torch.tensor([6, 8, 1, 1, 7, 9])
OPTIONS = [(readout, pooling) for readout in ("scalar", "vector", "extent") for pooling in ("sum", "mean")]


def network(**kwargs: Any) -> MoleculeNetwork:
    small = {
        "hidden": "8x0e + 8x1o + 4x1e + 4x2e",
        "lmax": 2,
        "layers": 2,
        "radial_hidden": (8,),
        "mean_neighbors": 4.0,
    }
    return MoleculeNetwork(**{**small, **kwargs}).double()


def edges(pos: Tensor, cutoff: float = 5.0) -> Tensor:
    """All ordered pairs closer than the cutoff."""
    near = torch.cdist(pos, pos) < cutoff
    return near.fill_diagonal_(False).nonzero().T.contiguous()


@pytest.fixture
def pos() -> Tensor:
    return torch.randn(6, 3, dtype=torch.float64) * 1.5


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    assert a.dtype == b.dtype == torch.float64
    assert b.abs().max() > 1e-3  # not a comparison of zeros
    assert float((a - b).abs().max() / b.abs().max()) < tolerance


@each("readout, pooling", OPTIONS)
@each("determinant", [1, -1])
def test_invariances(readout: str, pooling: str, determinant: int, pos: Tensor) -> None:
    model = network(readout=readout, pooling=pooling)
    model.set_statistics({1: -2.0, 6: 5.0}, 3.0, 4.0)
    index = edges(pos)
    value = model(Z, pos, index).detach()
    turn = random_orthogonal(3, determinant)
    close(model(Z, pos @ turn.T, index).detach(), value)
    close(model(Z, pos + torch.tensor([3.0, -40.0, 7.0]).double(), index).detach(), value)
    order = torch.randperm(6)
    close(model(Z[order], pos[order], torch.argsort(order)[index]).detach(), value)
    close(model(Z, pos, index[:, torch.randperm(index.shape[1])]).detach(), value)


def test_the_value_depends_on_geometry_and_species(pos: Tensor) -> None:
    """Guards the tests above: a constant is invariant too."""
    model = network()
    value = model(Z, pos, edges(pos)).detach()
    assert (model(Z, pos * 1.05, edges(pos)) - value).abs().min() > 1e-6
    assert (model(Z.flip(0), pos, edges(pos)) - value).abs().min() > 1e-6


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("determinant", [1, -1])
def test_the_pooled_vector_turns_with_the_molecule(pooling: str, determinant: int, pos: Tensor, monkeypatch) -> None:
    model = network(readout="vector", pooling=pooling)
    seen: list[Tensor] = []
    plain = model.pooled_vector

    def watched(*args: Any) -> Tensor:
        seen.append(plain(*args))
        return seen[-1]

    monkeypatch.setattr(model, "pooled_vector", watched)
    index, turn = edges(pos), random_orthogonal(4, determinant)
    length = model(Z, pos, index)
    model(Z, pos @ turn.T + 2.0, index)
    before, after = seen
    assert before.shape == (1, 3)
    close(after.detach(), (before @ turn.T).detach())
    torch.testing.assert_close(length, before.norm(dim=-1))


def test_the_extent_by_hand(pos: Tensor) -> None:
    """Energies, and charges times squared distances from the centre of nuclear charge, with scale and shifts."""
    model = network(readout="extent", layers=0)
    model.set_statistics({z: float(z) for z in (1, 6, 7, 8, 9)}, 3.0, 4.0)
    seen: list[Tensor] = []
    model.read.register_forward_hook(lambda _, __, out: seen.append(out))
    value = model(Z, pos, edges(pos))
    ((energies, charges),) = (out.T for out in seen)
    centre = sum(int(z) * place for z, place in zip(Z, pos, strict=True)) / sum(Z.tolist())
    distances = torch.stack([((place - centre) ** 2).sum() for place in pos])
    close(value.detach(), (3.0 * (energies + charges * distances).sum() + sum(Z.tolist())).detach()[None], 1e-12)
    # of one atom, the energy and the shift alone
    single = model(Z[:1], pos[:1], edges(pos[:1]))
    close(single.detach(), (3.0 * seen[-1][0, :1] + 6.0).detach(), 1e-12)


@pytest.mark.parametrize(("readout", "pooling"), OPTIONS)
def test_molecules_of_a_batch_do_not_see_each_other(readout: str, pooling: str, pos: Tensor) -> None:
    model = network(readout=readout, pooling=pooling)
    second = torch.randn(4, 3).double()
    alone = torch.cat([model(Z, pos, edges(pos)), model(Z[:4], second, edges(second))])
    index = torch.cat([edges(pos), edges(second) + 6], 1)
    batch = torch.tensor([0] * 6 + [1] * 4)
    close(model(torch.cat([Z, Z[:4]]), torch.cat([pos, second]), index, batch).detach(), alone.detach(), 1e-12)
    more = model(torch.cat([Z, Z[:4]]), torch.cat([pos, second]), index, batch, num_graphs=4).detach()
    assert more.shape == (4,)
    close(more[:2], alone.detach(), 1e-12)
    assert more[2:].tolist() == [0.0, 0.0]  # molecules without atoms


def test_atoms_without_edges_and_single_atoms(pos: Tensor) -> None:
    model = network()
    model.set_statistics({z: float(z) for z in (1, 6, 7, 8, 9)}, 1.0, 4.0)
    none = torch.zeros(2, 0, dtype=torch.int64)
    apart = model(Z, pos, none)
    assert apart.isfinite().all()
    close(apart.detach(), sum(model(Z[i : i + 1], pos[i : i + 1], none) for i in range(6)).detach(), 1e-12)
    lonely = torch.cat([pos[:5], torch.full((1, 3), 50.0).double()])
    close(
        model(Z, lonely, edges(lonely)).detach(),
        (model(Z[:5], pos[:5], edges(pos[:5])) + model(Z[5:], pos[5:], none)).detach(),
        1e-12,
    )


@pytest.mark.parametrize(("readout", "pooling"), OPTIONS)
def test_nothing_at_all(readout: str, pooling: str) -> None:
    model = network(readout=readout, pooling=pooling)
    empty = torch.zeros(0, dtype=torch.int64)
    out = model(empty, torch.zeros(0, 3).double(), empty.reshape(1, 0).expand(2, 0), empty)
    assert out.shape == (0,)
    one = model(Z[:1], torch.zeros(1, 3).double(), empty.reshape(1, 0).expand(2, 0))
    assert one.isfinite().all()


def test_energy_is_continuous_where_an_edge_enters(pos: Tensor) -> None:
    """A pair at the cutoff contributes nothing, value and slope: with and without its edges the energy agrees."""
    model = network(cutoff=3.0)
    pair = torch.tensor([[0.0, 0, 0], [3.0 - 1e-7, 0, 0]], dtype=torch.float64, requires_grad=True)
    both, none = torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, 0, dtype=torch.int64)
    joined = model(Z[:2], pair, both)
    assert float((joined - model(Z[:2], pair, none)).detach().abs()) < 1e-12
    (force,) = torch.autograd.grad(joined.sum(), pair)
    assert float(force.abs().max()) < 1e-9


def test_forces_equal_finite_differences(pos: Tensor) -> None:
    model = network()
    index = edges(pos)
    live = pos.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(Z, live, index).sum(), live, create_graph=True)
    assert gradient.isfinite().all()
    assert gradient.requires_grad
    force = gradient.detach()
    close(force.sum(0) + 1, torch.ones(3).double())  # no net force
    step = 1e-4
    for atom, axis in [(0, 0), (2, 1), (5, 2)]:
        shift = torch.zeros_like(pos)
        shift[atom, axis] = step
        ahead, behind = (float(model(Z, pos + s * shift, index).detach().sum()) for s in (1, -1))
        assert (ahead - behind) / (2 * step) == pytest.approx(float(force[atom, axis]), abs=1e-6)
    parameters = torch.autograd.grad(gradient.square().sum(), list(model.parameters()), materialize_grads=True)
    assert sum(float(g.abs().sum()) for g in parameters) > 0
    assert all(g.isfinite().all() for g in parameters)


def test_extensive_and_intensive(pos: Tensor) -> None:
    index = edges(pos)
    twice = torch.cat([Z, Z]), torch.cat([pos, pos + 100.0]), torch.cat([index, index + 6], 1)
    for pooling, factor in (("sum", 2), ("mean", 1)):
        model = network(pooling=pooling)
        close(model(*twice).detach(), factor * model(Z, pos, index).detach(), 1e-12)


def test_large_shifts_keep_float64_in_a_float32_model() -> None:
    """Total energies are about -1e4 eV; float32 would round them to 1e-3 eV."""
    model = MoleculeNetwork(hidden="4x0e + 4x1o", layers=1)
    shifts = {1: -13.587222780835477, 6: -1029.4889999855063, 8: -2042.9303986600516}
    model.set_statistics(shifts, 1e-12, 4.0)  # the learned part far below the last digit
    z = torch.tensor([6] * 7 + [8] * 2 + [1] * 10)
    pos = torch.randn(19, 3) * 3
    value = model(z, pos, edges(pos.double()))
    exact = 7 * shifts[6] + 2 * shifts[8] + 10 * shifts[1]
    assert value.dtype == torch.float64
    assert abs(float(value.detach()) / exact - 1) < 1e-12
    assert model.shifts.dtype == model.scale.dtype == torch.float64


def test_statistics_are_written_where_they_belong(pos: Tensor) -> None:
    model = network()
    raw = model(Z, pos, edges(pos)).detach()
    model.set_statistics({6: 10.0, 1: 1.0}, 3.0, 4.0)
    close(model(Z, pos, edges(pos)).detach(), 3 * raw + 10 + 2 * 1, 1e-12)
    model.set_statistics({}, 1.0, 9.0)
    assert [float(step.get_buffer("mean_neighbors")) for step in model.interactions] == [9.0, 9.0]


@pytest.mark.parametrize("readout", ["scalar", "vector"])
def test_state_dict_carries_weights_and_statistics(readout: str, pos: Tensor) -> None:
    model, other = network(readout=readout), network(readout=readout)
    model.set_statistics({6: -1000.123456789}, 2.5, 7.0)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(Z, pos, edges(pos)), model(Z, pos, edges(pos)))
    assert torch.equal(copy.deepcopy(model)(Z, pos, edges(pos)), model(Z, pos, edges(pos)))


BAD: list[tuple[type[EqlayersError], str, dict[str, Any]]] = [
    (IrrepsError, r"hidden must hold even scalars \(0e\).*got 8x1o\. Add", {"hidden": "8x1o"}),
    (IrrepsError, r"hidden must hold vectors \(1o\).*Add '64x1o'", {"hidden": "8x0e", "readout": "vector"}),
    (IrrepsError, r"hidden must be irreps such as.*got '8x'", {"hidden": "8x"}),
    (ConfigError, r"readout must be one of scalar, vector, extent, got 'tensor'", {"readout": "tensor"}),
    (ConfigError, r"pooling must be one of sum, mean, got 'max'", {"pooling": "max"}),
    (ConfigError, r"species must be different elements, at least one, got H more than once", {"species": (1, 1)}),
    (ConfigError, r"species must be.*at least one, got none", {"species": ()}),
    (ConfigError, r"species must be.*from 1 to 118, got 119", {"species": (119,)}),
    (ConfigError, r"lmax must be an integer, at least 0, got -1. 1 is usual", {"lmax": -1}),
    (ConfigError, r"cutoff must be a positive number", {"cutoff": -5.0}),
    (ConfigError, r"mean_neighbors must be a positive number, got nan", {"mean_neighbors": float("nan")}),
    (ConfigError, r"backend must be one of", {"backend": "cuda"}),
]


test_bad_options = refused("error, message, options", BAD, lambda options: network(**options))


def test_bad_inputs(pos: Tensor) -> None:
    model, index = network(), edges(pos)
    calls: list[tuple[type[EqlayersError], str, tuple[Any, ...]]] = [
        (
            IndexRangeError,
            r"z must hold species among H, C, N, O, F, got also U\. Build",
            (Z.clone().fill_(92), pos, index),
        ),
        (IndexRangeError, r"got also -1, 119", (torch.tensor([6, 119, -1, 1, 1, 1]), pos, index)),
        (ShapeError, r"z, pos and batch must be .*got \[5\], \[6, 3\]", (Z[:5], pos, index)),
        (ShapeError, r"got \[6\], \[3, 6\] and \[6\]\. Give one row per atom", (Z, pos.T, index)),
        (ShapeError, r"edge_index must be \[2, E\] = \[src, dst\].*Pass edge_index\.t\(\)", (Z, pos, index.T)),
        (DTypeError, r"edge_index must be an int64 or int32 tensor", (Z, pos, index.float())),
        (
            IndexRangeError,
            r"edge_index\[1\] \(dst\) must lie in \[0, 6\), the number of receivers, got .*6",
            (Z, pos, torch.tensor([[0], [6]])),
        ),
        (IndexRangeError, r"edge_index.* must lie in .*got .*-1", (Z, pos, torch.tensor([[0], [-1]]))),
        (
            IndexRangeError,
            r"batch must lie in \[0, 1\), the number of structures, got values from 0 to 1",
            (Z, pos, index, (Z == 1).long(), 1),
        ),
        (DTypeError, r"z and batch must be int64, got torch\.float32", (Z.float(), pos, index)),
        (
            DTypeError,
            r"pos must have the dtype of the model, torch\.float64, got torch\.float32",
            (Z, pos.float(), index),
        ),
    ]
    for error, message, args in calls:
        with pytest.raises(error, match=message):
            model(*args)
    with pytest.raises(IndexRangeError, match=r"shifts must name species among .*got also He\. Build"):
        model.set_statistics({2: 1.0}, 1.0, 1.0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"shifts": {1: float("nan")}}, r"the shift of H must be a finite number, got nan\. Look for NaN"),
        ({"scale": 0.0}, r"scale must be a positive number, got 0\.0"),
        ({"mean_neighbors": float("inf")}, r"mean_neighbors must be a positive number, got inf"),
    ]
    for kwargs, message in wrong:
        with pytest.raises(ConfigError, match=message):
            model.set_statistics(**{"shifts": {}, "scale": 1.0, "mean_neighbors": 1.0, **kwargs})


PAIR = torch.tensor([[0, 1], [1, 0]])
MOLECULE = Structures(torch.tensor([1, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.74]]), PAIR)


def small_network(**options: Any) -> MoleculeNetwork:
    torch.manual_seed(0)
    made = MoleculeNetwork(["H"], hidden="4x0e + 4x1o", layers=2, cutoff=3.0, pooling="mean", **options)
    made.set_statistics({"H": 2.0}, 3.0, 1.5)
    return made


def written(path: Path, made: torch.nn.Module, **described: Any) -> Path:
    part = describe_part("the network", made) | described.pop("part", {})
    saved = {"network": part, "name": "gap", "unit": "eV"} | described
    state = {f"model.{name}": t for name, t in made.state_dict().items()} | {"loss_scale": torch.ones(())}
    torch.save({"state_dict": state, "hyper_parameters": {"property": saved}}, path)
    return path


@each(
    "readout, dtype",
    [(readout, dtype) for readout in ("scalar", "vector", "extent") for dtype in (torch.float32, torch.float64)],
)
def test_a_checkpoint_predicts_what_its_network_does(tmp_path: Path, readout: str, dtype: torch.dtype) -> None:
    made = small_network(readout=readout).to(dtype)
    learned = load_property(written(tmp_path / "a.ckpt", made))
    assert isinstance(learned, MoleculeProperty)
    assert (learned.name, learned.unit, learned.species, learned.cutoff) == ("gap", "eV", (1,), 3.0)
    assert (learned.dtype, learned.training) == (dtype, False)
    molecules = MOLECULE._replace(pos=MOLECULE.pos.to(dtype))
    assert torch.equal(learned(molecules), made(*molecules[:5]))


def test_its_dtype_can_be_chosen(tmp_path: Path) -> None:
    learned = load_property(written(tmp_path / "a.ckpt", small_network()), torch.float64)
    assert learned is not None
    assert learned.dtype == torch.float64


def test_the_random_state_is_kept(tmp_path: Path) -> None:
    path, before = written(tmp_path / "a.ckpt", small_network()), torch.get_rng_state()
    load_property(path)
    assert torch.equal(torch.get_rng_state(), before)


@each(
    "described, error, message",
    [
        ({"name": 3}, DataError, "name and unit of its property are no texts"),
        ({"unit": None}, DataError, "name and unit of its property are no texts"),
        ({"part": {"class_path": "os.system"}}, ConfigError, "the network must be of a class of eqlayers.models"),
        ({"part": {"init_args": {"species": [1]}}}, DataError, "its weights do not fit MoleculeNetwork"),
        ({"network": None}, ConfigError, "class_path and init_args"),
    ],
)
def test_files_that_are_refused(
    tmp_path: Path, described: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = written(tmp_path / "a.ckpt", small_network(), **described)
    with pytest.raises(error, match=message):
        load_property(path)


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    made = small_network()
    made.embedding.weight.data[0, 0] = float("nan")
    with pytest.raises(DataError, match="not finite"):
        load_property(written(tmp_path / "a.ckpt", made))


def test_a_property_is_no_potential(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"predicts gap \(eV\), not energies"):
        load_potential(written(tmp_path / "a.ckpt", small_network()))


def test_other_files_hold_no_property(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "a.pt")
    assert load_property(tmp_path / "a.pt") is None
    with pytest.raises(ConfigError, match="must be a file"):
        load_property(tmp_path / "none.pt")


def test_a_flipped_bit(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ckpt", small_network())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError):
        load_property(path)


# ---- further outputs ------------------------------------------------------------------------------------------------
FURTHER = {"charges": "atom", "dipole": "vector", "energy": "sum", "gap": "mean", "zpve": "sum"}
NUMBERS = {6: 0.1, 8: 0.2, 1: 0.3, 7: 0.4, 9: 0.5}


def with_further(**options: Any) -> MoleculeNetwork:
    torch.manual_seed(3)
    made = network(auxiliary=FURTHER, **options)
    statistics = {name: ({z: n * shift for z, shift in NUMBERS.items()}, n) for n, name in enumerate(FURTHER, 1)}
    made.set_statistics({6: -1000.0}, 2.0, 4.0, auxiliary=statistics)
    return made


def test_further_outputs_by_hand(pos: Tensor) -> None:
    """Each is its own number of the features: scaled and shifted by species, then pooled as it says."""
    made, batch = with_further(), torch.tensor([0, 0, 0, 0, 1, 1])
    kept: list[Tensor] = []
    made.read_auxiliary.register_forward_hook(lambda module, given, out: kept.append(out))
    edge_index = edges(pos)
    edge_index = edge_index[:, batch[edge_index[0]] == batch[edge_index[1]]]
    values = made.outputs(Z, pos, edge_index, batch, 2)
    shift = torch.tensor([NUMBERS[z] for z in Z.tolist()]).double()
    atoms = {name: n * (kept[0][:, n - 1] + shift) for n, name in enumerate(FURTHER, 1)}
    assert torch.allclose(values["charges"], atoms["charges"], atol=1e-14)
    for name in ("energy", "zpve", "gap"):
        sums = torch.stack([atoms[name][:4].sum(), atoms[name][4:].sum()])
        expected = sums / torch.tensor([4.0, 2.0]) if name == "gap" else sums
        assert torch.allclose(values[name], expected, atol=1e-12), name
    centre = torch.stack([pos[:4].mean(0), pos[4:].mean(0)])[batch]
    vectors = 2 * (kept[0][:, 5:] + kept[0][:, 1:2] * (pos - centre))
    assert torch.allclose(values["dipole"], torch.stack([vectors[:4].sum(0), vectors[4:].sum(0)]), atol=1e-12)
    assert {value.dtype for value in values.values()} == {torch.float64}
    assert torch.equal(values["y"], made(Z, pos, edge_index, batch, 2))


@pytest.mark.parametrize("determinant", [1, -1])
def test_a_further_vector_turns_with_the_molecule(determinant: int, pos: Tensor) -> None:
    made, rotation = with_further(), random_orthogonal(determinant=determinant)
    before, after = (made.outputs(Z, p, edges(p)) for p in (pos, pos @ rotation.T + 5.0))
    assert before["dipole"].norm() > 1e-3
    assert torch.allclose(after["dipole"], before["dipole"] @ rotation.T, atol=1e-10)
    assert torch.allclose(after["charges"], before["charges"], atol=1e-10)


def test_a_property_that_is_a_sum(pos: Tensor) -> None:
    made = with_further(sum_of=["energy", "zpve"])
    values = made.outputs(Z, pos, edges(pos))
    assert torch.equal(values["y"], values["energy"] + values["zpve"])
    assert torch.equal(values["y"], made(Z, pos, edges(pos)))
    assert not any(name.startswith("read.") for name in made.state_dict())


def test_without_further_outputs_nothing_changes(pos: Tensor) -> None:
    """The weights are drawn from the same random numbers, and the network computes the same values."""
    torch.manual_seed(3)
    plain = network()
    torch.manual_seed(3)
    made = network(auxiliary={"charges": "atom"})
    assert {name for name in made.state_dict() if "auxiliary" in name} >= {
        *("auxiliary_shifts", "auxiliary_scales", "read_auxiliary.weight")
    }
    assert plain.state_dict().keys() == {name for name in made.state_dict() if "auxiliary" not in name}
    for one in (plain, made):
        one.set_statistics({6: -1000.0}, 2.0, 4.0)
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in plain.state_dict().items())
    assert torch.equal(plain(Z, pos, edges(pos)), made(Z, pos, edges(pos)))
    assert plain.outputs(Z, pos, edges(pos)).keys() == {"y"}
    assert [*network(auxiliary=dict(reversed(FURTHER.items()))).auxiliary] == [*FURTHER]  # weights fit any order


def test_statistics_of_further_outputs_stay_in_float64(pos: Tensor) -> None:
    made = with_further().float()
    made.set_statistics({}, 1.0, 4.0, auxiliary={"energy": ({6: -1029.863012345678}, 1 / 3)})
    for step in (made, made.half().float()):
        assert float(step.auxiliary_shifts[2, 1]) == -1029.863012345678
        assert float(step.auxiliary_scales[2]) == 1 / 3
        assert float(step.auxiliary_scales[0]) == 1.0, "those that are not named stay"


def test_further_outputs_in_a_checkpoint(tmp_path: Path) -> None:
    made = small_network(auxiliary={"a.b": "sum", "charges": "atom"})
    learned = load_property(written(tmp_path / "a.ckpt", made))
    assert learned is not None
    assert torch.equal(learned(MOLECULE), made(*MOLECULE[:5]))
    values, expected = learned.network.outputs(*MOLECULE[:5]), made.outputs(*MOLECULE[:5])
    assert values.keys() == expected.keys() == {"a.b", "charges", "y"}
    assert all(torch.equal(values[name], expected[name]) for name in values)


test_bad_further_outputs = refused(
    "options, error, message",
    [
        (
            {"auxiliary": {"charges": "atoms"}},
            ConfigError,
            "auxiliary.charges must be one of atom, .* got 'atoms'",
        ),
        ({"auxiliary": {"y": "sum"}}, ConfigError, "auxiliary must be names but 'y', got"),
        ({"auxiliary": ["charges"]}, ConfigError, "auxiliary must be a mapping from name to kind of output, got"),
        ({"auxiliary": {"mu": "vector"}, "hidden": "4x0e"}, IrrepsError, "hidden must hold vectors .* further vector"),
        ({"sum_of": ["zpve"]}, ConfigError, "sum_of must be further outputs of the kind 'sum', .* got 'zpve'"),
        ({"sum_of": ["gap"], "auxiliary": {"gap": "mean"}}, ConfigError, "sum_of must be .*, got 'gap'. Add"),
        (
            {"sum_of": ["zpve"], "auxiliary": {"zpve": "sum"}, "pooling": "mean"},
            ConfigError,
            "sum_of must be .*, got readout 'scalar' with pooling 'mean'",
        ),
    ],
    lambda options: network(**options),
)


def test_statistics_of_an_unknown_output() -> None:
    with pytest.raises(ConfigError, match=r"auxiliary must be one of charges, .*, got 'charge'"):
        with_further().set_statistics({}, 1.0, 4.0, auxiliary={"charge": ({}, 1.0)})
    with pytest.raises(ConfigError, match=r"scale of charges must be a positive number, got 0\.0"):
        with_further().set_statistics({}, 1.0, 4.0, auxiliary={"charges": ({}, 0.0)})
