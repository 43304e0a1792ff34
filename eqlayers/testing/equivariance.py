"""Measure the equivariance of functions and modules under rotations, reflections and translations."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from ..core.checks import (
    check_choice,
    check_dtype,
    check_flag,
    check_floating,
    check_function,
    check_integer,
    check_items,
    check_module,
    check_number,
    check_seed,
    got,
    is_integer,
)
from ..core.errors import ConfigError, MismatchError, ShapeError
from ..irreps.algebra import as_irreps, representation_matrix
from ..irreps.layout import LAYOUTS, FlatLayout, to_ir_mul, to_mul_ir
from ..layers.base.columns import same_order

#: Entry of ``irreps_in`` for positions, which rotate as '1o' and are translated.
POSITIONS = "positions"


def random_orthogonal(seed: int = 0, determinant: int = 1) -> Tensor:
    """A Haar-random rotation (determinant 1) or rotation times inversion (-1), ``[3, 3]`` float64.

    Raises:
        ConfigError: The determinant is not 1 or -1, or the seed is negative.

    Example:
        >>> round(torch.linalg.det(random_orthogonal(3, -1)).item(), 9)
        -1.0
    """
    if not is_integer(determinant) or determinant not in (1, -1):
        raise ConfigError(
            f"determinant must be 1 or -1, got {got(determinant)}. Pass -1 for a rotation times inversion."
        )
    generator = torch.Generator().manual_seed(check_seed("seed", seed))
    gaussian = torch.randn(3, 3, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    q = q * r.diagonal().sign()
    return q * torch.linalg.det(q).sign() * determinant


def equivariance_residual(
    fn: Callable[..., Tensor],
    irreps_in: Sequence[Any],
    irreps_out: Any,
    inputs: Sequence[Tensor] | None = None,
    *,
    determinant: int = 1,
    layout: str = "mul_ir",
    batch: int = 4,
    seed: int = 0,
) -> float:
    r"""Relative difference :math:`\max|f(D x) - D f(x)| / \max|f(x)|`, in the dtype of the inputs (float64 by default).

    Args:
        fn: Function of one tensor per entry of ``irreps_in``.
        irreps_in: Irreps of the arguments.
        irreps_out: Irreps of the result.
        inputs: Tensors ``[..., dim]``; None for normal random numbers in float64.
        determinant: 1 for a rotation, -1 for a rotation times the inversion.
        layout: Layout of all tensors.
        batch: Number of random rows.
        seed: Seed of inputs and rotation; global random state is not touched.

    Returns:
        The residual: about 1e-15 in float64 for an equivariant function, 0.1 to 1 otherwise.

    Raises:
        IrrepsError: Irreps are invalid. ConfigError: An option is out of range. ShapeError, DTypeError: Inputs have
            wrong shapes or dtypes.

    Example:
        >>> equivariance_residual(lambda x: 2 * x, ["1o"], "1o") < 1e-12
        True
        >>> equivariance_residual(lambda x: x.abs(), ["1o"], "1o") > 1e-3
        True
    """
    check_choice("layout", layout, LAYOUTS)
    check_function("fn", fn, "a function of one tensor per entry of irreps_in")
    fix = "Pass a list, also for one argument."
    ins = [as_irreps(i, "irreps_in") for i in check_items("irreps_in", irreps_in, "a list of irreps", fix)]
    out = as_irreps(irreps_out, "irreps_out")
    matrix, batch = random_orthogonal(seed, determinant), check_integer("batch", batch, 1)
    generator = torch.Generator().manual_seed(seed)
    if inputs is None:
        shapes = [(batch, irreps.dim) for irreps in ins]
        inputs = [torch.randn(s, generator=generator, dtype=torch.float64, device="cpu") for s in shapes]
    inputs = check_items("inputs", inputs, "a list of tensors, or None", fix)
    if len(inputs) != len(ins):
        raise ShapeError(f"inputs must hold {len(ins)} tensors, as irreps_in, got {len(inputs)}. Give one for each.")
    for number, (x, irreps) in enumerate(zip(inputs, ins, strict=True)):
        FlatLayout(irreps, layout).check(f"inputs[{number}]", check_floating(f"inputs[{number}]", x, "[..., dim]"))

    plain = check_floating("the result of fn", _outputs(fn(*inputs))[0], "[..., dim]")
    FlatLayout(out, layout).check("the result of fn", plain)
    moved = [_moved(x, irreps, matrix, None, layout) for x, irreps in zip(inputs, ins, strict=True)]
    difference = (_outputs(fn(*moved))[0] - _moved(plain, out, matrix, None, layout)).abs().max()
    return float(difference.detach() / plain.detach().abs().max().clamp(min=torch.finfo(plain.dtype).tiny))


@dataclass(frozen=True)
class EquivarianceReport:
    """Residuals of a module under rotation, reflection and translation; ``str`` gives a line for each.

    Attributes:
        residuals: Motion -> largest difference relative to the largest output, maximum over outputs.
        tolerance: Largest accepted residual.
    """

    residuals: dict[str, float]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether every residual is within the tolerance."""
        return all(value <= self.tolerance for value in self.residuals.values())

    def __str__(self) -> str:
        return "\n".join(
            f"{'ok  ' if value <= self.tolerance else 'FAIL'} {motion}: {value:.1e}"
            for motion, value in self.residuals.items()
        )


