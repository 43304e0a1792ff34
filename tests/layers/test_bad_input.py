"""Mistakes get a message with what was expected, what came, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import eqlayers as eq
from eqlayers import FullTensorProduct, FullyConnectedTensorProduct, Linear, SO3Scale, TensorProduct, TensorSquare
from eqlayers.errors import (
    BackendError,
    ConfigError,
    DTypeError,
    EqlayersError,
    IndexRangeError,
    IrrepsError,
    ShapeError,
)
from eqlayers.nn import BesselBasis, GatedNonlinearity, Interaction, NormalizedActivation, PolynomialCutoff
from tests.each import each

ROW = (0, 0, 0, "uvw", True)


def product(*rows: Any, in1: str = "2x1o", in2: str = "3x1o", out: str = "4x0e", **kwargs: Any) -> TensorProduct:
    return TensorProduct(in1, in2, out, rows or [ROW], **kwargs)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(5, 6), torch.zeros(5, 9)


CONSTRUCTION: list[tuple[type[EqlayersError], str, Callable[[], Any]]] = [
    (
        IrrepsError,
        r"irreps_in1 must be irreps such as '16x0e.*got '8x0e \+ 4q'.*Write them so",
        lambda: product(in1="8x0e + 4q"),
    ),
    (IrrepsError, r"irreps_out must be irreps.*got 7 \(e3nn says.*Write them so", lambda: Linear("0e", 7)),
    (
        IndexRangeError,
        r"i_in1 must lie in \[0, 1\).*got 1\. Count irreps groups",
        lambda: product((1, 0, 0, "uvw", True)),
    ),
    (IndexRangeError, r"i_in2 must lie in \[0, 1\).*got -1\. Count", lambda: product((0, -1, 0, "uvw", True))),
    (IndexRangeError, r"i_out must lie in \[0, 1\).*got 0\.5\. Count", lambda: product((0, 0, 0.5, "uvw", True))),
    (IrrepsError, r"instruction 0 \(0, 0, 0\): must be .*got 3 entries\. Add", lambda: product((0, 0, 0))),
    (IrrepsError, r"instruction 1 must be a tuple .*got 3\. Pass a list", lambda: product(ROW, 3)),
    (IrrepsError, r"mode must be one of uvw, uvu,.*got 'vuw'\. Pick", lambda: product((0, 0, 0, "vuw", True))),
    (
        IrrepsError,
        r"'uuu' needs equal multiplicities.*got 2 and 3\. Use 'uvw'",
        lambda: product((0, 0, 0, "uuu", True)),
    ),
    (IrrepsError, r"'u<vw' needs equal multiplicities.*got 2 and 3", lambda: product((0, 0, 0, "u<vw", True))),
    (
        IrrepsError,
        r"'uvu' needs the multiplicity 2 of out \(u\), got 4\. Change",
        lambda: product((0, 0, 0, "uvu", True)),
    ),
    (IrrepsError, r"'uvuv' needs the multiplicity 6 of out \(u\*v\), got 4", lambda: product((0, 0, 0, "uvuv", True))),
    (IrrepsError, r"'uvw' needs has_weight=True.*got False\. Give it", lambda: product((0, 0, 0, "uvw", False))),
    (IrrepsError, r"parity of 1o x 1o is 'e', got the output 0o\. Use 0e", lambda: product(out="4x0o")),
    (IrrepsError, r"1o x 1o holds degrees 0 to 2, got the output 3e\. Drop", lambda: product(out="4x3e")),
    (
        IrrepsError,
        r"path_weight must be a finite number of at least 0, got -1\.0\. .*use its square",
        lambda: product((*ROW, -1.0)),
    ),
    (IrrepsError, r"path_weight must be a finite number.*got nan", lambda: product((*ROW, float("nan")))),
    (IrrepsError, r"path_weight must be a finite number.*got inf", lambda: product((*ROW, float("inf")))),
    (
        ConfigError,
        r"in1_var must be .*, 1 in all, got 2\. Give one for each",
        lambda: product(in1_var=[1.0, 2.0]),
    ),
    (
        ConfigError,
        r"in2_var\[0\] must be a finite number of at least 0, got -1\. Use 1\.0",
        lambda: product(in2_var=[-1]),
    ),
    (ConfigError, r"out_var must be a list of numbers, got 'a'\. Give", lambda: product(out_var="a")),
    (
        ConfigError,
        r"irrep_normalization must be one of component, norm, none, got 'foo'\. Pick",
        lambda: product(irrep_normalization="foo"),
    ),
    (
        ConfigError,
        r"path_normalization must be one of element, path, none, got 'foo'",
        lambda: product(path_normalization="foo"),
    ),
    (ConfigError, r"layout must be one of mul_ir, ir_mul, got 'foo'\. Pick", lambda: product(layout="foo")),
    (ConfigError, r"backend must be one of .*torch.* or None, got 'foo'\. Pass", lambda: product(backend="foo")),
    (
        ConfigError,
        r"internal_weights=True must come with.*Pass weights per sample",
        lambda: product(internal_weights=True, shared_weights=False),
    ),
    (IrrepsError, r"filter_ir_out must be an irrep.*got 'x'", lambda: FullTensorProduct("1o", "1o", ["x"])),
    (IrrepsError, r"filter_ir_out must be None with irreps_out", lambda: TensorSquare("1o", "0e", ["0e"])),
    (ConfigError, r"irrep_normalization must be one of.*'foo'", lambda: TensorSquare("1o", irrep_normalization="foo")),
    (
        ConfigError,
        r"irrep_normalization must be one of.*'foo'",
        lambda: FullyConnectedTensorProduct("1o", "1o", "0e", "foo"),
    ),
    (
        ConfigError,
        r"f_in and f_out must be given together, got 2 and None\. Give both",
        lambda: Linear("0e", "0e", f_in=2),
    ),
    (
        IndexRangeError,
        r"instruction 0 must name groups .*got \(0, 3\)\. Count",
        lambda: Linear("0e", "0e", instructions=[(0, 3)]),
    ),
    (
        IrrepsError,
        r"must connect equal irreps, got 0e -> 1o\. .*drop it",
        lambda: Linear("0e", "1o", instructions=[(0, 0)]),
    ),
    (
        IrrepsError,
        r"True for 0e groups only.*got \[True\] for 1x1o\. Pass biases=True",
        lambda: Linear("1o", "1o", biases=[True]),
    ),
    (IrrepsError, r"or 1 flags.*got \[True, False\]", lambda: Linear("0e", "0e", biases=[True, False])),
    (
        ConfigError,
        r"path_normalization must be one of element, path, got 'none'",
        lambda: Linear("0e", "0e", path_normalization="none"),
    ),
    (ConfigError, r"scale must be one of fixed, learned, external, got 'foo'", lambda: SO3Scale("0e", "foo")),
    (ConfigError, r"per must be one of copy, group, got 'irrep'", lambda: SO3Scale("0e", per="irrep")),
    (
        ConfigError,
        r"normalization must be one of component, norm, got 'sum'",
        lambda: SO3Scale("0e", normalization="sum"),
    ),
    (ConfigError, r"values must be given with scale='fixed', got None\. Use", lambda: SO3Scale("0e", "fixed")),
    (ConfigError, r"values must not be given with scale='learned', got 2\.0", lambda: SO3Scale("0e", "learned", 2.0)),
    (
        ConfigError,
        r"values must hold 1 or 5 numbers.*got shape \[2\]\. Give one",
        lambda: SO3Scale("2x0e+3x1o", "fixed", [1, 2]),
    ),
    (ConfigError, r"activation must be one of silu, sigmoid, tanh, got 'relu'", lambda: NormalizedActivation("relu")),
    (ConfigError, r"odd must be one of tanh, got 'silu'", lambda: GatedNonlinearity("0o", odd="silu")),
    (ConfigError, r"cutoff must be a positive number of Angstrom, got 0\. Use", lambda: PolynomialCutoff(0)),
    (ConfigError, r"cutoff must be a positive number.*got inf", lambda: BesselBasis(8, float("inf"))),
    (ConfigError, r"p must be a finite number of at least 2, got 1\. .*6 is usual", lambda: PolynomialCutoff(5.0, 1)),
    (ConfigError, r"num_basis must be an integer, at least 1, got 0\. 8 is usual", lambda: BesselBasis(0)),
    (
        IrrepsError,
        r"some irrep of irreps_out must lie in .*got 4x0e x 1x0e for 4x1o\. Add degrees",
        lambda: Interaction("4x0e", "0e", "4x1o"),
    ),
    (
        ConfigError,
        r"mean_neighbors must be a positive number, got 0\.0",
        lambda: Interaction("0e", "0e", "0e", mean_neighbors=0.0),
    ),
]


@each("error, message, make", CONSTRUCTION)
def test_construction(error: type[EqlayersError], message: str, make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        make()


X, Y = inputs()
OWN = product()
EXTERNAL = product(internal_weights=False)
SAMPLES = product(shared_weights=False)
LIN = Linear("2x1o", "3x1o")
FREE = Linear("2x0e", "3x0e", shared_weights=False, biases=True)
AXES = Linear("2x0e", "3x0e", f_in=4, f_out=5)
GATE = SO3Scale("2x0e+1o", "external")

CALLS: list[tuple[type[EqlayersError], str, Callable[[], Any]]] = [
    (
        ShapeError,
        r"x must be \[\.\.\., 6\] for irreps 2x1o, got \[5, 7\]\. Build the layer for this width",
        lambda: OWN(torch.zeros(5, 7), Y),
    ),
    (ShapeError, r"x must be .*got \[6, 5\]\. The features go last.*movedim", lambda: OWN(X.T, Y)),
    (
        ShapeError,
        r"y must be .*got \[5, 3, 3\]\. .*`y\.flatten\(-2\)`, layout 'ir_mul'",
        lambda: OWN(X, Y.reshape(5, 3, 3)),
    ),
    (ShapeError, r"x must be .*got \[\]", lambda: OWN(torch.tensor(1.0), Y)),
    (DTypeError, r"x must be a tensor \[\.\.\., 6\], got \[0\.0, .*\]\. Use torch", lambda: OWN([0.0] * 6, Y)),
    (ShapeError, r"leading axes of x, y must broadcast, got \[\[5\], \[4\]\]\. Give", lambda: OWN(X, Y[:4])),
    (ShapeError, r"leading axes of x, y, weight must broadcast", lambda: SAMPLES(X, Y, torch.zeros(3, 24))),
    (
        DTypeError,
        r"y must have the dtype of x, torch\.float32, got torch\.float64\. Convert",
        lambda: OWN(X, Y.double()),
    ),
    (DTypeError, r"x must be float64, float32, .*got torch\.int64\. Convert", lambda: OWN(X.long(), Y.long())),
    (
        DTypeError,
        r"weight must have the dtype of x, torch\.float64, got torch\.float32",
        lambda: OWN(X.double(), Y.double()),
    ),
    (ShapeError, r"weight of TensorProduct must be \[24\], got \[25\]\. Build", lambda: OWN(X, Y, torch.zeros(25))),
    (
        ShapeError,
        r"weight of TensorProduct must be \[24\], got \[5, 24\]\. .*shared_weights=False",
        lambda: OWN(X, Y, torch.zeros(5, 24)),
    ),
    (
        ShapeError,
        r"must be \[\.\.\., 24\] with at least one batch axis, got \[24\]\. Add",
        lambda: SAMPLES(X, Y, torch.zeros(24)),
    ),
    (ShapeError, r"must be given weight of shape \[\.\.\., 24\].*got None\. Pass weight=", lambda: EXTERNAL(X, Y)),
    (ShapeError, r"list of weights must have 1 tensors.*got 2\. Give", lambda: EXTERNAL(X, Y, [torch.zeros(24)] * 2)),
    (
        ShapeError,
        r"weight 0 of the list must be a tensor \[2, 3, 4\], got \[2, 3, 5\]\. Order",
        lambda: EXTERNAL(X, Y, [torch.zeros(2, 3, 5)]),
    ),
    (
        DTypeError,
        r"weight of TensorProduct must be a tensor \[24\], or a list.*got 1\.0\. Use",
        lambda: EXTERNAL(X, Y, 1.0),
    ),
    (IndexRangeError, r"instruction must lie in \[0, 1\).*got 4\. Count", lambda: OWN.weight_view_for_instruction(4)),
    (IndexRangeError, r"instruction must lie in \[0, 1\).*got -1", lambda: OWN.weight_view_for_instruction(-1)),
    (ShapeError, r"features must be \[\.\.\., 6\] for irreps 2x1o, got \[5, 9\]\. Build", lambda: LIN(Y)),
    (
        ShapeError,
        r"weight of Linear must be \[6\], got \[5, 6\]\. Build it with shared_weights=False",
        lambda: LIN(X, torch.zeros(5, 6)),
    ),
    (DTypeError, r"weight must have the dtype of features", lambda: LIN(X.double())),
    (
        DTypeError,
        r"bias must have the dtype of features, torch\.float32, got torch\.float64",
        lambda: FREE(torch.zeros(5, 2), torch.zeros(5, 6), torch.zeros(5, 3).double()),
    ),
    (
        ShapeError,
        r"leading axes of features, weight, bias must broadcast, got \[\[5\], \[4\], \[4\]\]",
        lambda: FREE(torch.zeros(5, 2), torch.zeros(4, 6), torch.zeros(4, 3)),
    ),
    (ShapeError, r"weight of Linear must be given as \[\.\.\., 6\].*got None", lambda: FREE(torch.zeros(5, 2))),
    (
        ShapeError,
        r"bias of Linear must be given as \[\.\.\., 3\].*got None",
        lambda: FREE(torch.zeros(5, 2), torch.zeros(5, 6)),
    ),
    (
        ShapeError,
        r"features must be \[\.\.\., 4, 2\], got \[5, 2\]\. Put the f_in axis",
        lambda: AXES(torch.zeros(5, 2)),
    ),
    (
        ShapeError,
        r"scales must be \[\.\.\., 3\] for scale='external', got None\. Build",
        lambda: GATE(torch.zeros(5, 5)),
    ),
    (
        ShapeError,
        r"scales must be None for scale='learned', got a tensor \[5, 3\]",
        lambda: SO3Scale("2x0e+1o")(torch.zeros(5, 5), torch.zeros(5, 3)),
    ),
    (
        ShapeError,
        r"scales must be \[\.\.\., 3\], one per copy.*got \[5, 5\]\. Check per=",
        lambda: GATE(torch.zeros(5, 5), torch.zeros(5, 5)),
    ),
    (ShapeError, r"leading axes of x, scales must broadcast", lambda: GATE(torch.zeros(5, 5), torch.zeros(4, 3))),
    (DTypeError, r"scales must have the dtype of x", lambda: GATE(torch.zeros(5, 5), torch.zeros(5, 3).double())),
]


@each("error, message, make", CALLS)
def test_calls(error: type[EqlayersError], message: str, make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        make()


def test_errors_are_also_the_errors_that_python_users_catch() -> None:
    pairs: list[tuple[type[EqlayersError], type[Exception]]] = [
        (ShapeError, ValueError),
        (DTypeError, TypeError),
        (IndexRangeError, IndexError),
    ]
    pairs += [(IrrepsError, ValueError), (ConfigError, ValueError), (BackendError, RuntimeError)]
    # what e3nn raises for the same mistakes
    pairs += [(IrrepsError, AssertionError), (ConfigError, AssertionError), (IndexRangeError, ValueError)]
    pairs += [(ShapeError, AssertionError), (ShapeError, RuntimeError)]
    assert [error.__name__ for error, builtin in pairs if not issubclass(error, builtin)] == []


def test_a_refused_backend_says_why() -> None:
    layer = TensorProduct("2x1o", "3x1o", "4x0e", [ROW], backend="triton", internal_weights=False)
    x, y, weight = (torch.zeros(*shape, device="meta") for shape in ((5, 6), (5, 9), (24,)))
    with pytest.raises(BackendError, match=r"backend 'triton' must accept this call, but it .*Pass backend=None"):
        layer(x, y, weight)


@pytest.mark.parametrize(
    ("instructions", "fix"),
    [
        (None, "Use FullyConnectedTensorProduct"),
        ("uvw", "Use FullyConnectedTensorProduct"),
        ([(0, 0, 0, "uvw", True, "x")], "path_weight must be a finite number of at least 0, got 'x'"),
        ([(0, 0, 0, ["uvw"], True)], "Pick one of these"),
    ],
)
def test_instructions_of_another_kind(instructions, fix):
    with pytest.raises(IrrepsError, match=fix):
        eq.TensorProduct("2x0e", "0e", "2x0e", instructions)


@pytest.mark.parametrize("instructions", [[0], [(0.7, 0)], [(0, 0, 0)]])
def test_linear_instructions_of_another_kind(instructions):
    with pytest.raises(IrrepsError, match="Pass a list of such pairs"):
        eq.Linear("2x0e", "2x0e", instructions=instructions)


@pytest.mark.parametrize("length", [-1, 0, 1.5])
def test_linear_channel_axes_must_be_counts(length):
    with pytest.raises(ConfigError, match="f_in must be a number of channels or None, at least 1, got"):
        eq.Linear("2x0e", "2x0e", f_in=length, f_out=1)


@pytest.mark.kernels
def test_explain_wants_a_module():
    with pytest.raises(ConfigError, match=r"module must be a torch\.nn\.Module or None, got 'torch'\. Pass a layer"):
        eq.explain("torch")


def test_scale_wants_scale_infos():
    product = eq.sparse.sparse_product_infos([0], [0], [0], in1_size=1, in2_size=1, out_size=1)
    for infos in ((product[0], product[1]), (None, None)):
        with pytest.raises(DTypeError, match="sparse_scale_infos"):
            eq.functional.sparse_scale(torch.ones(1, 1), *infos)
