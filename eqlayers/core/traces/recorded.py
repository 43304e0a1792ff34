"""Recordings of traced functions: a GPU replays all kernels of a call at once, in memory of a fixed size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, Protocol

import torch
from torch import Tensor

from .derivable import Derivable, check_once
from .trace import Refused

#: Warm-up calls before a recording, which compile kernels and initialise libraries.
CALLS_BEFORE = 3
#: Recordings of one function, one for each size; calls of further sizes are not recorded.
MOST = 128
#: Numbers to whose multiples gradients are filled up in one vector, so that kernels may load several at once.
ALIGNED = 4

#: Records a call: memory of its results, and a function that computes them in it.
Recorder = Callable[[Callable[[], list[Any]]], tuple[list[Any], Callable[[], object]]]


class CudaGraphs:
    """Records calls as CUDA graphs in one pool of memory, on one stream, as torch shares it on a stream alone."""

    _one_at_a_time = RLock()  # in a process, as torch says

    def __init__(self, device: torch.device) -> None:
        self._device, self._side = device, torch.cuda.Stream(device)
        self._pool: Any = None

    def __call__(self, call: Callable[[], list[Any]]) -> tuple[list[Any], Callable[[], object]]:
        """Record a call, which computes nothing."""
        with self._one_at_a_time, torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.current_stream()):
            side = self._side  # on which torch stays if a recording fails; the context leaves it
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(CALLS_BEFORE):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # torch's own stream is of the device that came first; threads of data loaders may copy batches meanwhile
            with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
                results = call()
            self._pool = graph.pool()
            return results, graph.replay


#: Recorders by type of device; calls on other devices are not recorded.
RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": CudaGraphs}


class Padding(Protocol):
    """Memory for operands that is larger than they are, so that few sizes serve all."""

    def sizes(self, operands: Sequence[Tensor]) -> dict[str, int]:
        """The free sizes by name."""

    def capacity(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The free sizes of the memory for operands of some sizes, which depend on nothing else."""

    def memory(self, operands: Sequence[Tensor], capacity: Mapping[str, int]) -> list[Tensor]:
        """New memory for the operands with free sizes; the others are read where they are."""

    def fill(self, memory: Sequence[Tensor], operands: Sequence[Tensor]) -> None:
        """Copy operands into the memory; what is left of it must change no result."""


