"""Learning-rate schedule: linear warm-up, then half a cosine down to a small fraction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ..core.checks import check_integer, check_number
from ..core.errors import ConfigError


class Plan(NamedTuple):
    """Numbers that the learning rate follows; checkpoints keep them, so that a resumed run tells of a change."""

    epochs: int
    steps: int
    warmup_steps: int
    final_factor: float

    def rate(self, base: float, step: int) -> float:
        """The learning rate of an optimizer step."""
        return base * _factor(step, self.warmup_steps, self.steps, self.final_factor)

    def __str__(self) -> str:
        return f"{self.steps:,} steps" + (f" ({self.epochs:,} epochs)" if self.epochs > 0 else "")

    def change(self, now: Plan, step: int, base: float, second_stage: float | None = None) -> str | None:
        """A line that says what changes with another plan, or None.

        Example:
            >>> print(Plan(4, 80, 0, 0.0).change(Plan(6, 120, 0, 0.0), 80, 0.01))
            schedule: 120 steps (6 epochs), before 80 steps (4 epochs); the learning rate goes on with 2.50e-03 ...
        """
        if self == now:
            return None
        line = (
            f"schedule: {now}, before {self}; the learning rate goes on with {now.rate(base, step):.2e} and not "
            f"{self.rate(base, step):.2e}, and ends at {now.rate(base, now.steps):.2e}"
        )
        if second_stage is not None:
            line += f"; the second stage begins with step {math.ceil(second_stage * now.steps):,}"
        return line


def plan_of(saved: object) -> Plan | None:
    """The plan of a checkpoint; None of an older or damaged one."""
    numbers = isinstance(saved, (list, tuple)) and len(saved) == len(Plan._fields)
    if not numbers or not all(isinstance(one, (int, float)) for one in saved):  # type: ignore[attr-defined]
        return None
    return Plan(*saved)  # type: ignore[misc]


def _factor(step: int, warmup_steps: int, total_steps: int, final: float) -> float:
    warmup = min(warmup_steps, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    if step >= total_steps:
        return final
    progress = (step - warmup) / (total_steps - warmup)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup_cosine(warmup_steps: int, total_steps: float, final: float = 0.0) -> Callable[[int], float]:
    r"""The factor on the base learning rate as a function of the step, for ``torch.optim.lr_scheduler.LambdaLR``.

    .. math::
        f(s) = \frac{s + 1}{w} \ (s < w), \qquad
        f(s) = f_\infty + (1 - f_\infty) \frac{1 + \cos(\pi (s - w) / (t - w))}{2} \ (s \ge w)

    The first step already moves (the factor is never 0), and from ``total_steps`` on the factor is ``final``.
    The cosine comes from SGDR (Loshchilov and Hutter, arXiv:1608.03983) without restarts. A plain function and not an
    object: ``LambdaLR`` would save an object's attributes in the checkpoint, and a run resumed with more epochs would
    silently keep the old length.

    Args:
        warmup_steps: Steps of the linear rise; those beyond ``total_steps`` are cut.
        total_steps: Steps of the whole training, finite.
        final: Factor at the end, between 0 and 1.

    Returns:
        ``step -> factor``.

    Raises:
        ConfigError: The training has no end, or a number is out of range.

    Example:
        >>> [round(warmup_cosine(2, 6)(step), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    warmup_steps = check_integer("model.warmup_steps", warmup_steps, 0)
    if total_steps == math.inf:
        raise ConfigError(
            "the cosine schedule must know the number of steps in advance, got a training without an end. "
            "Set trainer.max_epochs or trainer.max_steps (trainer.max_time may end it earlier)."
        )
    final = check_number("model.final_factor", final, at_least=0, at_most=1, fix="Use a value from 0 to 1.")
    total = int(check_number("total_steps", total_steps, at_least=0))
    return lambda step: _factor(step, warmup_steps, total, final)
