"""Emulates instructions on registers, for the active lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .parse import Instruction, Kernel, is_register
from .values import COMPARE, FLOAT, INTEGER, UNSIGNED, WIDTHS, Registers, Value, convert, dtype_of, number


class Arithmetic:
    """Mixin of :class:`.machine.Machine` with the instructions that compute."""

    kernel: Kernel
    regs: Registers
    lanes: int
    grid: int
    cta: Value
    tid: Value
    mask: Value
    full: bool

    def _get(self, operand: object, ptx_type: str) -> Callable[[], Value]:
        assert isinstance(operand, str), operand
        dtype = np.dtype(bool) if ptx_type == "pred" else dtype_of(ptx_type)
        special = {
            "%tid.x": self.tid, "%ctaid.x": self.cta, "%ntid.x": self.kernel.threads, "%nctaid.x": self.grid,
            "%laneid": self.tid % 32, "%tid.y": 0, "%tid.z": 0, "%ctaid.y": 0, "%ctaid.z": 0,
        }  # fmt: skip
        if operand in special:
            value = np.broadcast_to(np.asarray(special[operand]).astype(dtype), (self.lanes,))
            return lambda: value
        if is_register(operand):
            regs = self.regs
            if ptx_type == "pred":
                if operand.startswith("!"):
                    return lambda: ~regs[operand[1:]]
                return lambda: regs[operand]

            def read() -> Value:
                value = regs[operand]
                if value.dtype.itemsize != dtype.itemsize:
                    value = value.astype(UNSIGNED[dtype.itemsize])
                return value.view(dtype)

            return read
        value = np.asarray(number(operand, dtype))
        return lambda: value

    def _set(self, operand: object) -> Callable[[Value], None]:
        assert isinstance(operand, str), operand
        if operand == "_":
            return _nothing
        predicate = operand.startswith("%p")
        dtype = np.dtype(bool) if predicate else np.dtype(UNSIGNED[WIDTHS[operand.rstrip("0123456789")]])
        regs, lanes = self.regs, self.lanes

        def write(value: Value, where: Value | None = None) -> None:
            if value.dtype != dtype:
                if value.dtype.itemsize != dtype.itemsize:
                    wide = value.dtype.kind == "i"
                    value = value.astype(np.dtype(f"i{dtype.itemsize}") if wide else dtype)
                value = value.view(dtype)
            if value.shape != (lanes,):
                value = np.broadcast_to(value, (lanes,))
            mask = where if where is not None and not where.all() else None if self.full else self.mask
            if mask is None:
                regs[operand] = value
            else:
                old = regs.get(operand)
                new = np.zeros(lanes, dtype) if old is None else old.copy()
                np.copyto(new, value, where=mask)
                regs[operand] = new

        return write

    def _move(self, instruction: Instruction) -> Callable[[], None]:
        target, source = instruction.operands
        ptx_type = instruction.modifiers[-1]
        if isinstance(target, tuple):  # split, lowest part first
            value, puts = self._get(source, ptx_type), [self._set(t) for t in target]
            part = UNSIGNED[dtype_of(ptx_type).itemsize // len(target)]

            def split() -> None:
                parts = np.ascontiguousarray(np.broadcast_to(value(), (self.lanes,))).view(part).reshape(self.lanes, -1)
                for put, column in zip(puts, parts.T, strict=True):
                    put(np.ascontiguousarray(column))

            return split
        put = self._set(target)
        if isinstance(source, tuple):
            part_type = f"b{8 * dtype_of(ptx_type).itemsize // len(source)}"
            gets = [self._get(s, part_type) for s in source]

            def join() -> None:
                parts = np.stack([np.broadcast_to(get(), (self.lanes,)) for get in gets], 1)
                put(parts.view(UNSIGNED[dtype_of(ptx_type).itemsize]).reshape(-1))

            return join
        value = self._get(source, ptx_type)
        return lambda: put(value())

    def _arithmetic(self, instruction: Instruction) -> Callable[[], None]:
        op, modifiers, o = instruction.op, instruction.modifiers, instruction.operands
        put = self._set(o[0])
        if op == "cvt":
            to, source = modifiers[-2], modifiers[-1]
            if to in ("bf16x2", "f16x2"):  # the second source is the lower half
                high, low = self._get(o[1], source), self._get(o[2], source)
                half = to[:-2]
                return lambda: put(
                    convert(high(), source, half, modifiers).astype(np.uint32) << np.uint32(16)
                    | convert(low(), source, half, modifiers).astype(np.uint32)
                )
            value = self._get(o[1], source)
            return lambda: put(convert(value(), source, to, modifiers))
        if op == "setp":
            a, b = self._get(o[1], modifiers[-1]), self._get(o[2], modifiers[-1])
            assert len(modifiers) == 2, instruction.text
            compare = COMPARE[modifiers[0]]
            return lambda: put(np.asarray(compare(a(), b())))
        if op == "selp":
            a, b, p = self._get(o[1], modifiers[-1]), self._get(o[2], modifiers[-1]), self._get(o[3], "pred")
            return lambda: put(np.where(p(), a(), b()))
        ptx_type = modifiers[-1]
        if ptx_type == "pred":
            gets = [self._get(s, "pred") for s in o[1:]]
            work = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}[op]
            return lambda: put(work(*(get() for get in gets)))
        if ptx_type in ("f32", "f64") and op in FLOAT:
            compute, gets = FLOAT[op], [self._get(s, ptx_type) for s in o[1:]]
            dtype = dtype_of(ptx_type)
            return lambda: put(np.asarray(compute(*(get() for get in gets))).astype(dtype))
        if ptx_type in ("bf16", "f16") and op in FLOAT:  # rounded once: float32 holds sums and products of both
            narrow, gets = FLOAT[op], [self._get(s, ptx_type) for s in o[1:]]
            return lambda: put(
                convert(narrow(*(convert(g(), ptx_type, "f32", ()) for g in gets)), "f32", ptx_type, ("rn",))
            )
        if ptx_type in ("bf16", "f16", "bf16x2", "f32x2", "f16x2"):
            raise NotImplementedError(instruction.text)
        if op in ("mul", "mad") and "wide" in modifiers:
            a, b = self._get(o[1], ptx_type), self._get(o[2], ptx_type)
            wide = np.dtype(f"{dtype_of(ptx_type).kind}{2 * dtype_of(ptx_type).itemsize}")
            if op == "mul":
                return lambda: put(a().astype(wide) * b().astype(wide))
            c = self._get(o[3], f"{'s' if wide.kind == 'i' else 'u'}{8 * wide.itemsize}")
            return lambda: put(a().astype(wide) * b().astype(wide) + c())
        if op == "bfe":
            a, b, c = self._get(o[1], ptx_type), self._get(o[2], "u32"), self._get(o[3], "u32")
            dtype, bits = dtype_of(ptx_type), dtype_of(ptx_type).type(8 * dtype_of(ptx_type).itemsize)

            def extract() -> None:  # lengths are constants above 0; the field's last bit is the sign
                first, length = b().astype(dtype), c().astype(dtype)
                put((a() << (bits - first - length)) >> (bits - length))

            return extract
        if op in ("shl", "shr"):
            a, b, bits = self._get(o[1], ptx_type), self._get(o[2], "u32"), 8 * dtype_of(ptx_type).itemsize
            dtype, is_left = dtype_of(ptx_type), op == "shl"

            def shift() -> None:
                by = b().astype(np.int64)
                value, small = a(), np.minimum(by, bits - 1).astype(dtype)
                if is_left:
                    put(np.where(by >= bits, dtype.type(0), value << small))
                else:
                    out = value >> small
                    put(np.where(by >= bits, dtype.type(0), out) if dtype.kind == "u" else out)

            return shift
        if op in INTEGER:
            if op in ("mul", "mad"):
                assert "lo" in modifiers, instruction.text
            wrap = op in ("add", "sub", "mul", "mad", "and", "or", "xor", "not")
            computed_type = f"u{8 * dtype_of(ptx_type).itemsize}" if wrap else ptx_type
            compute, gets = INTEGER[op], [self._get(s, computed_type) for s in o[1:]]
            dtype = dtype_of(computed_type)
            return lambda: put(np.asarray(compute(*(get() for get in gets))).astype(dtype))
        raise NotImplementedError(instruction.text)


def _nothing(value: Value, where: Value | None = None) -> None:
    """Discard the result of an instruction that writes no register."""