def check_equivariance(
    module: torch.nn.Module,
    inputs: Sequence[Any] | None = None,
    irreps_in: Sequence[Any] | None = None,
    irreps_out: Any = None,
    *,
    tolerance: float = 1e-6,
    layout: str | None = None,
    dtype: torch.dtype = torch.float64,
    batch: int = 4,
    seed: int = 0,
    raise_exception: bool = True,
) -> EquivarianceReport:
    r"""Check that a module commutes with rotations, reflections and, if it takes positions, translations.

    A copy of the module in ``dtype`` is called, so that running statistics and other state do not change. Random
    numbers, such as in dropout, are equal in all calls.

    Args:
        module: A module that takes and returns tensors; for a potential use :func:`check_potential`.
        inputs: Arguments of ``module``. None for normal random numbers ``[batch, dim]`` for each entry of
            ``irreps_in``.
        irreps_in: For each argument its irreps, 'positions' for ``[N, 3]`` that are also translated, or None for
            invariant arguments: edges, species, lengths, weights. None for the attributes ``irreps_in1`` and
            ``irreps_in2``, or ``irreps_in``, of the module; further inputs are invariant.
        irreps_out: Irreps of the output, or a list of one entry per output, where None skips an output. None for
            the attribute ``irreps_out`` of the module.
        tolerance: Largest residual :math:`\max|f(Dx) - D f(x)| / \max|f(x)|`. About 1e-14 in float64;
            1e-7 for modules with constants rounded to float32, such as e3nn's.
        layout: Layout of all features, 'mul_ir' or 'ir_mul'; None for the attribute of the module, or 'mul_ir'.
        dtype: Dtype of the copy and of the inputs.
        batch: Number of random rows.
        seed: Seed of inputs, motions and of the module's own random numbers; global random state is not touched.
        raise_exception: Raise on failure, else return the report.

    Returns:
        The residual of each motion.

    Raises:
        MismatchError: A residual is above the tolerance; layers that misread 'ir_mul' are named.
        ConfigError: Irreps are missing, or an option is out of range. IrrepsError: Irreps are invalid.
        ShapeError, DTypeError: Inputs or outputs do not match their irreps.

    Example:
        >>> from eqlayers import TensorProduct, paths
        >>> print(check_equivariance(TensorProduct("4x0e + 4x1o", "0e + 1o", *paths("4x0e + 4x1o", "0e + 1o"))))
        ok   rotation: ...e-1...
        ok   reflection: ...e-1...
        >>> check_equivariance(torch.nn.Linear(3, 3), irreps_in=["1o"], irreps_out="1o", raise_exception=False).ok
        False
    """
    check_module("module", module)
    tolerance = check_number("tolerance", tolerance, above=0, fix="Use 1e-6 where in doubt.")
    layout = check_choice("layout", getattr(module, "layout", "mul_ir") if layout is None else layout, LAYOUTS)
    dtype, raise_exception = check_dtype("dtype", dtype), check_flag("raise_exception", raise_exception)
    batch, seed = check_integer("batch", batch, 1), check_seed("seed", seed)
    ins = _read_all("irreps_in", _irreps_of_inputs(module) if irreps_in is None else irreps_in)
    arguments = _inputs(ins, inputs, batch, dtype, seed)
    ins += [None] * (len(arguments) - len(ins))
    for number, (x, irreps) in enumerate(zip(arguments, ins, strict=True)):
        _check_fits(f"inputs[{number}]", x, irreps, layout)
    outs = irreps_out if irreps_out is not None else getattr(module, "irreps_out", None)
    if outs is None:
        raise ConfigError(
            f"irreps_out must be given for a module without the attribute irreps_out, got {got(module)}. Pass the "
            f"irreps of its output, such as '0e' for an energy."
        )
    twin = copy.deepcopy(module).to(dtype)

    def run(values: list[Any]) -> list[Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _outputs(twin(*(x.detach().clone() if isinstance(x, Tensor) else x for x in values)))

    plain = run(arguments)
    many = isinstance(outs, (list, tuple)) and not isinstance(outs, Irreps)
    expected = _read_all("irreps_out", outs if many else [outs])
    if len(expected) != len(plain):
        raise ShapeError(
            f"irreps_out must have an entry for each of the {len(plain)} outputs, got {len(expected)}. Pass a list; "
            "None leaves an output out."
        )
    for number, (y, irreps) in enumerate(zip(plain, expected, strict=True)):
        _check_fits(f"output {number}", y, irreps, layout)
    motions: dict[str, tuple[Tensor, Tensor | None]] = {"rotation": (random_orthogonal(seed), None)}
    motions["reflection"] = (random_orthogonal(seed, -1), None)
    if POSITIONS in ins:
        move = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu")
        motions["translation"] = (torch.eye(3, dtype=torch.float64, device="cpu"), move)
    residuals = {}
    for name, (matrix, shift) in motions.items():
        moved = [_moved(x, irreps, matrix, shift, layout) for x, irreps in zip(arguments, ins, strict=True)]
        known = [one for one in zip(run(moved), plain, expected, strict=True) if one[2] is not None]
        errors = [_difference(a, _moved(b, irreps, matrix, shift, layout)) for a, b, irreps in known]
        residuals[name] = max(errors, default=0.0)
    report = EquivarianceReport(residuals, tolerance)
    if raise_exception and not report.ok:
        raise MismatchError(
            f"{type(module).__name__} must commute with every motion within {tolerance:g}, got\n{report}\nWhere "
            f"reflections alone fail, parities are wrong. {_cause(twin, lambda: run(arguments))}"
        )
    return report


def _cause(twin: torch.nn.Module, run: Callable[[], Any]) -> str:
    """Sentence on a layer whose input irreps are ordered differently from its predecessor's output in 'ir_mul'."""
    results: dict[int, tuple[str, Irreps, Tensor]] = {}  # tensors are kept alive, so that their ids stay unique
    causes: list[str] = []

    def watch(name: str, module: Any) -> None:
        here = f"{type(module).__name__} {name!r}"

        def before(_: Any, inputs: tuple[Any, ...]) -> None:
            names = ("irreps_in", "irreps_in1", "irreps_in2")
            irreps = [getattr(module, attr) for attr in names if isinstance(getattr(module, attr, None), Irreps)]
            for x, reads in zip(inputs, irreps, strict=False):
                source, gives, _tensor = results.get(id(x), ("", reads, x))
                if not same_order(gives, reads, "ir_mul"):
                    causes.append(
                        f"{here} reads {reads}, and {source} gives {gives}, which is another order in layout 'ir_mul'. "
                        f"Build the one with simplify=True or nn.Sort behind it, or the other with these irreps."
                    )

        def after(_: Any, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and isinstance(getattr(module, "irreps_out", None), Irreps):
                results[id(output)] = here, module.irreps_out, output

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    watched = [(name, module) for name, module in twin.named_modules() if getattr(module, "layout", "") == "ir_mul"]
    for name, module in watched if len(watched) > 1 else []:
        watch(name, module)
    run()
    return causes[0] if causes else "Check the parts of the module one by one."


def _irreps_of_inputs(module: torch.nn.Module) -> list[Any]:
    """Irreps of the inputs from the attributes of a module; raises if it has none."""
    for names in (("irreps_in1", "irreps_in2"), ("irreps_in",)):
        if all(getattr(module, name, None) is not None for name in names):
            return [getattr(module, name) for name in names]
    takes = ", ".join(inspect.signature(module.forward).parameters)
    raise ConfigError(
        f"irreps_in must be given for a module without the attribute irreps_in, got {got(module)}. Pass a list with an "
        f"entry for each of {takes}: irreps, 'positions', or None for invariant arguments."
    )


def _read_all(name: str, values: Any) -> list[Any]:
    """Parse a list of irreps, 'positions' or None."""
    fix = "Pass a list, also for one."
    items = check_items(name, [values] if isinstance(values, Irreps) else values, "a list of irreps", fix)
    return [v if v is None or v == POSITIONS else as_irreps(v, f"{name}[{n}]") for n, v in enumerate(items)]


def _inputs(ins: list[Any], inputs: Any, batch: int, dtype: torch.dtype, seed: int) -> list[Any]:
    """The given or random arguments, with floating-point tensors converted to ``dtype``."""
    if inputs is None:
        if None in ins:
            raise ConfigError(
                f"inputs must be given where an entry of irreps_in is None, got {ins} and no inputs. Pass a list of "
                f"all arguments."
            )
        generator = torch.Generator().manual_seed(seed)
        dims = [3 if irreps == POSITIONS else irreps.dim for irreps in ins]
        drawn = [torch.randn(batch, dim, generator=generator, dtype=torch.float64, device="cpu") for dim in dims]
        return [x.to(dtype) for x in drawn]
    arguments = check_items("inputs", inputs, "a list of the arguments, or None", "Pass a list, also for one argument.")
    if len(arguments) < len(ins):
        raise ShapeError(
            f"inputs must have an entry for each of the {len(ins)} entries of irreps_in, got {len(arguments)}. Give "
            "all."
        )
    return [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments]


def _check_fits(name: str, x: Any, irreps: Any, layout: str) -> None:
    """Raise unless a tensor matches its irreps."""
    if irreps is None:
        return
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ShapeError(
            f"{name} must be a floating-point tensor, as it has irreps, got {got(x)}. Give None as its irreps."
        )
    FlatLayout(as_irreps("1o") if irreps == POSITIONS else irreps, layout).check(name, x)


def _outputs(result: Any) -> list[Any]:
    """Outputs as a list: a single tensor, or items of a tuple or mapping; scalars become shape [1]."""
    result = list(result.values()) if isinstance(result, Mapping) else result
    items = list(result) if isinstance(result, (list, tuple)) else [result]
    return [y.reshape(1) if isinstance(y, Tensor) and not y.ndim else y for y in items]


def _moved(x: Any, irreps: Any, matrix: Tensor, shift: Tensor | None, layout: str) -> Any:
    """Transform a tensor by the representation of an orthogonal matrix; positions are also shifted."""
    if irreps is None:
        return x
    if irreps == POSITIONS:
        return x @ matrix.to(x).T + (0 if shift is None else shift.to(x))
    d = representation_matrix(irreps, matrix).to(x)
    return x @ d.T if layout == "mul_ir" else to_ir_mul(to_mul_ir(x, irreps) @ d.T, irreps)


def _difference(value: Tensor, other: Tensor) -> float:
    """Largest difference relative to the largest entry of ``other``; infinite if NaN."""
    if not other.numel():
        return 0.0
    size = other.detach().abs().max().clamp(min=torch.finfo(other.dtype).tiny)
    residual = float((value.detach() - other.detach()).abs().max() / size)
    return residual if residual == residual else float("inf")
