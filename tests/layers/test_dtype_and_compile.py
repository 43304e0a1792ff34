"""Mixed precision, float64 buffers, torch.compile, and state dicts in unusual places."""

import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers.errors import DTypeError
from eqlayers.models import MoleculeNetwork

IRREPS = "4x0e + 4x1o"
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 0, "uvu", True)]


def water() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    z = torch.tensor([8, 1, 1])
    pos = torch.tensor([[0.0, 0.0, 0.12], [0.0, 0.76, -0.48], [0.0, -0.76, -0.48]])
    return z, pos, torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])


@pytest.mark.kernels
def test_autocast_mixes_dense_and_sparse_layers() -> None:
    linear, product = eq.Linear(IRREPS, IRREPS), eq.TensorProduct(IRREPS, "0e + 1o", IRREPS, PATHS)
    scale = eq.SO3Scale(IRREPS)
    x, y = torch.randn(5, 16), torch.randn(5, 4)
    want = scale(product(linear(x), y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = scale(product(linear(x), y))
    # one rounding to bfloat16 in the dense layer, of unit-variance numbers
    assert (got - want).abs().max() < 16 * torch.finfo(torch.bfloat16).eps * want.abs().max()
    assert not torch.equal(got.float(), want), "nothing ran in bfloat16"


@pytest.mark.kernels
def test_autocast_of_the_whole_model() -> None:
    torch.manual_seed(0)
    model = MoleculeNetwork(hidden="8x0e + 8x1o", layers=2)
    want = model(*water())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model(*water())
    assert got.dtype == torch.float64
    assert torch.isfinite(got).all()
    # a dozen dense layers one after the other, one rounding to bfloat16 each
    assert (got - want).abs().max() < 12 * torch.finfo(torch.bfloat16).eps * want.abs().max()
    assert not torch.equal(got, want), "nothing ran in bfloat16"
    got.sum().backward()


def test_without_autocast_mixed_dtypes_are_an_error() -> None:
    product = eq.TensorProduct(IRREPS, "0e + 1o", IRREPS, PATHS)
    with pytest.raises(DTypeError, match=r"Convert one of them with `\.to\(torch.bfloat16\)`"):
        product(torch.randn(5, 16).bfloat16(), torch.randn(5, 4))


@pytest.mark.parametrize("change", ["float", "half", "bfloat16"])
def test_shifts_scale_and_neighbours_stay_float64(change: str) -> None:
    model = MoleculeNetwork(hidden="4x0e + 4x1o", layers=1)
    model.set_statistics({1: -13.6131234567, 8: -2042.6112345678}, 0.1234567890123, 12.345678901234)
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if buffer.dtype == torch.float64}
    assert len(before) == 3
    getattr(model, change)()
    for name, value in before.items():
        kept = model.get_buffer(name)
        assert kept.dtype == torch.float64
        assert torch.equal(kept, value), name


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore")
def test_compiled_model_gives_the_same_numbers() -> None:
    torch._dynamo.reset()
    model = MoleculeNetwork(hidden="4x0e + 4x1o", layers=1)
    torch.testing.assert_close(torch.compile(model, backend="eager")(*water()), model(*water()))


@pytest.mark.kernels
def test_state_dict_under_a_meta_context_does_not_poison_the_layer() -> None:
    paths = [(0, 0, 0, "uvw", True, 0.5)]  # a product that no other test saves
    layer = eq.TensorProduct("3x1o", "2x1o", "5x1e", paths)
    with torch.device("meta"):
        layer.state_dict()
    state = layer.state_dict()
    assert all(value.device.type == "cpu" for value in state.values())
    o3.TensorProduct("3x1o", "2x1o", "5x1e", paths).load_state_dict(state)


def test_a_saved_state_can_be_changed_without_changing_the_next() -> None:
    layer = eq.FullyConnectedTensorProduct("1o", "1o", "1e").double()
    key = next(k for k in layer.state_dict() if "w3j" in k)
    state = layer.state_dict()
    state[key].zero_()
    assert layer.state_dict()[key].abs().sum() > 0


@pytest.mark.parametrize("left_right", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_state_dicts_follow_the_compile_options(left_right: bool, right: bool) -> None:
    options = {"compile_left_right": left_right, "compile_right": right}
    ours = eq.TensorProduct("2x1o", "1x1o", "2x1e", [(0, 0, 0, "uvu", True)], **options)
    theirs = o3.TensorProduct("2x1o", "1x1o", "2x1e", [(0, 0, 0, "uvu", True)], **options)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


def test_lists_of_weights_are_read_as_e3nn_reads_them() -> None:
    paths = [(0, 0, 0, "uvw", True), (0, 0, 1, "uvu", True)]
    for shared in (True, False):
        options = {"shared_weights": shared, "internal_weights": False}
        ours = eq.TensorProduct("2x1o", "3x1o", "4x0e + 2x1e", paths, **options)
        theirs = o3.TensorProduct("2x1o", "3x1o", "4x0e + 2x1e", paths, **options)
        lead = [()] if shared else [(5,), ()]
        for batch in lead:
            for shapes in ([(2, 3, 4), (2, 3)], [(24,), (6,)]):
                weights = [torch.randn(*batch, *shape) for shape in shapes]
                x, y = torch.randn(5, 6), torch.randn(5, 9)
                torch.testing.assert_close(ours(x, y, weights), theirs(x, y, weights))


def test_a_scale_that_wants_a_gradient_is_refused() -> None:
    scale = torch.nn.Parameter(torch.ones(1))
    index = torch.tensor([0])
    with pytest.raises(DTypeError, match="Pass what is learned as an operand"):
        eq.sparse.SparseProductInfo(scale, index, index)
    with pytest.raises(DTypeError, match="Pass what is learned as an operand"):
        eq.sparse.sparse_product_infos([0], [0], [0], scale, in1_size=1, in2_size=1, out_size=1)
    with pytest.raises(DTypeError, match="complex"):
        eq.sparse.sparse_product_infos([0], [0], [0], [1j], in1_size=1, in2_size=1, out_size=1)


def test_coefficients_given_as_numbers_keep_float64() -> None:
    info = eq.sparse.sparse_product_infos([0], [0], [0], [0.1], in1_size=1, in2_size=1, out_size=1)[0]
    assert info.scale is not None
    assert info.scale.item() == 0.1
