"""Runs Triton's launches on an emulated GPU: kernels are compiled to PTX and run on numpy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run import aot, segment

from .arena import BASE, EMPTY, FILLED, INPUT, Arena, Counters
from .machine import Machine
from .parse import parse

#: Kernel and argument of the memory that is written.
_WRITTEN = re.compile(r"\S+ (z|g[xywtc]|\w+_room|out\d+|room\d+|result)|sum_rows workspace|add_parts rows")


@dataclass
class Launched:
    """One launch and its counters.

    Attributes:
        name: Of the kernel.
        source: Its text.
        grid: Programs.
        ptx: What ran.
        compiled: Triton's compiled kernel.
        counters: Instructions and accesses.
    """

    name: str
    source: str
    grid: int
    ptx: str
    compiled: Any
    counters: Counters


@dataclass
class Emulator:
    """The memory of an emulated GPU, and its launches.

    Attributes:
        arena: The memory.
        launches: In their order.
        edit: Changes PTX before it runs, so that tests can damage it.
    """

    arena: Arena = field(default_factory=Arena)
    launches: list[Launched] = field(default_factory=list)
    edit: Callable[[str], str] = str
    _known: dict[int, tuple[int, Tensor]] = field(default_factory=dict)  # storage -> address, and all of its bytes

    @property
    def findings(self) -> Counter[str]:
        """Reported problems and their numbers: races, accesses out of bounds, reads of memory never written."""
        return sum((launched.counters.findings for launched in self.launches), Counter[str]())

    def hold(self, name: str, tensor: Tensor, state: int) -> None:
        """Add the storage of a tensor to the memory, once."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known and storage.nbytes():
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._known[storage.data_ptr()] = (self.arena.add(name, whole.numpy(), state), whole)

    def launch(self, kernel: Any, compiled: Any, grid: int, args: tuple[Any, ...]) -> None:
        """Run a compiled kernel with arguments, and copy results back to tensors."""
        types = [compiled.src.signature[name] for name in kernel.arg_names[: len(args)]]
        for name, arg in zip(kernel.arg_names, args, strict=False):
            if isinstance(arg, Tensor) and arg.numel():
                written = _WRITTEN.fullmatch(f"{kernel.fn.__name__} {name}")
                self.hold(name, arg, FILLED if written else INPUT)
                self._copy_in(arg)
        values = [self._value(arg) for arg, type_name in zip(args, types, strict=True) if type_name != "constexpr"]
        text = self.edit(compiled.asm["ptx"])
        parsed = parse(text)
        values += [0] * (len(parsed.params) - len(values))  # Triton's own scratch, not used
        machine = Machine(parsed, self.arena, grid, values, compiled.metadata.shared, len(self.launches))
        counters = machine.run()
        self.launches.append(Launched(kernel.fn.__name__, kernel.src, grid, text, compiled, counters))
        for arg in args:
            if isinstance(arg, Tensor) and arg.numel():
                self._copy_out(arg)

    def _value(self, arg: Any) -> int:
        if not isinstance(arg, Tensor):
            return int(arg)
        if not arg.numel():
            return 0
        start, _ = self._known[arg.untyped_storage().data_ptr()]
        return start + int(arg.storage_offset()) * arg.element_size()

    def _bytes(self, tensor: Tensor) -> tuple[slice, Any]:
        start, whole = self._known[tensor.untyped_storage().data_ptr()]
        return slice(start - BASE, start - BASE + whole.numel()), whole.numpy()

    def _copy_in(self, tensor: Tensor) -> None:
        """Copy changes that torch made since the last launch into the memory."""
        region, whole = self._bytes(tensor)
        changed = self.arena.bytes[region] != whole
        self.arena.bytes[region] = whole
        state = self.arena.state[region]
        state[changed & (state == EMPTY)] = FILLED

    def _copy_out(self, tensor: Tensor) -> None:
        region, whole = self._bytes(tensor)
        whole[:] = self.arena.bytes[region]


@contextmanager
def emulated(target: str = "sm_90", edit: Callable[[str], str] = str) -> Iterator[Emulator]:
    """A block in which layers with backend 'triton' run on CPU tensors, by the PTX of their kernels.

    Args:
        target: What to compile for; a row of ``aot.TARGETS`` of CUDA.
        edit: Changes PTX before it runs.

    Raises:
        RuntimeError: The process runs Triton's interpreter.

    """
    gpu = Emulator(edit=edit)
    allocate = segment.allocate

    def recorded(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype, fill: bool) -> Tensor:
        out = allocate(like, shape, dtype, fill)
        if not fill:
            out.fill_(torch.nan)
        gpu.hold(f"result {shape}", out, FILLED if fill else EMPTY)
        return out

    with aot.target(target):
        from triton.runtime.jit import JITFunction

        run = JITFunction.run

        def emulate(kernel: Any, *args: Any, grid: Any, warmup: bool, **meta: Any) -> Any:
            compiled = run(kernel, *args, grid=grid, warmup=True, **meta)
            if any(count != 1 for count in grid[1:]):
                raise NotImplementedError(f"the grid must have one axis, got {grid}. Number programs along axis 0.")
            if not warmup and grid[0]:
                gpu.launch(kernel, compiled, grid[0], args)
            return compiled

        with (
            mock.patch.object(JITFunction, "run", emulate),
            mock.patch.object(segment, "allocate", recorded),
            mock.patch.object(availability, "interpreted", return_value=True),
            mock.patch.object(availability, "why_not", return_value=None),
        ):
            yield gpu
