"""Emulates instructions on global and shared memory; every access is checked and counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arena import ADDS, BASE, EMPTY, FILLED, INPUT, LAUNCH, MANY, UNMAPPED, Arena, Counters
from .parse import Address, Instruction
from .values import UNSIGNED, Registers, Value, dtype_of


class Accesses:
    """Mixin of :class:`.machine.Machine` with the instructions that access memory."""

    arena: Arena
    count: Counters
    regs: Registers
    lanes: int
    tag: int
    cta: Value
    mask: Value
    active: Value
    epoch: Value
    smem: Value
    smem_size: int
    pending: Value
    committed: Value
    write_lane: Value
    write_epoch: Value
    read_lane: Value
    read_epoch: Value
    queue: list[tuple[Value, Value, Value, Value]]
    sectors_seen: dict[tuple[str, str], list[Value]]
    _finding: Callable[..., None]
    _get: Callable[[object, str], Callable[[], Value]]
    _set: Callable[[object], Callable[..., None]]

    def _address(self, operand: object) -> Callable[[], Value]:
        assert isinstance(operand, Address)
        offset = np.uint64(operand.offset % 2**64)
        if operand.base.startswith("%"):
            regs = self.regs
            return lambda: regs[operand.base].astype(np.uint64) + offset
        value = np.broadcast_to(offset, (self.lanes,))  # shared memory begins at 0
        return lambda: value

    def _global(self, address: Value, mask: Value, width: int, group: str, text: str, write: bool) -> Value:
        """Offsets in the arena of active lanes; lanes with invalid addresses are reported and left out of ``mask``."""
        offset = address.astype(np.int64) - BASE
        if (mask & (address % np.uint64(width) != 0)).any():
            self._finding(f"misaligned address of {text}")
        good = (offset >= 0) & (offset <= self.arena.size - width)
        state = self.arena.state
        safe = np.where(good & mask, offset, 0)
        good &= (state[safe] != UNMAPPED) & (state[safe + width - 1] != UNMAPPED)
        if (outside := mask & ~good).any():
            first = int(np.flatnonzero(outside)[0])
            self._finding(f"out of bounds, {text}, near {self.arena.name_of(int(offset[first]))}", int(outside.sum()))
            mask &= good
        safe = np.where(mask, offset, 0)
        if mask.any():
            self._tally(safe, mask, width, group)
        return safe

    def _tally(self, offset: Value, mask: Value, width: int, group: str) -> None:
        name = self.arena.name_of(int(offset[np.argmax(mask)]))
        rows = np.where(mask, offset >> 5, -1).reshape(-1, 32)
        rows.sort(1)
        first = np.concatenate([rows[:, :1] >= 0, (rows[:, 1:] != rows[:, :-1]) & (rows[:, 1:] >= 0)], 1)
        lines = rows >> 2
        new = np.concatenate([rows[:, :1] >= 0, (lines[:, 1:] != lines[:, :-1]) & (rows[:, 1:] >= 0)], 1)
        tally = self.count.access[group, name]
        tally += (int(mask.reshape(-1, 32).any(1).sum()), int(first.sum()), int(new.sum()), int(mask.sum()) * width)
        self.sectors_seen[group, name].append(np.unique((self.cta[mask].astype(np.int64) << 40) | (offset[mask] >> 5)))

    def _load_bytes(self, safe: Value, mask: Value, width: int, text: str) -> Value:
        index = safe[:, None] + np.arange(width)
        state = self.arena.state[index]
        mine, writer, reader = self._who(mask), self.arena.writer[index[mask]], self.arena.reader[index[mask]]
        if ((writer >= self.tag * LAUNCH) & (writer != mine)).any():
            self._finding(f"reads what another block writes, {text}")
        self.arena.reader[index[mask]] = np.where((reader < self.tag * LAUNCH) | (reader == mine), mine, mine | MANY)
        if (empty := mask & (state == EMPTY).any(1)).any():
            name = self.arena.name_of(int(safe[np.argmax(empty)]))
            self._finding(f"reads memory never written, {name}, {text}", int(empty.sum()))
        return self.arena.bytes[index]

    def _memory(self, instruction: Instruction, where: Callable[[], Value]) -> Callable[[], None]:
        loads, shared = instruction.op == "ld", "shared" in instruction.modifiers
        assert shared or "global" in instruction.modifiers, instruction.text
        target = instruction.operands[0] if loads else instruction.operands[1]
        names = target if isinstance(target, tuple) else (target,)
        address = self._address(instruction.operands[1] if loads else instruction.operands[0])
        size = dtype_of(instruction.modifiers[-1]).itemsize
        width, part = size * len(names), UNSIGNED[size]
        if loads:
            puts = [self._set(name) for name in names]

            def load() -> None:
                mask = where().copy()
                if shared:
                    data = self._read_shared(address(), mask, width, instruction.text)
                else:
                    safe = self._global(address(), mask, width, "load", instruction.text, False)
                    data = self._load_bytes(safe, mask, width, instruction.text)
                values = np.ascontiguousarray(data).view(part).reshape(self.lanes, -1)
                for put, value in zip(puts, values.T, strict=True):
                    value = np.ascontiguousarray(value)
                    put(value.view(np.dtype(f"i{size}")) if instruction.modifiers[-1][0] == "s" else value, mask)

            return load
        gets = [self._get(name, f"b{8 * size}") for name in names]

        def store() -> None:
            mask = where().copy()
            values = np.stack([np.broadcast_to(get(), (self.lanes,)) for get in gets], 1)
            data = np.ascontiguousarray(values).view(np.uint8).reshape(self.lanes, width)
            if shared:
                self._write_shared(address(), mask, data, instruction.text)
            else:
                self._store(address(), mask, data, instruction.text)

        return store

    def _store(self, address: Value, mask: Value, data: Value, text: str) -> None:
        arena, width = self.arena, data.shape[1]
        safe = self._global(address, mask, width, "store", text, True)
        index = safe[mask][:, None] + np.arange(width)
        if not index.size:
            return
        name = arena.name_of(int(index[0, 0]))
        if (arena.state[index] == INPUT).any():
            self._finding(f"writes into the operand {name}, {text}")
        mine = self._who(mask)
        before, read = arena.writer[index], arena.reader[index]
        # data of an earlier launch may be written by the block that has just read it
        other = (before >= 0) & (before != mine) & ~((before < self.tag * LAUNCH) & (read == mine))
        if other.any():
            self._finding(f"second write by another block, {name}, {text}", int(other.any(1).sum()))
        if np.unique(index).size != index.size:
            self._finding(f"two threads write one element at once, {name}, {text}")
        if (before == mine).any():
            self._finding(f"second write by the same block, {name}, {text}")
        if ((read >= self.tag * LAUNCH) & (read != mine)).any():
            self._finding(f"stores what another block reads, {name}, {text}")
        arena.bytes[index] = data[mask]
        arena.state[index] = FILLED
        arena.writer[index] = mine

    def _who(self, mask: Value) -> Value:
        """A number that identifies this launch and the block of each active lane."""
        return np.asarray(self.tag * LAUNCH + self.cta[mask].astype(np.int64))[:, None]

    def _atomic(self, instruction: Instruction, where: Callable[[], Value]) -> Callable[[], None]:
        assert "add" in instruction.modifiers, instruction.text
        returns = instruction.op == "atom"
        address = self._address(instruction.operands[int(returns)])
        source = instruction.operands[int(returns) + 1]
        names = source if isinstance(source, tuple) else (source,)
        dtype = dtype_of(instruction.modifiers[-1])
        gets = [self._get(name, instruction.modifiers[-1]) for name in names]
        target = instruction.operands[0] if returns else ()
        puts = [self._set(name) for name in (target if isinstance(target, tuple) else (target,))]

        def add() -> None:
            mask, arena = where().copy(), self.arena
            safe = self._global(address(), mask, dtype.itemsize * len(names), "atomic", instruction.text, True)
            for number, get in enumerate(gets):
                at = safe[mask] + number * dtype.itemsize
                index = at[:, None] + np.arange(dtype.itemsize)
                if (arena.state[index] == EMPTY).any():
                    self._finding(f"adds to memory never written, {instruction.text}")
                if ((arena.writer[index] >= 0) & (arena.writer[index] & ADDS == 0)).any():
                    self._finding(f"adds to what a store wrote, {instruction.text}")
                arena.writer[index] = self._who(mask) | ADDS
                if returns:
                    old = np.zeros(self.lanes, dtype)
                    old[mask] = arena.bytes.view(dtype)[at // dtype.itemsize]
                    puts[number](old, mask)
                np.add.at(arena.bytes.view(dtype), at // dtype.itemsize, np.broadcast_to(get(), (self.lanes,))[mask])

        return add

    def _banks(self, address: Value, mask: Value, width: int) -> None:
        """Count cycles of a shared-memory access with bank conflicts: a bank serves one word per cycle."""
        phase = max(1, width // 4)
        words = np.where(mask, address >> 2, -1).reshape(-1, 32)[self.active]
        cycles = least = 0
        for row in words:
            least += -(-np.unique(row[row >= 0]).size * phase // 32)
        for rows in np.split(words, phase, axis=1):
            for row in rows:
                indices = np.unique(row[row >= 0])
                if indices.size:
                    banks = (indices[:, None] + np.arange(phase)).reshape(-1) % 32
                    cycles += int(np.bincount(banks).max())
        self.count.shared += (words.shape[0], cycles, least)

    def _offsets(self, address: Value, mask: Value, width: int, text: str) -> Value:
        offset = address.astype(np.int64)
        if (mask & ((offset < 0) | (offset > self.smem_size - width))).any():
            self._finding(f"outside of shared memory, {text}")
            mask &= (offset >= 0) & (offset <= self.smem_size - width)
        if (mask & (offset % width != 0)).any():
            self._finding(f"misaligned in shared memory, {text}")
        self._banks(offset, mask, width)
        return np.where(mask, offset, 0) + self.cta * self.smem_size

    def _read_shared(self, address: Value, mask: Value, width: int, text: str) -> Value:
        offsets = self._offsets(address, mask, width, text)
        index = offsets[:, None] + np.arange(width)
        indices, lane = index[mask], np.flatnonzero(mask)[:, None]
        epoch = self.epoch[self.cta[mask]][:, None]
        if self.pending[indices].any():
            self._finding(f"reads a copy before it is waited for, {text}")
        wrote = self.write_lane[indices]
        if ((self.write_epoch[indices] == epoch) & (wrote != lane)).any():
            self._finding(f"reads what another thread wrote since the last barrier, {text}")
        if (wrote < 0).any():
            self._finding(f"reads shared memory never written, {text}")
        fresh = self.read_epoch[indices] != epoch
        old = np.where(fresh, lane, self.read_lane[indices])
        self.read_epoch[indices] = epoch
        self.read_lane[indices] = lane
        many = (self.read_lane[indices] != lane) | (old != lane)
        self.read_lane[indices[many]] = -2
        return self.smem[index]

    def _hazard(self, indices: Value, lane: Value, text: str) -> None:
        epoch = self.epoch[self.cta[lane]][:, None]
        if ((self.read_epoch[indices] == epoch) & (self.read_lane[indices] != lane[:, None])).any():
            self._finding(f"overwrites what another thread read since the last barrier, {text}")
        if (
            (self.write_epoch[indices] == epoch)
            & (self.write_lane[indices] != lane[:, None])
            & (self.write_lane[indices] >= 0)
        ).any():
            self._finding(f"overwrites what another thread wrote since the last barrier, {text}")
        if self.pending[indices].any():
            self._finding(f"overwrites the target of a copy that is not waited for, {text}")

    def _write_shared(self, address: Value, mask: Value, data: Value, text: str) -> None:
        offsets, width = self._offsets(address, mask, data.shape[1], text), data.shape[1]
        indices, lane = offsets[mask][:, None] + np.arange(width), np.flatnonzero(mask)
        self._hazard(indices, lane, text)
        self.smem[indices] = data[mask]
        if (self.smem[indices] != data[mask]).any():
            self._finding(f"two threads write different numbers to one place of shared memory, {text}")
        self.write_lane[indices], self.write_epoch[indices] = lane[:, None], self.epoch[self.cta[lane]][:, None]

    def _async(self, instruction: Instruction, where: Callable[[], Value]) -> Callable[[], None]:
        if "commit_group" in instruction.modifiers:

            def commit() -> None:
                self.committed[where()] += 1

            return commit
        if "wait_group" in instruction.modifiers or "wait_all" in instruction.modifiers:
            remaining = int(str(instruction.operands[0]), 0) if "wait_group" in instruction.modifiers else -1
            return lambda: self._wait(where(), remaining)
        target, source = self._address(instruction.operands[0]), self._address(instruction.operands[1])
        width = int(str(instruction.operands[2]), 0)
        source_size = self._get(instruction.operands[3], "u32") if len(instruction.operands) > 3 else None

        def copy() -> None:
            mask = where().copy()
            size = np.broadcast_to(source_size(), (self.lanes,)) if source_size else np.full(self.lanes, width)
            if (mask & (size != 0) & (size != width)).any():
                self._finding(f"part of a copy, {instruction.text}")
            reads = mask & (size > 0)
            safe = self._global(source(), reads, width, "load async", instruction.text, False)
            data = self._load_bytes(safe, reads, width, instruction.text)
            data[~reads] = 0
            offsets = self._offsets(target(), mask, width, instruction.text)
            indices, lane = offsets[mask][:, None] + np.arange(width), np.flatnonzero(mask)
            if not lane.size:
                return
            self._hazard(indices, lane, instruction.text)
            self.pending[indices] = True
            self.queue.append((self.committed[lane], lane, indices, data[mask]))

        return copy

    def _wait(self, mask: Value, remaining: int) -> None:
        rest = []
        for group, lane, indices, data in self.queue:
            done = mask[lane] & (group < self.committed[lane] - remaining)
            if done.any():
                offsets = indices[done]
                self.smem[offsets] = data[done]
                self.pending[offsets] = False
                self.write_lane[offsets] = lane[done][:, None]
                self.write_epoch[offsets] = self.epoch[self.cta[lane[done]]][:, None]
            if not done.all():
                rest.append((group[~done], lane[~done], indices[~done], data[~done]))
        self.queue = rest

    def _matrix(self, instruction: Instruction) -> Callable[[], None]:
        """Emulate ldmatrix and stmatrix: 8 x 8 matrices of 2-byte numbers between registers and shared memory.

        Row addresses of matrix n are in threads from 8 n; a thread holds two numbers of a row (transposed: a column).
        """
        stores = instruction.op == "stmatrix"
        where, names = (instruction.operands if stores else instruction.operands[::-1])[:2]
        assert isinstance(names, tuple), instruction.text
        assert "b16" in instruction.modifiers, instruction.text
        address, lane = self._address(where), np.arange(32)
        pair = [lane // 4, lane // 4], [4 * (lane % 4), 4 * (lane % 4) + 2]  # row, and byte in it, of both numbers
        if "trans" in instruction.modifiers:
            pair = [2 * (lane % 4), 2 * (lane % 4) + 1], [2 * (lane // 4)] * 2

        def of(number: int) -> list[Value]:
            rows = address().reshape(-1, 32)
            addresses = (rows[:, 8 * number + row] + at.astype(np.uint64) for row, at in zip(*pair, strict=True))
            return [each.reshape(-1) for each in addresses]

        def load() -> None:
            for number, name in enumerate(names):
                data = [self._read_shared(each, self.mask.copy(), 2, instruction.text) for each in of(number)]
                self._set(name)(np.ascontiguousarray(np.concatenate(data, 1)).view(np.uint32).reshape(-1))

        def store() -> None:
            for number, name in enumerate(names):
                value = np.ascontiguousarray(np.broadcast_to(self._get(name, "b32")(), (self.lanes,)))
                for each, data in zip(of(number), np.split(value.view(np.uint8).reshape(-1, 4), 2, 1), strict=True):
                    self._write_shared(each, self.mask.copy(), data, instruction.text)

        return store if stores else load
