"""The properties that layers of the list have: one function each, which raises AssertionError where one is missing.

They run on backend 'torch', which compiles nothing. "kernels" compares the backend that users get with it, and
torch.compile and torch.export trace that backend, as its operator is what programs have inside.
"""

import copy
import io
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eqlayers.testing import check_derivatives, random_orthogonal
from tests.cases import default_dtype

from .cases import ROWS, Case, on_backend, relaid, results, turned

EPS = torch.finfo(torch.float64).eps
#: What a result may be off by, relative to its largest element: sums of some hundred terms in layers of layers.
EXACT = 2000 * EPS
#: Layers that are matrix products, or end with one: under autocast in its dtype, as torch.nn.Linear.
MATRICES = {"Linear", "IrrepwiseLinear", "LowRankLinear", "SpeciesLinear", "RadialNetwork", "SO2Linear"}
MATRICES |= {"S2Activation", "SO3Activation", "EquivariantAttention"}
#: Layers that are float32 under autocast, whatever came.
WIDE = {"Norm", "MeanSquaredNorm", "LayerNorm", "RMSNorm", "BatchNorm", "BatchRMSNorm", "NormActivation"}
WIDE |= {"AttentionAggregate"}


def call(layer: torch.nn.Module, arguments: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return results(layer(**arguments))


def close(values: Any, wanted: Any, bound: float = EXACT) -> None:
    values, wanted = results(values), results(wanted)
    assert len(values) == len(wanted)
    for a, b in zip(values, wanted, strict=True):
        a, b = a.detach(), b.detach()
        assert a.shape == b.shape, (a.shape, b.shape)
        assert bool(torch.isfinite(b).all())
        size = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        worst = float((a.double() - b.double()).abs().max()) if b.numel() else 0.0
        assert worst <= bound * size, f"{worst} > {bound * size}"


def _turn(case: Case, determinant: int) -> None:
    for layout in case.layouts:
        layer, arguments = case.layer(layout), case.arguments()
        matrix = random_orthogonal(3, determinant)
        plain = call(layer, case.in_layout(arguments, layout))
        moved = {name: turned(value, case.acts.get(name), matrix) for name, value in arguments.items()}
        after = call(layer, case.in_layout(moved, layout))
        assert len(plain) == len(case.out)
        for a, b, turn in zip(after, plain, case.out, strict=True):
            close(relaid(a, turn, layout, back=True), turned(relaid(b, turn, layout, back=True), turn, matrix))
        assert any(float(value.detach().abs().max()) > 1e-3 for value in plain), "all of it is zero"


def rotation(case: Case) -> None:
    """Rotated operands give rotated results."""
    _turn(case, 1)


def inversion(case: Case) -> None:
    """Operands under a rotation times the inversion give results under it."""
    _turn(case, -1)


def derivatives(case: Case) -> None:
    """First to third derivatives by arguments and weights agree with finite differences."""
    layer, arguments = case.layer(), case.arguments(3)
    names = case.gradients(arguments)
    weights = {name: value for name, value in layer.named_parameters() if value.requires_grad}
    buffers = {name: value.clone() for name, value in layer.named_buffers()}
    constant = {name: value for name, value in arguments.items() if name not in names}

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        mine = dict(zip(names, values, strict=False))
        owned = dict(zip(weights, values[len(names) :], strict=True))
        fresh = {name: value.clone() for name, value in buffers.items()}
        return results(torch.func.functional_call(layer, {**owned, **fresh}, kwargs={**constant, **mine}))

    inputs = [arguments[name] for name in names] + [value.detach() for value in weights.values()]
    assert inputs, "nothing has a gradient"
    inputs = [value.clone().requires_grad_() for value in inputs]
    check_derivatives(run, inputs, order=case.order, max_elements=1)


def permutation(case: Case) -> None:
    """Rows in another order give results in that order."""
    layer, arguments = case.layer(), case.arguments()
    made = torch.Generator().manual_seed(1)
    order = {"row": torch.randperm(ROWS, generator=made)}
    order["node"] = order["row"]
    index = next((value for name, value in arguments.items() if case.rows.get(name) == "index"), None)
    if index is not None:
        order["edge"] = torch.randperm(index.shape[1], generator=made)
    moved = {}
    for name, value in arguments.items():
        kind = case.rows.get(name, "row")
        if kind == "index":
            moved[name] = torch.argsort(order["node"])[value][:, order["edge"]]
        else:
            moved[name] = value if kind == "one" else value[order[kind]]
    wanted = call(case.layer(), arguments)
    if case.out_rows != "one":
        wanted = tuple(value[order[case.out_rows]] for value in wanted)
    close(call(layer, moved), wanted)


def sizes(case: Case) -> None:
    """No rows and one row give results and finite gradients of the right shapes and dtypes."""
    several = call(case.layer(), case.arguments())
    for rows in (0, 1):
        layer, arguments = case.layer(), case.arguments(rows)
        for name in case.gradients(arguments):
            arguments[name].requires_grad_()
        outputs = call(layer, arguments)
        for a, b in zip(outputs, several, strict=True):
            assert a.dim() == b.dim()
            assert a.shape[1:] == b.shape[1:]
            assert a.dtype == b.dtype
            if case.out_rows in ("row", "node"):
                assert a.shape[0] == rows
            assert bool(torch.isfinite(a).all())
        total = sum(value.sum() for value in outputs)
        live = [arguments[name] for name in case.gradients(arguments)]
        live += [value for value in layer.parameters() if value.requires_grad]
        if total.requires_grad:
            for gradient in torch.autograd.grad(total, live, allow_unused=True, materialize_grads=True):
                assert bool(torch.isfinite(gradient).all())


def layouts(case: Case) -> None:
    """Both layouts have the same numbers for the same weights."""
    arguments = case.arguments()
    layers = [case.layer(layout) for layout in case.layouts]
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    outputs = [call(layer, case.in_layout(arguments, n)) for layer, n in zip(layers, case.layouts, strict=True)]
    for n, values in zip(case.layouts, outputs, strict=True):
        close([relaid(value, turn, n, True) for value, turn in zip(values, case.out, strict=True)], outputs[0])


def precision(case: Case) -> None:
    """float32 agrees with float64; constants are exact in float64, for a layer made in any dtype."""
    layer, arguments = case.layer(), case.arguments()
    wanted = call(layer, arguments)
    single = case.layer(dtype=torch.float32)
    single.load_state_dict(layer.state_dict())
    outputs = call(single, {k: v.float() if v.is_floating_point() else v for k, v in arguments.items()})
    assert all(value.dtype == torch.float32 for value in outputs if value.is_floating_point())
    close(outputs, wanted, 1000 * torch.finfo(torch.float32).eps)
    with default_dtype(torch.float64):
        other = on_backend(case.make("mul_ir").double(), "torch")
    other.load_state_dict(layer.state_dict())
    close(call(other, arguments), wanted, 20 * EPS)


def autocast(case: Case) -> None:
    """Under autocast to bfloat16, results have the digits of bfloat16 and the dtype of their kind of layer."""
    layer, arguments = case.layer(dtype=torch.float32), case.arguments(dtype=torch.float32)
    wanted = call(case.layer(dtype=torch.float32), arguments)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = call(layer, arguments)
    close(outputs, wanted, 16 * torch.finfo(torch.bfloat16).eps)
    kind = case.name.partition(",")[0]
    assert {value.dtype for value in outputs} == {torch.bfloat16 if kind in MATRICES else torch.float32}
    if kind in WIDE:
        rounded = case.arguments(dtype=torch.bfloat16)
        exact = {k: v.float() if v.is_floating_point() else v for k, v in rounded.items()}
        wanted = call(case.layer(dtype=torch.float32), exact)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = call(case.layer(dtype=torch.float32), rounded)
        assert {value.dtype for value in outputs} == {torch.float32}
        close(outputs, wanted, 16 * torch.finfo(torch.bfloat16).eps)


def device(case: Case) -> None:
    """Every tensor of the computation is a parameter or a buffer, so it moves with the layer."""
    layer = case.layer()
    call(layer, case.arguments())
    for name, module in layer.named_modules():
        kept = {id(t) for t in (*module.parameters(recurse=False), *module.buffers(recurse=False))}
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                assert not [t for t in _tensors(value) if id(t) not in kept], f"{name}.{key}"
    moved = layer.to("meta")
    assert all(t.is_meta for t in (*moved.parameters(), *moved.buffers()))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def copies(case: Case) -> None:
    """deepcopy, copy, pickle, torch.save of a used layer, and its state dict give the same numbers, modes and texts."""
    arguments = case.arguments()
    layer, wanted = case.layer(), call(case.layer(), arguments)
    call(layer, arguments)  # tables that a layer keeps must not disturb the copy
    layer.requires_grad_(False)
    other = case.layer(seed=1)
    missing = other.load_state_dict(layer.state_dict())
    assert not missing.missing_keys
    assert not missing.unexpected_keys
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), saved):
        assert (repr(copied), copied.training) == (repr(layer), layer.training)
        assert not any(parameter.requires_grad for parameter in copied.parameters())
        assert not {id(value) for value in copied.parameters()} & {id(value) for value in layer.parameters()}
        close(call(copied, arguments), wanted, 0.0)
    for copied in (other, copy.copy(layer)):
        close(call(copied, arguments), wanted, 0.0)


