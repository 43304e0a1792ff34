"""`nequip-train` with and without the modifier: the same losses; and checkpoints that fit both."""

from pathlib import Path

import pytest
import torch

from eqlayers.optim import matrices_of

Runs = dict[str, tuple[Path, dict[str, list[float]]]]


def state(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the last checkpoint."""
    weights = torch.load(folder / "last.ckpt", weights_only=False)["state_dict"]
    return {key: value for key, value in weights.items() if isinstance(value, torch.Tensor)}


def test_losses_and_errors_are_the_same(runs: Runs) -> None:
    plain, fast = runs["plain"][1], runs["fast"][1]
    assert list(plain) == list(fast)
    compared = [name for name in plain if "/" in name]
    assert {name.split("/")[0] for name in compared} >= {"train_loss_step", "val0_epoch", "test0_epoch"}
    for name in compared:
        # four steps in float64 with gradients that agree to rounding
        assert fast[name] == pytest.approx(plain[name], rel=1e-9, abs=1e-12), name
    loss = plain["train_loss_step/weighted_sum"]
    assert loss[0] != loss[-1]


def test_checkpoints_fit_both(runs: Runs) -> None:
    plain, fast = (state(folder) for folder, _ in runs.values())
    assert list(plain) == list(fast)
    for key, value in plain.items():
        torch.testing.assert_close(fast[key], value, rtol=1e-9, atol=1e-12, msg=key)


def test_the_modifier_was_at_work(runs: Runs) -> None:
    """Guards the tests above."""
    logs = {name: (folder / "train.log").read_text() for name, (folder, _) in runs.items()}
    assert "10 modules replaced, 0 left" in logs["fast"]
    assert "modules replaced" not in logs["plain"]


def test_a_checkpoint_of_one_is_loaded_by_the_other(runs: Runs) -> None:
    """The package's own loader works so: without the modifier, which is applied afterwards."""
    from nequip.model import ModelFromCheckpoint
    from nequip.model.modify_utils import modify, only_apply_persistent_modifiers
    from nequip.utils.global_state import set_global_state

    before = torch.get_default_dtype()
    set_global_state()
    try:
        with only_apply_persistent_modifiers(persistent_only=True):
            plain = ModelFromCheckpoint(str(runs["fast"][0] / "last.ckpt"))
        again = ModelFromCheckpoint(str(runs["fast"][0] / "last.ckpt"))
    finally:
        torch.set_default_dtype(before)
    kinds = [{type(module).__name__ for module in model.modules()} for model in (plain, again)]
    assert "EqlayersTensorProductScatter" not in kinds[0]
    assert "EqlayersTensorProductScatter" in kinds[1]
    for (name, a), (other, b) in zip(plain.named_parameters(), again.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    modify(plain, [{"modifier": "enable_eqlayers"}])


def test_an_optimizer_of_matrices_finds_them_in_every_layer(runs: Runs) -> None:
    from nequip.model import ModelFromCheckpoint
    from nequip.utils.global_state import set_global_state

    before = torch.get_default_dtype()
    set_global_state()
    try:
        shapes = matrices_of(ModelFromCheckpoint(str(runs["plain"][0] / "last.ckpt")))
    finally:
        torch.set_default_dtype(before)
    assert shapes
    assert all(len(shape) == 2 for listed in shapes.values() for shape in listed)
