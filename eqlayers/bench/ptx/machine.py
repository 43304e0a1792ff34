"""Runs PTX on numpy: all threads of all blocks of one launch are lanes of arrays, and every access is checked.

Lanes that are at the same basic block go on together, the earliest block first. Findings are kept, not raised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from .accesses import Accesses
from .arena import Arena, Counters
from .parse import Address, Instruction, Kernel, is_register
from .values import COMPARE, FLOAT, INTEGER, UNSIGNED, WIDTHS, Registers, Value, convert, dtype_of, number


class Machine(Accesses):
    """One launch.

    Args:
        kernel: Parsed.
        arena: Global memory.
        grid: Blocks along axis 0.
        args: Values of all parameters.
        shared: Bytes of shared memory.
        tag: Number of the launch, for the map of writers.
        again: Whether elements of earlier launches may be written again.
    """

    def __init__(
        self, kernel: Kernel, arena: Arena, grid: int, args: list[int], shared: int, tag: int, again: bool = False
    ) -> None:
        self.kernel, self.arena, self.grid, self.args, self.tag, self.again = kernel, arena, grid, args, tag, again
        self.lanes = grid * kernel.threads
        lane = np.arange(self.lanes)
        self.cta, self.tid = lane // kernel.threads, lane % kernel.threads
        self.smem_size = max(16, shared)
        self.smem = np.full(grid * self.smem_size, 0xFF, np.uint8)
        size = self.smem.size
        self.write_lane, self.write_epoch = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
        self.read_lane, self.read_epoch = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
        self.pending = np.zeros(size, bool)
        self.epoch = np.zeros(grid, np.int32)
        self.queue: list[tuple[Value, Value, Value, Value]] = []
        self.committed = np.zeros(self.lanes, np.int32)
        self.regs = Registers(self.lanes)
        self.params = {name: (value, size) for (name, size), value in zip(kernel.params, args, strict=True)}
        self.count = Counters()
        self.seen: dict[tuple[str, str], list[Value]] = defaultdict(list)
        self.mask = np.ones(self.lanes, bool)
        self.full = True
        self.code = [[self._compile(i) for i in block] for block in kernel.blocks]

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> Counters:
        """Until every lane has left."""
        blocks, done = self.kernel.blocks, len(self.kernel.blocks)
        pc, waiting = np.zeros(self.lanes, np.int32), np.zeros(self.lanes, bool)
        visits = np.zeros(done, np.int64)
        self.jump: tuple[Value, int] | None = None
        self.left: Value | None = None
        with np.errstate(all="ignore"):
            while True:
                ready = (pc < done) & ~waiting
                if not ready.any():
                    if not waiting.any():
                        break
                    self._finding("barrier that not all threads reach")
                    waiting[:] = False
                    continue
                at = int(pc[ready].min())
                self.mask = ready & (pc == at)
                self.full = bool(self.mask.all() or not ((pc < done) & ~self.mask).any())
                warps = self.mask.reshape(-1, 32)
                active: Value = np.asarray(warps.any(1))
                if (warps.any(1) != warps.all(1)).any():
                    self._finding("divergence within a warp")
                self.active = active
                visits[at] += int(active.sum())
                self.jump, self.left, self.barrier = None, None, False
                for step in self.code[at]:
                    step()
                pc[self.mask] = at + 1
                if self.jump is not None:
                    pc[self.jump[0]] = self.jump[1]
                if self.left is not None:
                    pc[self.left] = done
                if self.barrier:
                    waiting |= self.mask
                    held = (waiting | (pc >= done)).reshape(self.grid, -1).all(1) & waiting.reshape(self.grid, -1).any(
                        1
                    )
                    self.epoch[held] += 1
                    waiting &= ~np.repeat(held, self.kernel.threads)
        for block, visited in zip(blocks, visits, strict=True):
            for one in block:
                self.count.groups[one.group] += int(visited)
        for key, found in self.seen.items():
            self.count.distinct[key] = int(np.unique(np.concatenate(found)).size)
        return self.count

    def _finding(self, text: str, number: int = 1) -> None:
        self.count.findings[f"{self.kernel.name}: {text}"] += number

    # -- values -------------------------------------------------------------------------------------------------------

    def _get(self, operand: object, kind: str) -> Callable[[], Value]:
        assert isinstance(operand, str)
        dtype = np.dtype(bool) if kind == "pred" else dtype_of(kind)
        special = {
            "%tid.x": self.tid, "%ctaid.x": self.cta, "%ntid.x": self.kernel.threads, "%nctaid.x": self.grid,
            "%laneid": self.tid % 32, "%tid.y": 0, "%tid.z": 0, "%ctaid.y": 0, "%ctaid.z": 0,
        }  # fmt: skip
        if operand in special:
            value = np.broadcast_to(np.asarray(special[operand]).astype(dtype), (self.lanes,))
            return lambda: value
        if is_register(operand):
            regs = self.regs
            if kind == "pred":
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
        assert isinstance(operand, str)
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

    # -- instructions -------------------------------------------------------------------------------------------------

    def _compile(self, one: Instruction) -> Callable[[], None]:
        guard: Callable[[], Value] | None = None
        if one.guard:
            held = self._get(one.guard, "pred")
            guard = (lambda: ~held()) if one.negated else held
        step = self._step(one, guard)
        if guard is None or one.op in ("bra", "ld", "st", "cp", "atom", "red"):
            return step
        if one.op in ("bar", "shfl", "ldmatrix", "ret", "exit"):
            raise NotImplementedError(one.text)

        def guarded() -> None:  # a guarded move or the like
            mask, full = self.mask, self.full
            self.mask, self.full = mask & guard(), False
            step()
            self.mask, self.full = mask, full

        return guarded

    def _step(self, one: Instruction, guard: Callable[[], Value] | None) -> Callable[[], None]:
        op, kinds, o = one.op, one.kinds, one.operands
        kind = kinds[-1] if kinds else ""

        def where() -> Value:
            return self.mask & guard() if guard is not None else self.mask

        if op == "bra":
            target = self.kernel.labels[str(o[0])]

            def branch() -> None:
                self.jump = (where(), target)

            return branch
        if op in ("ret", "exit"):

            def leave() -> None:
                self.left = self.mask

            return leave
        if op == "bar" or op == "barrier":
            warp_only = "warp" in kinds

            def barrier() -> None:
                if warp_only and self.kernel.threads > 32:
                    return
                self.barrier = True

            return barrier
        if op == "ld" and "param" in kinds:
            assert isinstance(o[1], Address)
            value, size = self.params[o[1].base]
            number = np.asarray(
                np.frombuffer(int(value).to_bytes(8, "little", signed=value < 0)[:size], UNSIGNED[size])[0]
            )
            dtype, put = dtype_of(kind), self._set(o[0])
            return lambda: put(number.view(dtype) if dtype.itemsize == size else number.astype(dtype))
        if op in ("ld", "st"):
            return self._memory(one, where)
        if op in ("atom", "red"):
            return self._atomic(one, where)
        if op == "cp":
            return self._async(one, where)
        if op == "ldmatrix":
            return self._ldmatrix(one)
        if op == "shfl":
            assert kinds[:2] == ("sync", "bfly") or kinds[:2] == ("sync", "idx"), one.text
            put, a, b = self._set(o[0]), self._get(o[1], "b32"), self._get(o[2], "b32")
            lane: Value = np.arange(self.lanes)
            flip = kinds[1] == "bfly"

            def shuffle() -> None:
                if not np.asarray(self.mask.reshape(-1, 32).all(1))[self.active].all():
                    self._finding("shuffle with threads missing")
                other: Value = lane ^ b().astype(np.int64) if flip else lane - lane % 32 + b().astype(np.int64)
                put(np.broadcast_to(a(), (self.lanes,))[other])

            return shuffle
        if op == "mov":
            return self._move(one)
        return self._arithmetic(one)

    def _move(self, one: Instruction) -> Callable[[], None]:
        target, source = one.operands
        kind = one.kinds[-1]
        if isinstance(target, tuple):  # take apart, lowest first
            value, puts = self._get(source, kind), [self._set(t) for t in target]
            part = UNSIGNED[dtype_of(kind).itemsize // len(target)]

            def apart() -> None:
                pieces = (
                    np.ascontiguousarray(np.broadcast_to(value(), (self.lanes,))).view(part).reshape(self.lanes, -1)
                )
                for put, piece in zip(puts, pieces.T, strict=True):
                    put(np.ascontiguousarray(piece))

            return apart
        put = self._set(target)
        if isinstance(source, tuple):
            piece_kind = f"b{8 * dtype_of(kind).itemsize // len(source)}"
            gets = [self._get(s, piece_kind) for s in source]

            def join() -> None:
                pieces = np.stack([np.broadcast_to(get(), (self.lanes,)) for get in gets], 1)
                put(pieces.view(UNSIGNED[dtype_of(kind).itemsize]).reshape(-1))

            return join
        value = self._get(source, kind)
        return lambda: put(value())

    def _arithmetic(self, one: Instruction) -> Callable[[], None]:
        op, kinds, o = one.op, one.kinds, one.operands
        put = self._set(o[0])
        if op == "cvt":
            to, source = kinds[-2], kinds[-1]
            if to in ("bf16x2", "f16x2"):  # the second source is the lower half
                high, low = self._get(o[1], source), self._get(o[2], source)
                half = to[:-2]
                return lambda: put(
                    convert(high(), source, half, kinds).astype(np.uint32) << np.uint32(16)
                    | convert(low(), source, half, kinds).astype(np.uint32)
                )
            value = self._get(o[1], source)
            return lambda: put(convert(value(), source, to, kinds))
        if op == "setp":
            a, b = self._get(o[1], kinds[-1]), self._get(o[2], kinds[-1])
            assert len(kinds) == 2, one.text
            compare = COMPARE[kinds[0]]
            return lambda: put(np.asarray(compare(a(), b())))
        if op == "selp":
            a, b, p = self._get(o[1], kinds[-1]), self._get(o[2], kinds[-1]), self._get(o[3], "pred")
            return lambda: put(np.where(p(), a(), b()))
        kind = kinds[-1]
        if kind == "pred":
            gets = [self._get(s, "pred") for s in o[1:]]
            work = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}[op]
            return lambda: put(work(*(get() for get in gets)))
        if kind in ("f32", "f64") and op in FLOAT:
            compute, gets = FLOAT[op], [self._get(s, kind) for s in o[1:]]
            dtype = dtype_of(kind)
            return lambda: put(np.asarray(compute(*(get() for get in gets))).astype(dtype))
        if kind in ("bf16", "f16", "bf16x2", "f32x2", "f16x2"):
            raise NotImplementedError(one.text)
        if op in ("mul", "mad") and "wide" in kinds:
            a, b = self._get(o[1], kind), self._get(o[2], kind)
            wide = np.dtype(f"{dtype_of(kind).kind}{2 * dtype_of(kind).itemsize}")
            if op == "mul":
                return lambda: put(a().astype(wide) * b().astype(wide))
            c = self._get(o[3], f"{'s' if wide.kind == 'i' else 'u'}{8 * wide.itemsize}")
            return lambda: put(a().astype(wide) * b().astype(wide) + c())
        if op == "bfe":
            a, b, c = self._get(o[1], kind), self._get(o[2], "u32"), self._get(o[3], "u32")
            assert kind in ("u32", "u64"), one.text
            one_bit, dtype = dtype_of(kind).type(1), dtype_of(kind)
            return lambda: put((a() >> b().astype(dtype)) & ((one_bit << c().astype(dtype)) - one_bit))
        if op in ("shl", "shr"):
            a, b, bits = self._get(o[1], kind), self._get(o[2], "u32"), 8 * dtype_of(kind).itemsize
            dtype, left = dtype_of(kind), op == "shl"

            def shift() -> None:
                by = b().astype(np.int64)
                value, small = a(), np.minimum(by, bits - 1).astype(dtype)
                if left:
                    put(np.where(by >= bits, dtype.type(0), value << small))
                else:
                    out = value >> small
                    put(np.where(by >= bits, dtype.type(0), out) if dtype.kind == "u" else out)

            return shift
        if op in INTEGER:
            if op in ("mul", "mad"):
                assert "lo" in kinds, one.text
            wrap = op in ("add", "sub", "mul", "mad", "and", "or", "xor", "not")
            wanted = f"u{8 * dtype_of(kind).itemsize}" if wrap else kind
            compute, gets = INTEGER[op], [self._get(s, wanted) for s in o[1:]]
            dtype = dtype_of(wanted)
            return lambda: put(np.asarray(compute(*(get() for get in gets))).astype(dtype))
        raise NotImplementedError(one.text)


def _nothing(value: Value, where: Value | None = None) -> None:
    """What is written to no register."""
