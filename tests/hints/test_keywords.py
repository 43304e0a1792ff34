"""Arguments that constructors do not have are answered by the right name, and calls stay as they were."""

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import eqlayers as eq
from eqlayers import models, nn
from eqlayers.data import radius_graph
from eqlayers.errors import ArgumentError, ConfigError, EqlayersError
from eqlayers.hints import names
from tests.each import each

GRAMMAR = re.compile(r"^arguments of (\w+) must be among those that it has, got (\w+)=.+\. (Write|It has) .+\.$")
PATHS = [(0, 0, 0, "uvu", True)]

#: A call -> what its error ends with.
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "NequIP r_max": (lambda: models.NequIP([1], r_max=4.0), "got r_max=4.0. Write cutoff= (by default 5.0)."),
    "NequIP num_layers": (lambda: models.NequIP([1], num_layers=4), "Write layers= (by default 4)."),
    "NequIP l_max": (lambda: models.NequIP([1], l_max=2), "Write lmax= (by default 2)."),
    "NequIP type_names": (lambda: models.NequIP(type_names=["H"]), "Write species=."),
    "NequIP avg_num_neighbors": (lambda: models.NequIP([1], avg_num_neighbors=9.0), "Write mean_neighbors="),
    "MACE num_interactions": (lambda: models.MACE([1], num_interactions=2), "Write layers= (by default 2)."),
    "MACE hidden_irreps": (lambda: models.MACE([1], hidden_irreps="8x0e"), "Write hidden="),
    "MACE hidden_channels": (lambda: models.MACE([1], hidden_channels=8), "Write hidden='32x0e + 32x1o'."),
    "MACE num_elements": (lambda: models.MACE(num_elements=2), "Write species=[1, 8], the atomic numbers."),
    "MACE max_ell": (lambda: models.MACE([1], max_ell=3), "Write lmax= (by default 3)."),
    "MACE num_bessel": (lambda: models.MACE([1], num_bessel=8), "Write num_basis= (by default 8)."),
    "MACE MLP_irreps": (lambda: models.MACE([1], MLP_irreps="8x0e"), "Write readout_hidden= (by default '16x0e')."),
    "Equiformer num_heads": (lambda: models.Equiformer([1], num_heads=4), "Write heads= (by default 4)."),
    "Potential atomic_energies": (lambda: eq.Potential(None, atomic_energies=[0.0]), "Write shifts=."),
    "SphericalHarmonics lmax": (lambda: nn.SphericalHarmonics(lmax=2, normalize=True),
        "Write irreps_out=list(range(lmax + 1)), the degrees."),
    "SphericalHarmonics l": (lambda: nn.SphericalHarmonics(l=2, normalize=True), "Write irreps_out=."),
    "SphericalHarmonics normalise": (lambda: nn.SphericalHarmonics(2, normalise=True), "Write normalize=."),
    "EdgeGeometry lmax": (lambda: nn.EdgeGeometry(lmax=2), "irreps_out=list(range(lmax + 1)), the degrees."),
    "Interaction r_max": (lambda: nn.Interaction("0e", "0e", "0e", r_max=4.0), "Write cutoff= (by default 5.0)."),
    "Interaction irreps_edge_attr": (lambda: nn.Interaction("0e", irreps_edge_attr="0e"), "Write irreps_sh=."),
    "TensorProduct paths": (lambda: eq.TensorProduct("0e", "0e", "0e", paths=PATHS), "Write instructions=."),
    "TensorProductConv method": (lambda: eq.TensorProductConv("0e", "0e", "0e", PATHS, method="x"), "Write backend=."),
    "TensorProductConv nothing": (lambda: eq.TensorProductConv("0e", "0e", "0e", PATHS, quux=1),
        "It has irreps_in1, irreps_in2, irreps_out, instructions, in1_var, in2_var, out_var, "
        "irrep_normalization, path_normalization, internal_weights, shared_weights, compile_left_right, compile_right, "
        "normalization, simplify, layout, backend, deterministic."),
    "FullTensorProduct filter": (lambda: eq.FullTensorProduct("0e", "0e", filter=["0e"]), "Write filter_ir_out=."),
    "Linear bias": (lambda: eq.Linear("0e", "0e", bias=True), "Write biases= (by default False)."),
    "Linear in_irreps": (lambda: eq.Linear(in_irreps="0e", irreps_out="0e"), "Write irreps_in=."),
    "IrrepwiseLinear bias": (lambda: nn.IrrepwiseLinear("0e", bias=True), "Write biases= (by default False)."),
    "SymmetricContraction num_species": (lambda: nn.SymmetricContraction("0e", "0e", 2, num_species=1),
        "Write num_elements=."),
    "RadialNetwork out_dim": (lambda: nn.RadialNetwork(out_dim=8), "Write num_weights=."),
    "RadialNetwork hs": (lambda: nn.RadialNetwork(8, hs=[64]), "Write hidden= (by default (64,))."),
    "BesselBasis number": (lambda: nn.BesselBasis(number=8), "Write num_basis= (by default 8)."),
    "GaussianBasis n_rbf": (lambda: nn.GaussianBasis(n_rbf=8), "Write num_basis= (by default 8)."),
    "CosineCutoff r_max": (lambda: nn.CosineCutoff(r_max=8.0), "Write cutoff= (by default 5.0)."),
    "PolynomialCutoff power": (lambda: nn.PolynomialCutoff(power=6), "Write p= (by default 6)."),
    "Dropout drop_prob": (lambda: nn.Dropout("0e", drop_prob=0.1), "Write p="),
    "a typing error": (lambda: nn.RMSNorm("0e", afine=True), "Write affine= (by default True)."),
    "Calculator model_paths": (lambda: eq.Calculator(model_paths="x"), "Write potential_or_path=."),
    "Calculator default_dtype": (lambda: eq.Calculator("x", default_dtype="float64"), "Write dtype=."),
    "load_potential map_location": (lambda: eq.load_potential("x", map_location="cpu"), "Write device="),
    "save_potential filename": (lambda: eq.save_potential(None, filename="x"), "Write path=."),
    "accelerate method": (lambda: eq.accelerate(torch.nn.Linear(1, 1), method="cpu"), "Write backend=."),
    "paths lmax": (lambda: eq.paths("1o", "1o", lmax=2),
        "Write filter_ir_out=[(l, p) for l in range(lmax + 1) for p in (1, -1)]."),
    "radius_graph r": (lambda: radius_graph(torch.zeros(1, 3), r_max=1.0), "Write cutoff=."),
}  # fmt: skip


