"""Kernels that measure a card do the reads and the multiply-adds that their rates are divided by."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from eqlayers.bench import stages
from tests.by_path import loaded
from tests.gpu.conftest import device

card = loaded("docs/benchmarks/studies/card.py")
BLOCK, CHAINS = card.BLOCK, card.CHAINS
__all__ = ["device"]

PROGRAMS = 3


def run(name: str, x: torch.Tensor, size: int, times: int) -> torch.Tensor:
    """Results of a kernel for each number of each program."""
    out = torch.full((PROGRAMS * BLOCK,), torch.nan, device=x.device)
    call = card._call(name, x, out, size, times, PROGRAMS)
    call.kernel[call.grid](*call.args, **call.meta)
    return out.view(PROGRAMS, BLOCK)


def test_every_program_reads_a_block_at_every_step(device: torch.device) -> None:
    size, times = 8 * BLOCK, 5
    x = torch.randn(size, device=device)
    at = torch.arange(PROGRAMS)[:, None] * BLOCK + torch.arange(times) * BLOCK * 7919
    places = (at % size)[..., None] + torch.arange(BLOCK)
    torch.testing.assert_close(run("reads", x, size, times).cpu(), x.cpu()[places].sum(1))
    assert len((at % size).unique()) > times, "blocks lie apart, so that no program reads what is near"


def test_every_number_has_four_chains_of_multiply_adds(device: torch.device) -> None:
    times = 7
    out = run("multiplies", torch.empty(1, device=device), 0, times).cpu()
    chains = torch.arange(BLOCK).double() + torch.arange(CHAINS)[:, None]
    for _ in range(times):
        chains = chains * 0.999 + 0.5
    torch.testing.assert_close(out, chains.sum(0).float().expand(PROGRAMS, -1), rtol=1e-5, atol=0)
    assert card.SOURCE.count("* 0.999 + 0.5") == CHAINS
    assert run("nothing", torch.empty(1, device=device), 0, 0).isnan().all(), "a launch and no more"


def test_a_request_that_fails_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the end of a long one, which says what was wrong."""

    def timed(program: Any, kind: Any, on: Any, dry: bool, **options: Any) -> dict[str, Any]:
        if options["fields"]:
            raise ValueError("x" * 9000 + " too many stages")
        return {"registers": [40]}

    monkeypatch.setattr(stages.aot, "target", nullcontext)  # it needs a process without the interpreter
    monkeypatch.setattr(stages, "timed", timed)
    kept: list[dict[str, Any]] = []
    with pytest.raises(SystemExit, match="1 of 2 requests failed; the rows say why"):
        card.sweep(True, kept.append)
    first, second = kept[-1]["rows"]
    assert (first["variant"], first["registers"]) == ("as it is", [40])
    assert second["error"].startswith("ValueError: x")
    assert second["error"].endswith(" too many stages")
    assert len(second["error"]) < 700
