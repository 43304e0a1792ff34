"""Steps of every training: values in float64, shares of processes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eqlayers.errors import DataError
from eqlayers.train.steps import LabelledModule, Loss, Values, error_metrics
from tests.each import each


def test_values_and_errors_keep_the_digits_of_total_energies() -> None:
    """Errors of a thousandth of energies of a million, which float32 rounds to sixteenths."""
    true = torch.full((4,), -1e6, dtype=torch.float64)
    values, errors = Values(), error_metrics()
    values.update(true[:3] + 1e-3)
    values.update(true[3:].float())
    assert values.compute().dtype == torch.float64
    assert values.compute().tolist() == pytest.approx([-1e6 + 1e-3] * 3 + [-1e6], abs=1e-9)
    errors.update((true + 1e-3 - true)[:, None], torch.tensor(4))
    assert {name: float(value) for name, value in errors.compute().items()} == pytest.approx(
        {"mae": 1e-3, "rmse": 1e-3}, rel=1e-6
    )


@each("rows, share", [([6, 2], [1.5, 0.5]), ([3, 3], [1.0, 1.0]), ([4, 0], [2.0, 0.0]), ([0, 0], [0.0, 0.0])])
def test_shares_make_a_mean_over_batches_the_mean_over_rows(rows: list[int], share: list[float]) -> None:
    batch = SimpleNamespace(step_rows={"forces": sum(rows) / len(rows)})
    of: Any = LabelledModule.share_of_step
    assert [of(SimpleNamespace(training=True), batch, "forces", count) for count in rows] == share
    assert of(SimpleNamespace(training=False), batch, "forces", 2) == 1, "validation sums errors, and takes no means"
    assert of(SimpleNamespace(training=True), SimpleNamespace(), "forces", 2) == 1


def test_processes_end_together() -> None:
    """A process whose losses are finite ends as well, where one of the others has found another loss."""
    asked: list[bool] = []

    def reduced(decision: bool) -> bool:
        asked.append(decision)
        return False

    module = LabelledModule()
    module._trainer = SimpleNamespace(world_size=2, strategy=SimpleNamespace(reduce_boolean_decision=reduced))  # type: ignore[assignment]
    module.checked_every = 2
    module.check_losses()
    module._unchecked = [Loss(torch.ones(()), [], None, "epoch 0")]
    module.check_losses(together=False)
    assert not asked
    module._unchecked = [Loss(torch.ones(()), [], None, "epoch 0")]
    with pytest.raises(DataError, match="got another one in another process"):
        module.check_losses()
    assert asked == [True]
