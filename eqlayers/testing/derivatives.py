"""Check derivatives of any order against finite differences, with a report by operand and element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from ..core.checks import check_flag, check_function, check_integer, check_items, check_number, check_seed, check_tensor
from ..core.errors import DTypeError, GradientError

# Central differences of fourth order: f' = sum_k w_k (f(x + k h) - f(x - k h)) / h, error h^4 f''''' / 30.
_STENCIL = ((1, 2 / 3), (2, -1 / 12))
_LINEAR = ((1, 1 / 2),)  # exact for cotangents, on which everything depends linearly


@dataclass(frozen=True)
class Entry:
    """The worst element of one derivative, or its value along one random direction."""

    order: int
    operand: str
    element: tuple[int, ...] | None  # None: along a direction through all elements
    analytical: float
    numerical: float
    error: float
    checked: int  # elements compared, or elements of the direction

    def __str__(self) -> str:
        element = " along a random direction" if self.element is None else str(list(self.element))
        where = f"order {self.order}, {self.operand}{element}"
        return (
            f"{where}: analytical {self.analytical:.9g}, numerical {self.numerical:.9g}, error {self.error:.2g} "
            f"({self.checked} elements)"
        )


@dataclass(frozen=True)
class DerivativeReport:
    """The worst element or the direction of every derivative that was compared; ``str`` prints them."""

    entries: tuple[Entry, ...]
    tolerance: float

    @property
    def failures(self) -> tuple[Entry, ...]:
        """Entries with an error above the tolerance, or NaN."""
        return tuple(e for e in self.entries if not e.error <= self.tolerance)

    @property
    def ok(self) -> bool:
        """Whether all errors are within the tolerance."""
        return not self.failures

    def __str__(self) -> str:
        bad = set(self.failures)
        return "\n".join(f"{'FAIL' if e in bad else 'ok  '} {e}" for e in self.entries)


def check_derivatives(
    fn: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    order: int = 3,
    *,
    tolerance: float = 1e-6,
    step: float = 1e-3,
    max_elements: int = 40,
    seed: int = 0,
    raise_exception: bool = True,
) -> DerivativeReport:
    r"""Compare analytical with numerical derivatives of ``fn``, from the first to the given order.

    At order k the scalar :math:`\langle c_k, \nabla^{k-1} f \rangle` is differentiated with respect to all inputs that
    require a gradient and to the cotangents of the lower orders, with random cotangents. A gradient that is
    not differentiable although the next order needs it is a failure, which ``gradgradcheck`` does not detect.

    Args:
        fn: Function of the inputs, returning one tensor or several.
        inputs: Float64 tensors; those with ``requires_grad`` are checked, the others are constants.
        order: Highest order.
        tolerance: Largest error, relative to the largest entry of the derivative (at least 1).
        step: Finite-difference step.
        max_elements: Operands of at most this many elements are compared element by element. A larger operand is
            compared along one random direction through all its elements; if that fails, this many elements are drawn
            and compared, and the worst one is named.
        seed: Seed of cotangents and draws; global random state is not touched.
        raise_exception: Raise on failure, else return the report.

    Returns:
        The report.

    Raises:
        GradientError: A derivative is wrong or missing. DTypeError: An input is not float64.
        ConfigError: An option is out of range.

    Example:
        >>> x = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
        >>> print(check_derivatives(lambda x: x**3, [x], order=1))  # doctest: +ELLIPSIS
        ok   order 1, input 0[...]: analytical ..., numerical ..., error ... (2 elements)
    """
    check_function("fn", fn, "a function of the inputs")
    inputs = check_items("inputs", inputs, "a list of tensors", "Pass a list, also for one tensor.")
    for number, value in enumerate(inputs):
        if check_tensor(f"input {number}", value, "[...]").dtype != torch.float64:
            raise DTypeError(
                f"input {number} must be float64 for finite differences, got {value.dtype}. Convert it: `.double()`."
            )
    order, max_elements = check_integer("order", order, 1, 6), check_integer("max_elements", max_elements, 1)
    tolerance = check_number("tolerance", tolerance, above=0, fix="Use 1e-6 where in doubt.")
    step, seed = check_number("step", step, above=0, fix="Use 1e-3 where in doubt."), check_seed("seed", seed)
    raise_exception = check_flag("raise_exception", raise_exception)
    generator = torch.Generator().manual_seed(seed)
    operands = {f"input {i}": t.detach().clone() for i, t in enumerate(inputs)}
    checked_inputs = [f"input {i}" for i, t in enumerate(inputs) if t.requires_grad]
    if not checked_inputs:
        raise GradientError(
            f"some input must require a gradient, got {len(inputs)} without. Mark one with `.requires_grad_()`."
        )
    entries: list[Entry] = []
    levels: list[list[str]] = []  # for each lower order: names of the cotangents of its outputs

    def outputs(values: dict[str, Tensor], depth: int, graph: bool) -> list[Tensor]:
        """Outputs of fn (depth 0), or gradients of the outputs of the previous depth, contracted with cotangents."""
        if depth == 0:
            out = fn(*(values[f"input {i}"] for i in range(len(inputs))))
            return [out] if isinstance(out, Tensor) else list(out)
        names = _names(checked_inputs, levels[: depth - 1])
        total = _contract(outputs(values, depth - 1, True), [values[c] for c in levels[depth - 1]])
        return gradients(total, [values[n] for n in names], graph)

    for k in range(1, order + 1):
        live = {n: v.detach().requires_grad_(n in _names(checked_inputs, levels)) for n, v in operands.items()}
        below = outputs(live, k - 1, True)
        cotangents = [f"cotangent {k}.{i}" for i in range(len(below))]
        for name, value in zip(cotangents, below, strict=True):
            draw = torch.randn(value.shape, generator=generator, dtype=torch.float64, device="cpu").to(value.device)
            operands[name] = draw
            live[name] = draw.clone().requires_grad_(True)
        levels.append(cotangents)
        names = _names(checked_inputs, levels[:-1])
        total = _contract(below, [live[c] for c in cotangents])
        grads = torch.autograd.grad(total, [live[n] for n in names], materialize_grads=True)

        def value_at(changed: dict[str, Tensor], depth: int = k - 1, last: list[str] = cotangents) -> Tensor:
            fresh = {
                n: v.detach().clone().requires_grad_(n in _names(checked_inputs, levels)) for n, v in changed.items()
            }
            return _contract(outputs(fresh, depth, False), [fresh[c] for c in last]).detach()

        for name, grad in zip(names, grads, strict=True):
            if grad.numel():
                entries.append(
                    _worst(k, name, grad.detach(), operands, value_at, step, max_elements, tolerance, generator)
                )
    report = DerivativeReport(tuple(entries), tolerance)
    if raise_exception and not report.ok:
        raise GradientError(
            f"analytical and numerical derivatives must agree within {tolerance:g}, they do not:\n{report}\n"
            f"Look at the backward of the first operand that fails."
        )
    return report


def gradients(total: Tensor, inputs: Sequence[Tensor], create_graph: bool = True) -> list[Tensor]:
    """Gradients of a number by ``inputs``, 0 without dependence; with ``create_graph`` they can be differentiated."""
    if not total.requires_grad:
        return [torch.zeros_like(t) for t in inputs]
    return list(torch.autograd.grad(total, inputs, create_graph=create_graph, materialize_grads=True))


def _names(inputs: list[str], levels: list[list[str]]) -> list[str]:
    return [*inputs, *(name for level in levels for name in level)]


def _contract(values: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Tensor:
    return torch.stack([(v * c).sum() for v, c in zip(values, cotangents, strict=True)]).sum()


def _worst(
    order: int,
    name: str,
    grad: Tensor,
    operands: dict[str, Tensor],
    value_at: Callable[[dict[str, Tensor]], Tensor],
    step: float,
    max_elements: int,
    tolerance: float,
    generator: torch.Generator,
) -> Entry:
    """The comparison of one gradient with finite differences, by elements or along one direction."""
    count, operand = grad.numel(), operands[name]
    unit = max(1.0, float(grad.abs().max()))
    stencil = _LINEAR if name.startswith("cotangent") else _STENCIL

    def entry(direction: Tensor, step: float, element: tuple[int, ...] | None, checked: int) -> Entry:
        numerical = 0.0
        for multiple, weight in stencil:
            for sign in (1, -1):
                moved = operand + sign * multiple * step * direction
                numerical += sign * weight / step * float(value_at({**operands, name: moved}))
        analytical = float((grad * direction).sum())
        return Entry(order, name, element, analytical, numerical, abs(analytical - numerical) / unit, checked)

    along = None
    if count > max_elements:
        # factors of 0.5 to 1: errors of several elements do not cancel; the step keeps the length of one element's step
        draw = torch.rand(grad.shape, generator=generator, dtype=torch.float64, device="cpu").to(grad.device) - 0.5
        along = entry(draw + 0.5 * draw.sign(), step / count**0.5, None, count)
        if along.error <= tolerance:
            return along
    chosen = torch.randperm(count, generator=generator, device="cpu")[:max_elements].tolist()
    entries = []
    for flat in chosen:
        element = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat, device="cpu"), grad.shape))
        direction = torch.zeros_like(grad)
        direction[element] = 1.0
        entries.append(entry(direction, step, element, len(chosen)))
    # an error of NaN is the worst; the direction stands where no drawn element shows the fault
    worst = max(entries, key=lambda e: float("inf") if isnan(e.error) else e.error)
    return along if along is not None and worst.error <= tolerance else worst