def compiled(case: Case) -> None:
    """One graph for torch.compile, for any number of rows, with the gradients of the layer."""
    layer, eager = case.layer(backend=None), case.layer(backend=None)
    torch.compiler.reset()
    run = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (4, 7):
        arguments = case.arguments(rows)
        for name in case.gradients(arguments):
            arguments[name].requires_grad_()
        outputs, wanted = call(run, arguments), call(eager, arguments)
        close(outputs, wanted)
        if any(value.requires_grad for value in wanted):
            close(_slopes(layer, arguments, outputs), _slopes(eager, arguments, wanted))


def exported(case: Case) -> None:
    """torch.export exports the layer."""
    layer, arguments = case.layer(backend=None), case.arguments()
    program = torch.export.export(layer, (), arguments, strict=False)
    close(call(program.module(), arguments), call(case.layer(), arguments))


def functional(case: Case) -> None:
    """torch.func: jacobians backward and forward agree with autograd's, under vmap."""
    layer, arguments = case.layer(), case.arguments(2)
    names = case.gradients(arguments)
    state = {**dict(layer.named_parameters()), **{k: v.clone() for k, v in layer.named_buffers()}}
    state = {k: v.detach() for k, v in state.items()}
    name = names[0]

    def run(value: Tensor) -> Tensor:
        return results(torch.func.functional_call(layer, state, kwargs={**arguments, name: value}))[0]

    value = arguments[name].detach()
    wanted = torch.autograd.functional.jacobian(run, value)
    close(torch.func.jacrev(run)(value), wanted)
    close(torch.func.jacfwd(run)(value), wanted)


