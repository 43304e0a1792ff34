"""Values of the learning rate at known steps, from the formula and in a real optimizer."""

import math

import pytest
import torch

from eqlayers.train.base import warmup_cosine
from tests.each import refused


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.1),
        (4, 0.5),
        (9, 1.0),
        (10, 1.0),
        (35, 0.2 + 0.8 * (0.5 + math.sqrt(0.125))),  # a quarter of the half cosine
        (60, 0.6),
        (110, 0.2),
        (10_000, 0.2),
    ],
)
def test_known_values(step: int, expected: float) -> None:
    assert warmup_cosine(10, 110, final=0.2)(step) == pytest.approx(expected, rel=1e-14)


def test_rises_then_falls_and_never_stands_still_at_zero() -> None:
    factors = [warmup_cosine(5, 50)(step) for step in range(50)]
    assert factors[:5] == sorted(factors[:5])
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert min(factors) > 0


@pytest.mark.parametrize("total", [1, 3])
def test_warmup_longer_than_training_ends_at_the_top(total: int) -> None:
    assert [warmup_cosine(100, total)(step) for step in range(total)][-1] == 1.0


def test_no_warmup_starts_at_the_top() -> None:
    assert warmup_cosine(0, 10)(0) == 1.0


def test_resumed_schedule_follows_the_new_length() -> None:
    """A function's attributes are not saved: a run resumed with more epochs gets the longer cosine."""
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    old = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(0, 10))
    new = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(0, 20))
    new.load_state_dict(old.state_dict() | {"last_epoch": 9})
    optimizer.step()
    new.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5)


test_bad_settings = refused(
    "arguments, message",
    [((10, math.inf), "trainer.max_epochs"), ((-1, 10), "warmup_steps"), ((1, 10, 1.5), "final_factor")],
    lambda arguments: warmup_cosine(*arguments),
)
