"""Exported graphs and texts of forms of format 1 of the keys are read, and give equal numbers.

The files were written at commit f093e6e by ``torch.export.save`` and ``text_of``, of a TensorProduct, a
TensorProductConv and SphericalHarmonics.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eqlayers.core.forms.keys import describe, short
from eqlayers_kernels.forms.formula import Block, Formula, Node, Operand
from eqlayers_kernels.forms.program import Axis, Program, Slot
from eqlayers_kernels.forms.program import Path as Path_

FOLDER = Path(__file__).parents[1] / "fixtures" / "format_1"
NUMBERS = torch.load(FOLDER / "numbers.pt")
RELEASE = tuple(map(int, NUMBERS["torch"].split(".")[:2]))
is_older = tuple(map(int, torch.__version__.split(".")[:2])) < RELEASE


def check(outputs: Any) -> None:
    for z, wanted in zip(outputs, NUMBERS["results"], strict=True):
        assert (z - wanted).abs().max() <= 1e-6 * wanted.abs().max()


@pytest.mark.skipif(is_older, reason="torch reads no exported files of newer releases")
def test_an_exported_model_runs() -> None:
    program = torch.export.load(FOLDER / "exported.pt2")
    assert "eqlayers-1:" in str(program.graph)
    check(program.module()(*NUMBERS["inputs"]))


@pytest.mark.parametrize("text", json.loads((FOLDER / "keys.json").read_text()), ids=["harmonics", "product", "conv"])
def test_a_text_has_a_key_of_today(text: str) -> None:
    form, old = describe(text).form, text.split(":")[1]
    base = form if isinstance(form, Formula) else form.program  # type: ignore[union-attr]
    assert base.key != old
    assert short(text).startswith(base.key if isinstance(base, Formula) else "eqlayers-1:")


def test_keys_hash_plain_data() -> None:
    """These are keys of format 2, written down: they may never change."""
    path = Path_(Slot(0, 2, 1), Slot(0, 1, 3), Slot(0, 2, 3), 0, (Axis(2, x=1, w=1, z=1),), ((0, 1, 1, 0.1),))
    assert Program((path,), (2, 3, 2, 6), "mul_ir").key == "f4e8e15b443556c6"
    nodes, row = (Node("load", (0, 1)), Node("constant", (0.1,)), Node("multiply", (0, 1))), (Block(0, 2),)
    base = Formula((Operand("x", 2, row),), (Operand("z", 2, row),), nodes, ((2, None),))
    assert base.key == "3da20f0f70889e6c"


def test_a_kept_key_is_not_read() -> None:
    program, key = Program((), (1, 1, 0, 1), "mul_ir"), "0123456789abcdef"
    old = Program.__new__(Program)
    old.__setstate__({"paths": (), "widths": (1, 1, 0, 1), "layout": "mul_ir", "key": key})
    assert (old, old.key) == (program, program.key)
