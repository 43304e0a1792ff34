"""Counts the instructions of one step of a kernel's loop, with Triton's disassembler."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_CLASSES = (
    ("float", "FFMA FMUL FADD DFMA DMUL DADD HFMA2 HMUL2 HADD2 FSEL FSETP"),
    ("convert", "F2F F2FP PRMT I2F F2I"),
    ("shared", "LDS STS LDSM"),
    ("load async", "LDGSTS"),
    ("load", "LDG"),
    ("store", "STG"),
    ("atomic", "RED ATOM ATOMG REDG"),
    ("sync", "LDGDEPBAR DEPBAR BAR WARPSYNC BSSY BSYNC MEMBAR NOP ERRBAR"),
    ("shuffle", "SHFL"),
    ("branch", "BRA EXIT RET CALL"),
    ("spill", "LDL STL"),
)
_CLASS = {op: name for name, ops in _CLASSES for op in ops.split()}


@dataclass(frozen=True)
class Code:
    """Instruction counts of one kernel.

    Attributes:
        loop: Instructions of the innermost long loop by class; instructions of no class are 'integer'.
        outside: The same of the rest.
        early: For loads whose registers are used in the same step, the number of instructions between.
        groups: Groups of asynchronous copies per step.
        opcodes: Instructions of the loop by operation.
    """

    loop: Counter[str]
    outside: Counter[str]
    early: tuple[int, ...]
    groups: int
    opcodes: Counter[str]

    @property
    def spills(self) -> int:
        """Instructions on local memory."""
        return self.loop["spill"] + self.outside["spill"]


def disassemble(cubin: bytes) -> str:
    """Disassemble a cubin to text."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        return subprocess.run([tool, "-c", path], check=True, capture_output=True, text=True).stdout


def read(text: str) -> Code:
    """Count the instructions of a disassembled kernel."""
    lines: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label = re.match(r"^(\.L_x_\d+):", line)
        if label:
            labels[label[1]] = len(lines)
        elif match := _LINE.match(line):
            lines.append((match[2], match[3]))
    loops = []
    for number, (op, rest) in enumerate(lines):
        target = re.search(r"(\.L_x_\d+)", rest)
        if op.startswith("BRA") and target and target[1] in labels and labels[target[1]] < number:
            loops.append((number - labels[target[1]], labels[target[1]], number + 1))
    _, first, stop = max(loops, default=(0, 0, 0))
    classes = [_CLASS.get(op.split(".")[0], "integer") for op, _ in lines]
    return Code(
        Counter(classes[first:stop]),
        Counter(classes[:first] + classes[stop:]),
        tuple(_early(lines[first:stop])),
        sum(op.startswith("LDGDEPBAR") for op, _ in lines[first:stop]),
        Counter(op.split(".")[0] for op, _ in lines[first:stop]),
    )


def _early(loop: list[tuple[str, str]]) -> list[int]:
    out = []
    for number, (op, rest) in enumerate(loop):
        if not op.startswith("LDG") or op.startswith(("LDGSTS", "LDGDEPBAR")):
            continue
        target = int(re.match(r"R(\d+)", rest)[1])  # type: ignore[index]
        width = 4 if ".128" in op else 2 if ".64" in op else 1
        names = {f"R{target + n}" for n in range(width)}
        for later, (_, used) in enumerate(loop[number + 1 :]):
            if names & set(re.findall(r"R\d+", used.split(",", 1)[-1])):
                out.append(later)
                break
    return out
