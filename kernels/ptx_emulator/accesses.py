"""The effect of instructions on global and shared memory: every access is checked and counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arena import ADDS, BASE, EMPTY, FILLED, INPUT, LAUNCH, MANY, UNMAPPED, Arena, Counters
from .parse import Address, Instruction
from .values import UNSIGNED, Registers, Value, dtype_of


class Accesses:
    """The part of a machine that reads and writes; see :class:`.machine.Machine` for its state."""

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
    seen: dict[tuple[str, str], list[Value]]
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
        """Offsets in the arena of the active lanes that may access; others lose their bit in ``mask``."""
        place = address.astype(np.int64) - BASE
        if (mask & (address % np.uint64(width) != 0)).any():
            self._finding(f"misaligned address of {text}")
        good = (place >= 0) & (place <= self.arena.size - width)
        state = self.arena.state
        safe = np.where(good & mask, place, 0)
        good &= (state[safe] != UNMAPPED) & (state[safe + width - 1] != UNMAPPED)
        if (outside := mask & ~good).any():
            first = int(np.flatnonzero(outside)[0])
            self._finding(f"out of bounds, {text}, near {self.arena.name_of(int(place[first]))}", int(outside.sum()))
            mask &= good
        safe = np.where(mask, place, 0)
        if mask.any():
            self._tally(safe, mask, width, group)
        return safe

    def _tally(self, place: Value, mask: Value, width: int, group: str) -> None:
        name = self.arena.name_of(int(place[np.argmax(mask)]))
        rows = np.where(mask, place >> 5, -1).reshape(-1, 32)
        rows.sort(1)
        first = np.concatenate([rows[:, :1] >= 0, (rows[:, 1:] != rows[:, :-1]) & (rows[:, 1:] >= 0)], 1)
        lines = rows >> 2
        new = np.concatenate([rows[:, :1] >= 0, (lines[:, 1:] != lines[:, :-1]) & (rows[:, 1:] >= 0)], 1)
        tally = self.count.access[group, name]
        tally += (int(mask.reshape(-1, 32).any(1).sum()), int(first.sum()), int(new.sum()), int(mask.sum()) * width)
        self.seen[group, name].append(np.unique((self.cta[mask].astype(np.int64) << 40) | (place[mask] >> 5)))

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

    def _memory(self, one: Instruction, where: Callable[[], Value]) -> Callable[[], None]:
        loads, shared = one.op == "ld", "shared" in one.kinds
        assert shared or "global" in one.kinds, one.text
        target = one.operands[0] if loads else one.operands[1]
        names = target if isinstance(target, tuple) else (target,)
        address = self._address(one.operands[1] if loads else one.operands[0])
        size = dtype_of(one.kinds[-1]).itemsize
        width, part = size * len(names), UNSIGNED[size]
        if loads:
            puts = [self._set(name) for name in names]

            def load() -> None:
                mask = where().copy()
                if shared:
                    data = self._read_shared(address(), mask, width, one.text)
                else:
                    safe = self._global(address(), mask, width, "load", one.text, False)
                    data = self._load_bytes(safe, mask, width, one.text)
                pieces = np.ascontiguousarray(data).view(part).reshape(self.lanes, -1)
                for put, piece in zip(puts, pieces.T, strict=True):
                    value = np.ascontiguousarray(piece)
                    put(value.view(np.dtype(f"i{size}")) if one.kinds[-1][0] == "s" else value, mask)

            return load
        gets = [self._get(name, f"b{8 * size}") for name in names]

        def store() -> None:
            mask = where().copy()
            pieces = np.stack([np.broadcast_to(get(), (self.lanes,)) for get in gets], 1)
            data = np.ascontiguousarray(pieces).view(np.uint8).reshape(self.lanes, width)
            if shared:
                self._write_shared(address(), mask, data, one.text)
            else:
                self._store(address(), mask, data, one.text)

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
        """Number of this launch and of the block of each active lane."""
        return np.asarray(self.tag * LAUNCH + self.cta[mask].astype(np.int64))[:, None]

    def _atomic(self, one: Instruction, where: Callable[[], Value]) -> Callable[[], None]:
        assert "add" in one.kinds, one.text
        place = 1 if one.op == "atom" else 0
        address = self._address(one.operands[place])
        source = one.operands[place + 1]
        names = source if isinstance(source, tuple) else (source,)
        dtype = dtype_of(one.kinds[-1])
        gets = [self._get(name, one.kinds[-1]) for name in names]
        target = one.operands[0] if place else ()
        puts = [self._set(name) for name in (target if isinstance(target, tuple) else (target,))]

        def add() -> None:
            mask, arena = where().copy(), self.arena
            safe = self._global(address(), mask, dtype.itemsize * len(names), "atomic", one.text, True)
            for number, get in enumerate(gets):
                at = safe[mask] + number * dtype.itemsize
                index = at[:, None] + np.arange(dtype.itemsize)
                if (arena.state[index] == EMPTY).any():
                    self._finding(f"adds to memory never written, {one.text}")
                if ((arena.writer[index] >= 0) & (arena.writer[index] & ADDS == 0)).any():
                    self._finding(f"adds to what a store wrote, {one.text}")
                arena.writer[index] = self._who(mask) | ADDS
                if place:
                    old = np.zeros(self.lanes, dtype)
                    old[mask] = arena.bytes.view(dtype)[at // dtype.itemsize]
                    puts[number](old, mask)
                np.add.at(arena.bytes.view(dtype), at // dtype.itemsize, np.broadcast_to(get(), (self.lanes,))[mask])

        return add

    def _banks(self, address: Value, mask: Value, width: int) -> None:
        """Cycles: threads of a phase together, a bank serves one word per cycle."""
        phase = max(1, width // 4)
        words = np.where(mask, address >> 2, -1).reshape(-1, 32)[self.active]
        cycles = least = 0
        for row in words:
            least += -(-np.unique(row[row >= 0]).size * phase // 32)
        for rows in np.split(words, phase, axis=1):
            for row in rows:
                kept = np.unique(row[row >= 0])
                if kept.size:
                    banks = (kept[:, None] + np.arange(phase)).reshape(-1) % 32
                    cycles += int(np.bincount(banks).max())
        self.count.shared += (words.shape[0], cycles, least)

    def _places(self, address: Value, mask: Value, width: int, text: str) -> Value:
        place = address.astype(np.int64)
        if (mask & ((place < 0) | (place > self.smem_size - width))).any():
            self._finding(f"outside of shared memory, {text}")
            mask &= (place >= 0) & (place <= self.smem_size - width)
        if (mask & (place % width != 0)).any():
            self._finding(f"misaligned in shared memory, {text}")
        self._banks(place, mask, width)
        return np.where(mask, place, 0) + self.cta * self.smem_size

    def _read_shared(self, address: Value, mask: Value, width: int, text: str) -> Value:
        places = self._places(address, mask, width, text)
        index = places[:, None] + np.arange(width)
        kept, lane = index[mask], np.flatnonzero(mask)[:, None]
        epoch = self.epoch[self.cta[mask]][:, None]
        if self.pending[kept].any():
            self._finding(f"reads a copy before it is waited for, {text}")
        wrote = self.write_lane[kept]
        if ((self.write_epoch[kept] == epoch) & (wrote != lane)).any():
            self._finding(f"reads what another thread wrote since the last barrier, {text}")
        if (wrote < 0).any():
            self._finding(f"reads shared memory never written, {text}")
        fresh = self.read_epoch[kept] != epoch
        old = np.where(fresh, lane, self.read_lane[kept])
        self.read_epoch[kept] = epoch
        self.read_lane[kept] = lane
        many = (self.read_lane[kept] != lane) | (old != lane)
        self.read_lane[kept[many]] = -2
        return self.smem[index]

    def _hazard(self, kept: Value, lane: Value, text: str) -> None:
        epoch = self.epoch[self.cta[lane]][:, None]
        if ((self.read_epoch[kept] == epoch) & (self.read_lane[kept] != lane[:, None])).any():
            self._finding(f"overwrites what another thread read since the last barrier, {text}")
        if (
            (self.write_epoch[kept] == epoch) & (self.write_lane[kept] != lane[:, None]) & (self.write_lane[kept] >= 0)
        ).any():
            self._finding(f"overwrites what another thread wrote since the last barrier, {text}")
        if self.pending[kept].any():
            self._finding(f"overwrites the target of a copy that is not waited for, {text}")

    def _write_shared(self, address: Value, mask: Value, data: Value, text: str) -> None:
        places, width = self._places(address, mask, data.shape[1], text), data.shape[1]
        kept, lane = places[mask][:, None] + np.arange(width), np.flatnonzero(mask)
        self._hazard(kept, lane, text)
        self.smem[kept] = data[mask]
        if (self.smem[kept] != data[mask]).any():
            self._finding(f"two threads write different numbers to one place of shared memory, {text}")
        self.write_lane[kept], self.write_epoch[kept] = lane[:, None], self.epoch[self.cta[lane]][:, None]

    def _async(self, one: Instruction, where: Callable[[], Value]) -> Callable[[], None]:
        if "commit_group" in one.kinds:

            def commit() -> None:
                self.committed[where()] += 1

            return commit
        if "wait_group" in one.kinds or "wait_all" in one.kinds:
            left = int(str(one.operands[0]), 0) if "wait_group" in one.kinds else -1
            return lambda: self._wait(where(), left)
        target, source = self._address(one.operands[0]), self._address(one.operands[1])
        width = int(str(one.operands[2]), 0)
        given = self._get(one.operands[3], "u32") if len(one.operands) > 3 else None

        def copy() -> None:
            mask = where().copy()
            size = np.broadcast_to(given(), (self.lanes,)) if given else np.full(self.lanes, width)
            if (mask & (size != 0) & (size != width)).any():
                self._finding(f"part of a copy, {one.text}")
            reads = mask & (size > 0)
            safe = self._global(source(), reads, width, "load async", one.text, False)
            data = self._load_bytes(safe, reads, width, one.text)
            data[~reads] = 0
            places = self._places(target(), mask, width, one.text)
            kept, lane = places[mask][:, None] + np.arange(width), np.flatnonzero(mask)
            if not lane.size:
                return
            self._hazard(kept, lane, one.text)
            self.pending[kept] = True
            self.queue.append((self.committed[lane], lane, kept, data[mask]))

        return copy

    def _wait(self, mask: Value, left: int) -> None:
        rest = []
        for group, lane, kept, data in self.queue:
            done = mask[lane] & (group < self.committed[lane] - left)
            if done.any():
                places = kept[done]
                self.smem[places] = data[done]
                self.pending[places] = False
                self.write_lane[places] = lane[done][:, None]
                self.write_epoch[places] = self.epoch[self.cta[lane[done]]][:, None]
            if not done.all():
                rest.append((group[~done], lane[~done], kept[~done], data[~done]))
        self.queue = rest

    def _matrix(self, one: Instruction) -> Callable[[], None]:
        """Matrices of 8 x 8 numbers of 2 bytes between registers and rows whose addresses lie in threads.

        The addresses of matrix n are in threads 8 n on; a thread holds two numbers of a row, of a column if transposed.
        """
        stores = one.op == "stmatrix"
        place, names = (one.operands if stores else one.operands[::-1])[:2]
        assert isinstance(names, tuple), one.text
        assert "b16" in one.kinds, one.text
        address, lane = self._address(place), np.arange(32)
        pair = [lane // 4, lane // 4], [4 * (lane % 4), 4 * (lane % 4) + 2]  # row, and byte in it, of both numbers
        if "trans" in one.kinds:
            pair = [2 * (lane % 4), 2 * (lane % 4) + 1], [2 * (lane // 4)] * 2

        def of(number: int) -> list[Value]:
            rows = address().reshape(-1, 32)
            found = (rows[:, 8 * number + row] + at.astype(np.uint64) for row, at in zip(*pair, strict=True))
            return [each.reshape(-1) for each in found]

        def load() -> None:
            for number, name in enumerate(names):
                data = [self._read_shared(each, self.mask.copy(), 2, one.text) for each in of(number)]
                self._set(name)(np.ascontiguousarray(np.concatenate(data, 1)).view(np.uint32).reshape(-1))

        def store() -> None:
            for number, name in enumerate(names):
                value = np.ascontiguousarray(np.broadcast_to(self._get(name, "b32")(), (self.lanes,)))
                for each, data in zip(of(number), np.split(value.view(np.uint8).reshape(-1, 4), 2, 1), strict=True):
                    self._write_shared(each, self.mask.copy(), data, one.text)

        return store if stores else load
