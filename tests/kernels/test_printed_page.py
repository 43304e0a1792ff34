"""The page about printed kernels shows what the printers print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[2] / "docs/guide/printed_kernels.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_line_of_the_page_is_in_a_kernel(capsys: Any) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)
    shown = {name: names[name].splitlines() for name in ("c_source", "triton_source")}
    kernel, printed = blocks("text")
    missing = [line for block in blocks("c") for line in block.splitlines() if line not in shown["c_source"]]
    missing += [line for line in kernel.splitlines() if line not in shown["triton_source"]]
    assert not missing, missing
    assert printed in capsys.readouterr().out
