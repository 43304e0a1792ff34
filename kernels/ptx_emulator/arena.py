"""Memory of an emulated GPU, and counters of launches."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

UNMAPPED, EMPTY, FILLED, INPUT = 0, 1, 2, 3
#: Writers and readers are numbers of a launch and a block, with flags for atomic sums and for several blocks.
LAUNCH, ADDS, MANY = 1 << 40, 1 << 39, 1 << 38
BASE = 0x7F0000000000  # first address of the arena; it needs 64 bits
GUARD = 1024  # bytes between buffers


class Arena:
    """Global memory: buffers with guards between them; state, last writer and last reader of each byte."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.starts: list[int] = []
        self.size = GUARD
        self.bytes = np.zeros(0, np.uint8)
        self.state = np.zeros(0, np.uint8)
        # the last launch and block that stored to a byte, or added to it, and that loaded it; -1 for none
        self.writer, self.reader = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, name: str, data: np.ndarray, state: int) -> int:
        """Add a tensor, and return its address."""
        start = self.size
        self.size = -(-(start + data.nbytes + GUARD) // 512) * 512
        more = self.size - self.bytes.size
        self.bytes = np.concatenate([self.bytes, np.full(more, 0xFF, np.uint8)])
        self.state = np.concatenate([self.state, np.zeros(more, np.uint8)])
        self.writer = np.concatenate([self.writer, np.full(more, -1, np.int64)])
        self.reader = np.concatenate([self.reader, np.full(more, -1, np.int64)])
        stop = start + data.nbytes
        self.state[start:stop] = state
        if state != EMPTY:
            self.bytes[start:stop] = data.reshape(-1).view(np.uint8)
        self.names.append(name)
        self.starts.append(start)
        return BASE + start

    def name_of(self, offset: int) -> str:
        """Name of the buffer that contains an offset, or that comes before it."""
        return self.names[max(0, int(np.searchsorted(self.starts, offset, side="right")) - 1)] if self.names else ""


@dataclass
class Counters:
    """Counts of a launch, summed over warps."""

    groups: Counter[str] = field(default_factory=Counter)  # instructions by class
    access: dict[tuple[str, str], np.ndarray] = field(  # (class, buffer) -> requests, sectors, lines, useful bytes
        default_factory=lambda: defaultdict(lambda: np.zeros(4, np.int64))
    )
    distinct: dict[tuple[str, str], int] = field(default_factory=dict)  # sectors, every one once per block of threads
    shared: np.ndarray = field(
        default_factory=lambda: np.zeros(3, np.int64)
    )  # accesses, cycles, cycles without conflicts
    divergent: int = 0  # blocks of code that part of a warp ran: right, but slow
    findings: Counter[str] = field(default_factory=Counter)