@each("call", CALLS)
def test_unknown_arguments_name_the_right_one(call: str) -> None:
    function, ending = CALLS[call]
    with pytest.raises(ArgumentError) as error:
        function()
    match = GRAMMAR.match(str(error.value))
    assert match is not None, str(error.value)
    assert str(error.value).endswith(ending) or (ending.endswith("=") and ending in str(error.value)), str(error.value)
    owner, _, wrong = call.partition(" ")
    if owner != "a":
        assert match[1] == owner
        assert wrong in ("nothing", "r", match[2])
    assert isinstance(error.value, TypeError)
    assert isinstance(error.value, EqlayersError)
    assert error.value.__suppress_context__


EXAMPLE = re.compile(r"^arguments of (\w+) must include (.+), got (.+?)\. Write, for example, (.+)\.$")

#: A call without some arguments -> the arguments that are missing, and the others.
MISSING: dict[str, tuple[Callable[[], Any], str, str]] = {
    "TensorProduct": (lambda: eq.TensorProduct("0e", "0e"), "irreps_out and instructions", "'0e', '0e'"),
    "TensorProduct ": (lambda: eq.TensorProduct("0e", "0e", irreps_out="0e"), "instructions",
        "'0e', '0e', irreps_out='0e'"),
    "TensorProductConv": (lambda: eq.TensorProductConv("0e", "0e"), "irreps_out and instructions", "'0e', '0e'"),
    "FullTensorProduct": (lambda: eq.FullTensorProduct("0e"), "irreps_in2", "'0e'"),
    "Linear": (lambda: eq.Linear(), "irreps_in and irreps_out", "none"),
    "SO3Scale": (lambda: nn.SO3Scale(), "irreps", "none"),
    "SphericalHarmonics": (lambda: nn.SphericalHarmonics(2), "normalize", "2"),
    "MACE": (lambda: models.MACE(), "species", "none"),
    "NequIP": (lambda: models.NequIP(layers=2), "species", "layers=2"),
    "Equiformer": (lambda: models.Equiformer(), "species", "none"),
    "TFN": (lambda: models.TFN(), "species", "none"),
    "Potential": (lambda: eq.Potential(torch.nn.ReLU()), "species", "a module of type ReLU"),
    "load_potential": (lambda: eq.load_potential(), "path", "none"),
    "radius_graph": (lambda: radius_graph(torch.zeros(1, 3)), "cutoff", "a tensor [1, 3] of torch.float32"),
}  # fmt: skip