class Recorded:
    """A traced function that a GPU runs as CUDA graphs: one launch of each pass in place of one of every kernel.

    A graph reads operands without free sizes, such as weights, where they are; the others are copied into the memory
    of a recording. Results and gradients are copies. A size is recorded when it comes first, and all sizes
    anew if weights were moved to other memory. All recordings share memory for what the backward pass needs. A
    backward pass after another call replays its forward pass first. :data:`RECORDERS` has a row for the device.
    """

    def __init__(self, traced: Derivable, padding: Padding, device: torch.device) -> None:
        self.traced, self.padding, self.device = traced, padding, device
        self.recordings: dict[tuple[int, ...], _Recording] = {}
        self.turn = 0  # of the latest forward pass, whose intermediate tensors are in memory
        self._addresses: list[int] = []  # of operands without free sizes
        self._recorder: Recorder | None = None
        self._stream: Any = None  # of the latest forward pass on a GPU
        self.lock = RLock()  # of the memory, which threads share

    def __call__(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """The results, which autograd can differentiate once; Refused if the function cannot be recorded."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return self.traced(operands)  # in a recording of the caller's
        if self.traced.numbers and torch.is_grad_enabled():
            results: Sequence[Tensor] = _RecordedCall.apply(self, *operands)
            return results
        return self.replayed(operands)[1]

    def begin(self) -> None:
        """Begin a turn, which waits for the one before where that is on another stream of the GPU."""
        self.turn += 1
        if self.device.type == "cuda":
            before, self._stream = self._stream, torch.cuda.current_stream(self.device)
            if before not in (None, self._stream):
                self._stream.wait_stream(before)

    def replayed(self, operands: Sequence[Tensor]) -> tuple[_Recording, list[Tensor]]:
        """The recording for some operands, after a replay with them, and copies of the results."""
        sizes = self.padding.sizes(operands)
        capacity = self.padding.capacity(sizes)
        key, axes = tuple(capacity.values()), self.traced.axes
        addresses = [t.data_ptr() for t, named in zip(operands, axes, strict=True) if not any(named)]
        with self.lock, torch.inference_mode(False), torch.no_grad():
            self.begin()
            if addresses != self._addresses:
                self.recordings, self._addresses = {}, addresses
                self._recorder = RECORDERS[self.device.type](self.device)
            recording = self.recordings.get(key)
            if recording is None:
                memory = self.padding.memory(operands, capacity)
                self.padding.fill(memory, operands)
                recorder = self._recorder if len(self.recordings) < MOST else None
                recording = _Recording(self.traced, memory, recorder)
                if recorder is not None:
                    self.recordings[key] = recording
            else:
                self.padding.fill(recording.operands, operands)
            recording.forward()
            named = zip(recording.results, self.traced.result_axes, strict=True)
            return recording, [_part(result, one, sizes).clone() for result, one in named]


class _Recording:
    """Memory of one size for operands, results and gradients, and functions that run both passes in it.

    Without a recorder the functions run the programs of the trace, with the same numbers.
    """

    def __init__(self, traced: Derivable, operands: list[Tensor], recorder: Recorder | None) -> None:
        self.traced, self.operands = traced, operands
        self.forward: Callable[[], object] = lambda: self._take(self._forward())
        self.backward: Callable[[], object] = lambda: vars(self).update(gradients=self._backward(self._kept))
        self.results: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.cotangents: list[Tensor] = []
        self._kept: list[Any] = []
        if recorder is None:
            return
        try:
            values, self.forward = recorder(self._forward)
            self._take(values)
            if traced.numbers:
                self.forward()  # a recording computes nothing, and warm-ups of the backward pass need numbers
                kept, self._kept = self._kept, []  # whose memory becomes the pool's with the end of this function
                self.gradients, self.backward = recorder(lambda: self._backward(kept))
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise Refused(
                "a call must not wait for the device to be recorded, got an error of the recording: "
                f"{' '.join(str(error).split())[:200]}. Use compile(record=False)."
            ) from error

    def _take(self, values: list[Any]) -> None:
        self.results, self._kept = values[: self.traced.count], values[self.traced.count :]
        if not self.cotangents:
            moving = zip(self.results, self.traced.moving, strict=True)
            self.cotangents = [torch.zeros_like(result) for result, moves in moving if moves]

    def _forward(self) -> list[Any]:
        return self.traced.forward(self.operands)

    def _backward(self, kept: list[Any]) -> list[Tensor]:
        return _joined(self.traced.backward([*kept, *self.cotangents]))


def _joined(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All numbers of one dtype in one vector each, in the order of the dtypes: one copy serves for all gradients."""
    zeros = {t.dtype: t.new_zeros(ALIGNED) for t in tensors}  # `pad` would copy every gradient once more
    filled = [part for t in tensors for part in (t.flatten(), zeros[t.dtype][: -t.numel() % ALIGNED])]
    return [torch.cat([part for part in filled if part.dtype == dtype]) for dtype in zeros]


def _part(t: Tensor, axes: Sequence[str | None], sizes: Mapping[str, int]) -> Tensor:
    """The part of a padded tensor that has the free sizes."""
    for axis, name in enumerate(axes):
        if name is not None:
            t = t.narrow(axis, 0, sizes[name])
    return t


class _RecordedCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorded: Recorded, *operands: Tensor) -> Any:
        ctx.recorded = recorded
        with recorded.lock:
            ctx.recording, results = recorded.replayed(operands)
            ctx.turn = recorded.turn
        ctx.save_for_backward(*operands)  # an error if weights are changed before the backward pass
        ctx.mark_non_differentiable(*[t for t, moves in zip(results, recorded.traced.moving, strict=True) if not moves])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        recorded: Recorded = ctx.recorded
        traced, recording, operands = recorded.traced, ctx.recording, ctx.saved_tensors
        check_once()
        sizes = recorded.padding.sizes(operands)
        with recorded.lock, torch.inference_mode(False), torch.no_grad():
            if ctx.turn != recorded.turn:  # another call was made since
                recorded.begin()
                ctx.turn = recorded.turn
                recorded.padding.fill(recording.operands, operands)
                recording.forward()
            moving = [number for number, moves in enumerate(traced.moving) if moves]
            for number, memory in zip(moving, recording.cotangents, strict=True):
                part = _part(memory, traced.result_axes[number], sizes)
                if part.shape != memory.shape:
                    memory.zero_()
                part.copy_(cotangents[number])
            recording.backward()
            copies, starts = {t.dtype: t.clone() for t in recording.gradients}, Counter[torch.dtype]()
            gradients: list[Tensor | None] = [None] * (1 + traced.operands)
            for number in traced.numbers:
                like, start = recording.operands[number], starts[recording.operands[number].dtype]
                gradient = copies[like.dtype][start : start + like.numel()].view(like.shape)
                gradients[1 + number] = _part(gradient, traced.axes[number], sizes)
                starts[like.dtype] += like.numel() + -like.numel() % ALIGNED
        return tuple(gradients)