def shown(case: Case) -> None:
    """The repr has the class, and the options that are not the default."""
    text, name = repr(case.layer()), case.name.partition(",")[0]
    assert text.startswith(f"{name}(")
    assert "object at 0x" not in text
    assert text.split() != [f"{name}()"], "nothing is said"


def same_as_e3nn(case: Case) -> None:
    """Values, and first and second derivatives, agree with e3nn's layer."""
    assert case.e3nn is not None
    with default_dtype(torch.float64):
        torch.manual_seed(0)
        theirs = case.e3nn()
    ours, arguments = case.layer(), case.arguments()
    ours.load_state_dict(theirs.state_dict())
    ours.train(theirs.training)
    names = case.gradients(arguments)

    close(_orders(ours, arguments, names), _orders(theirs, arguments, names, positional=True), 1e-9)


def _live(layer: torch.nn.Module, arguments: Iterable[Tensor]) -> list[Tensor]:
    """The arguments and parameters that have a gradient."""
    return [value for value in (*arguments, *layer.parameters()) if value.requires_grad]


def _slopes(layer: torch.nn.Module, arguments: Mapping[str, Tensor], outputs: Sequence[Tensor], **options: bool) -> Any:
    total = sum(value.square().sum() for value in outputs)
    live = _live(layer, arguments.values())
    return torch.autograd.grad(total, live, allow_unused=True, materialize_grads=True, **options)


def _orders(
    layer: torch.nn.Module,
    arguments: Mapping[str, Tensor],
    names: Collection[str],
    positional: bool = False,
    order: int = 2,
) -> list[Tensor]:
    """The results, and derivatives up to second order by the named arguments and the weights."""
    live = {name: value.clone().requires_grad_(name in names) for name, value in arguments.items()}
    outputs = results(layer(*live.values())) if positional else call(layer, live)
    values = [outputs]
    for left in reversed(range(order)):
        values.append(_slopes(layer, live, values[-1], create_graph=left > 0))
    return [value for part in values for value in part]


def kernels(case: Case) -> None:
    """Compiled kernels give the values and the first two derivatives of plain torch, for each class in each layout.

    The first layout is in float64, the other one in float32; a class with one layout has its values in float32 too.
    Further options of a class are compared to first order in float64.
    """
    names = case.gradients(case.arguments())
    options = "," in case.name
    runs = [(case.layouts[0], torch.float64, EXACT, 1 if options else 2)]
    if not options:
        single = 1000 * torch.finfo(torch.float32).eps
        runs.append((case.layouts[-1], torch.float32, single, 2 if len(case.layouts) > 1 else 0))
    for layout, dtype, bound, order in runs:
        arguments = case.in_layout(case.arguments(dtype=dtype), layout)
        layers = (case.layer(layout, dtype, backend=name) for name in (None, "torch"))
        close(*(_orders(layer, arguments, names, order=order) for layer in layers), bound)


#: Name -> check. A case without some says why.
PROPERTIES: dict[str, Callable[[Case], None]] = {
    "rotation": rotation,
    "inversion": inversion,
    "derivatives": derivatives,
    "permutation": permutation,
    "no row, one row": sizes,
    "layouts": layouts,
    "float32": precision,
    "autocast": autocast,
    "devices": device,
    "copies": copies,
    "torch.compile": compiled,
    "torch.export": exported,
    "torch.func": functional,
    "repr": shown,
    "e3nn": same_as_e3nn,
    "kernels": kernels,
}