@each("call", MISSING)
def test_missing_arguments_are_named_with_an_example(call: str) -> None:
    function, names, shown = MISSING[call]
    with pytest.raises(ArgumentError) as error:
        function()
    match = EXAMPLE.match(str(error.value))
    assert match is not None, str(error.value)
    assert match.groups()[:3] == (call.strip(), names, shown)
    assert match[4].startswith(f"{call.strip()}(")
    assert isinstance(error.value, TypeError)
    assert error.value.__suppress_context__


def test_every_layer_and_network_has_an_example_that_works() -> None:
    """So that a reader of the error can write what it says."""
    known = {name: getattr(part, name) for part in (nn, models) for name in part.__all__}
    known |= {"torch": torch, "load_potential": lambda path: eq.Potential(models.TFN([1, 8]), [1, 8])}
    for kind in classes():
        needs = [p for p in names.parameters(kind) if p.default is inspect.Parameter.empty]
        call = names.example(kind)
        if needs:
            assert call is not None, kind
            assert isinstance(eval(call, known), kind), call


def test_a_subclass_elsewhere_that_forgets_an_argument_hears_of_the_layer() -> None:
    class Mine(eq.Linear):
        def __init__(self, irreps: str) -> None:
            super().__init__(irreps)

    with pytest.raises(ArgumentError, match=r"^arguments of Linear must .*got '0e'"):
        Mine("0e")
    with pytest.raises(TypeError, match=r"Mine\.__init__\(\) missing 1 required") as error:
        Mine()  # type: ignore[call-arg]
    assert not isinstance(error.value, ArgumentError)


def test_a_length_in_place_of_a_number_of_functions() -> None:
    right = r"num_basis must be an integer, .*got 5\.0\. Write num_basis=8, cutoff=5\.0: num_basis comes first\."
    for wrong in (
        lambda: nn.BesselBasis(5.0, 8),
        lambda: nn.GaussianBasis(5.0, 8),
        lambda: eq.functional.radial_basis(torch.ones(1), "bessel", 5.0, 8),
    ):
        with pytest.raises(ConfigError, match=right):
            wrong()
    with pytest.raises(ConfigError, match=r"got 2\.5\. 8 is usual\."):
        nn.BesselBasis(2.5)


def classes() -> list[type]:
    parts = (nn, models)
    members = [getattr(part, name) for part in parts for name in part.__all__]
    return [c for c in members if isinstance(c, type) and issubclass(c, torch.nn.Module)]


#: Arguments of classes that hand others on, and look at these first.
HANDED_ON = {
    "ElementwiseTensorProduct": ("0e", "0e"),
    "FullTensorProduct": ("0e", "0e"),
    "FullyConnectedTensorProduct": ("0e", "0e", "0e"),
    "IrrepwiseLinear": ("0e",),
    "SO3Linear": ("0e", "0e", "0e"),
    "TensorDot": ("0e", "0e"),
    "TensorProductConv": ("0e", "0e", "0e", PATHS),
    "TensorSquare": ("0e",),
}


