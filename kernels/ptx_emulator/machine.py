"""Runs PTX on numpy: all threads of all blocks of one launch are lanes of arrays, and every access is checked.

Lanes at the same basic block run together, the earliest block first. Problems are recorded, not raised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from .accesses import Accesses
from .arena import Arena, Counters
from .arithmetic import Arithmetic
from .parse import Address, Instruction, Kernel
from .values import UNSIGNED, Registers, Value, dtype_of


class Machine(Accesses, Arithmetic):
    """Runs one launch.

    Args:
        kernel: Parsed.
        arena: Global memory.
        grid: Blocks along axis 0.
        args: Values of all parameters.
        shared: Bytes of shared memory.
        tag: Number of the launch, for the map of writers.
    """

    def __init__(self, kernel: Kernel, arena: Arena, grid: int, args: list[int], shared: int, tag: int) -> None:
        self.kernel, self.arena, self.grid, self.args, self.tag = kernel, arena, grid, args, tag
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
        self.sectors_seen: dict[tuple[str, str], list[Value]] = defaultdict(list)
        self.mask = np.ones(self.lanes, bool)
        self.full = True
        self.code = [[self._compile(i) for i in block] for block in kernel.blocks]

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> Counters:
        """Run until every lane has left."""
        blocks, done = self.kernel.blocks, len(self.kernel.blocks)
        pc, waiting = np.zeros(self.lanes, np.int32), np.zeros(self.lanes, bool)
        visits = np.zeros(done, np.int64)
        self.jump: tuple[Value, int] | None = None
        self.exited: Value | None = None
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
                self.count.divergent += int((active != warps.all(1)).sum())
                self.active = active
                visits[at] += int(active.sum())
                self.jump, self.exited, self.barrier = None, None, False
                for step in self.code[at]:
                    step()
                pc[self.mask] = at + 1
                if self.jump is not None:
                    pc[self.jump[0]] = self.jump[1]
                if self.exited is not None:
                    pc[self.exited] = done
                if self.barrier:
                    waiting |= self.mask
                    held = (waiting | (pc >= done)).reshape(self.grid, -1).all(1) & waiting.reshape(self.grid, -1).any(
                        1
                    )
                    self.epoch[held] += 1
                    waiting &= ~np.repeat(held, self.kernel.threads)
        for block, visited in zip(blocks, visits, strict=True):
            for instruction in block:
                self.count.groups[instruction.group] += int(visited)
        for key, sectors in self.sectors_seen.items():
            self.count.distinct[key] = int(np.unique(np.concatenate(sectors)).size)
        return self.count

    def _finding(self, text: str, number: int = 1) -> None:
        self.count.findings[f"{self.kernel.name}: {text}"] += number

    # -- instructions -------------------------------------------------------------------------------------------------

    def _compile(self, instruction: Instruction) -> Callable[[], None]:
        guard: Callable[[], Value] | None = None
        if instruction.guard:
            held = self._get(instruction.guard, "pred")
            guard = (lambda: ~held()) if instruction.negated else held
        step = self._step(instruction, guard)
        if guard is None or instruction.op in ("bra", "ld", "st", "cp", "atom", "red"):
            return step
        if instruction.op in ("bar", "shfl", "ldmatrix", "stmatrix", "ret", "exit"):
            raise NotImplementedError(instruction.text)

        def guarded() -> None:  # a guarded move or the like
            mask, full = self.mask, self.full
            self.mask, self.full = mask & guard(), False
            step()
            self.mask, self.full = mask, full

        return guarded

    def _step(self, instruction: Instruction, guard: Callable[[], Value] | None) -> Callable[[], None]:
        op, modifiers, o = instruction.op, instruction.modifiers, instruction.operands
        ptx_type = modifiers[-1] if modifiers else ""

        def where() -> Value:
            return self.mask & guard() if guard is not None else self.mask

        if op == "bra":
            target = self.kernel.labels[str(o[0])]

            def branch() -> None:
                self.jump = (where(), target)

            return branch
        if op in ("ret", "exit"):

            def leave() -> None:
                self.exited = self.mask

            return leave
        if op == "bar" or op == "barrier":
            warp_only = "warp" in modifiers

            def barrier() -> None:
                if warp_only and self.kernel.threads > 32:
                    return
                self.barrier = True

            return barrier
        if op == "ld" and "param" in modifiers:
            assert isinstance(o[1], Address)
            value, size = self.params[o[1].base]
            number = np.asarray(
                np.frombuffer(int(value).to_bytes(8, "little", signed=value < 0)[:size], UNSIGNED[size])[0]
            )
            dtype, put = dtype_of(ptx_type), self._set(o[0])
            return lambda: put(number.view(dtype) if dtype.itemsize == size else number.astype(dtype))
        if op in ("ld", "st"):
            return self._memory(instruction, where)
        if op in ("atom", "red"):
            return self._atomic(instruction, where)
        if op == "cp":
            return self._async(instruction, where)
        if op in ("ldmatrix", "stmatrix"):
            return self._matrix(instruction)
        if op == "shfl":
            assert modifiers[:2] == ("sync", "bfly") or modifiers[:2] == ("sync", "idx"), instruction.text
            put, a, b = self._set(o[0]), self._get(o[1], "b32"), self._get(o[2], "b32")
            lane: Value = np.arange(self.lanes)
            flip = modifiers[1] == "bfly"

            def shuffle() -> None:
                if not np.asarray(self.mask.reshape(-1, 32).all(1))[self.active].all():
                    self._finding("shuffle with threads missing")
                other: Value = lane ^ b().astype(np.int64) if flip else lane - lane % 32 + b().astype(np.int64)
                put(np.broadcast_to(a(), (self.lanes,))[other])

            return shuffle
        if op == "mov":
            return self._move(instruction)
        return self._arithmetic(instruction)
