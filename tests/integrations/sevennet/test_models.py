"""SevenNet's models: what becomes a convolution, the parallel form, and TorchScript."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.errors import ConfigError
from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds import convolution
from eqlayers.integrations.kinds.convolution import AcceleratedMessages
from tests.integrations.guests import sevennet

LAYERS = 3


def model() -> Any:
    return sevennet(layers=LAYERS, channels=4, sizes=(9, 1, 5)).make(torch.float64)


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every product that ran as a convolution."""
    seen: list[int] = []
    run = convolution.run_convolution

    def counted(*args: Any) -> Tensor:
        seen.append(1)
        return run(*args)

    monkeypatch.setattr(convolution, "run_convolution", counted)
    return seen


def test_every_convolution_is_one_call(convolutions: list[int]) -> None:
    subject = sevennet(layers=LAYERS, channels=4, sizes=(9, 1, 5))
    plain = subject.make(torch.float64)
    report = accelerate(subject.make(torch.float64), check=False)
    rows = [row for row in report.replaced if row.target == "convolution"]
    assert [row.path for row in rows] == [f"{number}_convolution.convolution" for number in range(LAYERS)]
    assert {row.replacement for row in rows} == {"AcceleratedMessages"}
    assert not report.skipped
    mine, theirs = (subject.evaluate(one, False) for one in (report.model, plain))
    assert len(convolutions) == LAYERS
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


def test_the_parallel_form(convolutions: list[int]) -> None:
    """LAMMPS has this form: features of ghosts are appended before the gather, and cut off after the sum."""
    block = model().get_submodule("1_convolution")
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    width = block.convolution.irreps_in1.dim
    data = {
        "x": draw(5, width),
        "x_ghost": draw(3, width),
        "nlocal": torch.tensor([5]),
        "edge_index": torch.stack([torch.randint(0, 8, (12,), generator=generator) for _ in range(2)]),
        "edge_attr": draw(12, block.convolution.irreps_in2.dim),
        "edge_embedding": draw(12, 8),
    }
    block.is_parallel = True
    expected = block(dict(data))["x"]
    holder = torch.nn.ModuleList([block])
    accelerate(holder)
    result = block(dict(data))["x"]
    assert result.shape == (5, expected.shape[1])
    torch.testing.assert_close(result, expected)
    assert convolutions


def test_torchscript_says_what_to_do_and_works_after_the_way_back() -> None:
    from e3nn.util.jit import script

    network = model()
    block = network.get_submodule("1_convolution")
    accelerate(network)
    assert type(block.convolution) is AcceleratedMessages
    with pytest.raises(ConfigError, match="must hold no replacement but products"):
        script(block)
    deaccelerate(network)
    assert script(block) is not None