@each("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_layer_and_network_refuses_in_these_words(kind: type) -> None:
    with pytest.raises(ArgumentError, match=rf"^arguments of {kind.__name__} must be .* It has ") as error:
        kind(*HANDED_ON.get(kind.__name__, ()), quux_of_nothing=1)
    assert "kwargs" not in str(error.value)


def test_every_word_of_the_table_leads_to_an_argument_that_there_is() -> None:
    """A row of an argument that nothing has is dead, and so is a word that all classes of the row have themselves."""
    has = [{p.name for p in names.parameters(c)} for c in (*classes(), eq.Calculator)]
    has += [{p.name for p in names.parameters(f)} for f in (eq.load_potential, eq.save_potential, eq.accelerate)]
    for use, words in names.ARGUMENTS.items():
        ours, others = re.split(r"\W", use)[0], words.split()
        owners = [known for known in has if ours in known]
        assert owners, use
        assert len(set(others)) == len(others), use
        assert [word for word in others if all(word in known for known in owners)] == [], use


def test_what_an_error_inside_says_stays() -> None:
    """An error about an argument that the constructor has, or of another call inside, is no error about this call."""

    @names.named_arguments
    class Inner:
        def __init__(self, cutoff: float) -> None: ...

    @names.named_arguments
    class Outer:
        def __init__(self, r_max: float, **rest: Any) -> None:
            Inner(r_max=r_max)

    with pytest.raises(ArgumentError, match=r"arguments of Inner must be .* got r_max=1.0\. Write cutoff="):
        Outer(r_max=1.0)

    @names.named_arguments
    def broken(size: int = 1, **rest: Any) -> None:
        raise TypeError("of another kind")

    with pytest.raises(TypeError, match=r"^of another kind$"):
        broken(size=2)

    class Holder:
        def __init__(self) -> None:
            self.inner = Pair(1)  # type: ignore[call-arg]

    class Pair:
        def __init__(self, first: int, second: int) -> None: ...

    with pytest.raises(TypeError, match=r"Pair\.__init__\(\) missing 1 required positional argument: 'second'"):
        names.named_arguments(Holder)()


def test_subclasses_of_users_are_named_by_their_names() -> None:
    class Mine(eq.Linear):
        pass

    class Longer(eq.Linear):
        def __init__(self, irreps: str, **rest: Any) -> None:
            super().__init__(irreps, irreps, **rest)

    with pytest.raises(ArgumentError, match="arguments of Mine must"):
        Mine("0e", "0e", bias=True)
    with pytest.raises(ArgumentError, match=r"arguments of Linear must be .* Write biases="):
        Longer("0e", bias=True)
    assert Longer("2x0e", biases=True).bias_numel == 2


def test_signatures_pickles_copies_and_scripts_stay() -> None:
    signature = inspect.signature(eq.TensorProduct)
    assert list(signature.parameters)[:4] == ["irreps_in1", "irreps_in2", "irreps_out", "instructions"]
    assert signature.parameters["layout"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(eq.load_potential).parameters) == ["path", "dtype", "device", "classes"]
    assert "def __init__" in inspect.getsource(eq.Linear.__init__)
    assert "names.py" not in inspect.getsourcefile(inspect.unwrap(eq.Linear.__init__))
    assert eq.Linear.__init__.__qualname__ == "Linear.__init__"
    layer = eq.TensorProduct("2x0e", "0e", "2x0e", PATHS)
    x, y = torch.ones(3, 2), torch.ones(3, 1)
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), torch.jit.script(copy.deepcopy(layer))):
        torch.testing.assert_close(other(x, y), layer(x, y))


def test_forward_is_not_wrapped() -> None:
    """Calls cost what they did: only constructors and functions that are called seldom are looked after."""
    for kind in classes():
        assert not hasattr(kind.forward, "__wrapped__") or "hints" not in kind.forward.__code__.co_filename
    for name in eq.functional.__all__:
        assert not hasattr(getattr(eq.functional, name), "__wrapped__"), name
