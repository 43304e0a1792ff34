"""A kernel that does not compile is an error of its own kind, with the last words of the compiler."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from eqlayers_kernels.triton.errors import KernelError
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.run import compiling


def test_the_error_of_a_kernel_has_the_last_words_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = RuntimeError("begin " + 500 * "x" + "\n  ptxas   fatal")

    def warmup(*args: Any, **options: Any) -> None:
        raise reason

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(compiling, "threads", lambda jobs: 1)
    call = compiling.KernelCall(SimpleNamespace(warmup=warmup), (1,), (), {})
    runner = SimpleNamespace(on=tuning.PROCESSORS["cuda"], plan_for=lambda on: None)
    with pytest.raises(KernelError, match=r"^RuntimeError: x+ ptxas fatal$") as caught:
        compiling.compile_or_plan_again(runner, lambda: [call], torch.device("cuda"))
    assert caught.value.__cause__ is reason
    assert isinstance(caught.value, RuntimeError)
    assert len(str(caught.value)) == len("RuntimeError: ") + compiling.MOST_WORDS
    # an error that names another backend is of kernels that do not compile; without memory it would have none either
    assert not isinstance(torch.OutOfMemoryError(), KernelError)
