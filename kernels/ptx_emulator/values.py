"""Numbers of PTX on numpy: types, literals, conversions, comparisons, and the arithmetic of each operation."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

Value = np.ndarray[Any, Any]
WIDTHS = {"%rs": 2, "%r": 4, "%rd": 8, "%f": 4, "%fd": 8, "%p": 1, "%h": 2}  # bytes of a register
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Registers(dict[str, Value]):
    """Registers by name; one never written holds ones, which is NaN (LLVM leaves unused halves undefined)."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes

    def __missing__(self, name: str) -> Value:
        dtype: Any = UNSIGNED[WIDTHS[name.rstrip("0123456789")]]
        return np.full(self.lanes, np.iinfo(dtype).max, dtype)


COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": np.equal, "ne": lambda a, b: (a != b) & (a == a) & (b == b), "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "lo": np.less, "hi": np.greater, "ls": np.less_equal,
    "hs": np.greater_equal, "nan": lambda a, b: (a != a) | (b != b), "neu": np.not_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)), "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b),
}  # fmt: skip


def fma(a: Value, b: Value, c: Value) -> Value:
    """Multiply and add in the next wider type: exact products of float32; the sum rounds twice in rare cases."""
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    return a.astype(wide) * b.astype(wide) + c.astype(wide)


FLOAT: dict[str, Callable[..., Value]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": fma, "mad": fma, "div": np.divide,
    "neg": np.negative, "abs": np.abs, "min": np.fmin, "max": np.fmax, "mov": lambda a: a, "sqrt": np.sqrt,
    "rcp": lambda a: 1 / a, "rsqrt": lambda a: 1 / np.sqrt(a), "ex2": np.exp2, "lg2": np.log2,
}  # fmt: skip
INTEGER: dict[str, Callable[..., Value]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "mad": lambda a, b, c: a * b + c, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs,
    "div": lambda a, b: np.where((a < 0) != (b < 0), -1, 1) * (abs(a) // np.maximum(abs(b), 1)),
    "rem": lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
}  # fmt: skip


def dtype_of(ptx_type: str) -> np.dtype[Any]:
    """The dtype of a type of PTX, such as ``b32``."""
    letter, bits = ptx_type.rstrip("0123456789"), int(ptx_type.lstrip("abcdefghijklmnopqrstuvwxyz").split("x")[0])
    return np.dtype({"b": "u", "u": "u", "s": "i", "f": "f", "bf": "u"}[letter] + str(bits // 8))


def number(text: str, dtype: np.dtype[Any]) -> object:
    """The value of a PTX literal."""
    if text.startswith("0f"):
        return np.frombuffer(struct.pack("<I", int(text[2:], 16)), np.uint32)[0].view(np.float32).view(dtype)
    if text.startswith("0d"):
        return np.frombuffer(struct.pack("<Q", int(text[2:], 16)), np.uint64)[0].view(np.float64).view(dtype)
    if text == "global_smem":
        return dtype.type(0)
    bits = 8 * dtype.itemsize
    value = int(text, 0) % 2**bits
    return np.asarray(value, UNSIGNED[dtype.itemsize]).view(dtype)


def convert(value: Value, source: str, to: str, modifiers: tuple[str, ...]) -> Value:
    """The PTX instruction ``cvt``; floating-point types of two bytes are held as their bits."""
    if source == "bf16":
        value = (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif source == "f16":
        value = value.view(np.float16)
    if to == "bf16":  # to the nearest, ties to even
        bits = np.asarray(value.astype(np.float32)).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(value), np.uint32(0x7FC0), rounded).astype(np.uint16)
    if to == "f16":
        return np.asarray(value.astype(np.float16)).view(np.uint16)
    dtype = dtype_of(to)
    if dtype.kind in "iu" and value.dtype.kind == "f":
        value = np.rint(value) if "rni" in modifiers else np.trunc(value)
    if dtype.kind in "iu" and value.dtype.kind in "iu":  # extends by the source's sign
        return value.astype(np.dtype(f"{value.dtype.kind}{dtype.itemsize}")).view(dtype)
    return value.astype(dtype)
