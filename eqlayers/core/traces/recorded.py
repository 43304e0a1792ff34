"""Recordings of traced functions: a GPU replays all kernels of a call at once, in memory of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .derivable import Derivable, check_once
from .trace import Refused

#: Warm-up calls before a recording, which compile kernels and initialise libraries.
CALLS_BEFORE = 3
#: Recordings of one function that are kept, one for each size; the oldest is dropped for a further one.
MOST = 16


class Recorder(Protocol):
    """Records calls."""

    def __call__(self, call: Callable[[], list[Any]]) -> tuple[list[Any], Callable[[], object]]:
        """The results, and a function that computes them again in the same memory."""


class CudaGraphs:
    """Records calls as CUDA graphs, whose intermediate tensors share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, call: Callable[[], list[Any]]) -> tuple[list[Any], Callable[[], object]]:
        """Record a call."""
        with torch.cuda.device(self._device):
            return self._recorded(call)

    def _recorded(self, call: Callable[[], list[Any]]) -> tuple[list[Any], Callable[[], object]]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(CALLS_BEFORE):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # threads of data loaders may copy batches meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
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
        """The free sizes of the memory for operands of some sizes."""

    def memory(self, operands: Sequence[Tensor], capacity: Mapping[str, int]) -> list[Tensor]:
        """New memory for the operands with free sizes; the others are read where they are."""

    def fill(self, memory: Sequence[Tensor], operands: Sequence[Tensor]) -> None:
        """Copy operands into the memory; what is left of it must change no result."""


class Recorded:
    """A traced function whose calls are replays: a GPU launches all kernels at once, in place of Python one by one.

    A replay reads operands without free sizes, such as weights, where they are; the other operands are copied into
    the memory of a recording. Results and gradients are copies. Another size or other weights are recorded when they
    come first. All recordings share memory for what the backward pass needs. A backward pass after another call
    replays its forward pass first.

    Args:
        traced: The function.
        padding: Of its operands.
        device: Of its operands, whose type has a row in :data:`RECORDERS`.
    """

    def __init__(self, traced: Derivable, padding: Padding, device: torch.device) -> None:
        self.traced, self.padding, self.recorder = traced, padding, RECORDERS[device.type](device)
        self.recordings: dict[Any, _Recording] = {}
        self.turn = 0  # of the latest forward pass, whose intermediate tensors are in memory

    def __call__(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """The results, which autograd can differentiate once.

        Raises:
            Refused: The function cannot be recorded.
        """
        if self.traced.numbers and torch.is_grad_enabled():
            results: Sequence[Tensor] = _RecordedCall.apply(self, *operands)
            return results
        return self.replayed(operands)[1]

    def replayed(self, operands: Sequence[Tensor]) -> tuple[_Recording, list[Tensor]]:
        """The recording for some operands, after a replay with them, and copies of the results."""
        sizes = self.padding.sizes(operands)
        capacity = self.padding.capacity(sizes)
        fixed = [t.data_ptr() for t, named in zip(operands, self.traced.axes, strict=True) if not any(named)]
        key = (*capacity.values(), *fixed)
        recording = self.recordings.pop(key, None)
        self.turn += 1
        with torch.no_grad():
            if recording is None:
                while len(self.recordings) >= MOST:
                    del self.recordings[next(iter(self.recordings))]
                memory = self.padding.memory(operands, capacity)
                self.padding.fill(memory, operands)
                recording = _Recording(self.traced, memory, self.recorder)
            else:
                self.padding.fill(recording.operands, operands)
            recording.forward()
            self.recordings[key] = recording  # the latest is the last
            axes = zip(recording.results, self.traced.result_axes, strict=True)
            return recording, [_part(result, named, sizes).clone() for result, named in axes]


class _Recording:
    """Memory of one size for operands, results and gradients, and the replays of both passes."""

    def __init__(self, traced: Derivable, operands: list[Tensor], recorder: Recorder) -> None:
        self.operands = operands
        try:
            values, self.forward = recorder(lambda: traced.forward(operands))
            self.results: list[Tensor] = values[: traced.count]
            if traced.numbers:
                kept = values[traced.count :]
                moving = zip(self.results, traced.moving, strict=True)
                cotangents = [torch.zeros_like(result) for result, moves in moving if moves]
                self.cotangents = cotangents
                gradients, self.backward = recorder(lambda: _joined(traced.backward([*kept, *cotangents])))
                self.gradients: list[Tensor] = gradients
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "captur" not in str(error):
                raise
            raise Refused(
                "a call must not wait for the device to be recorded, got an operator that does: "
                f"{' '.join(str(error).split())[:200]}. Use compile(record=False)."
            ) from error


def _joined(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All numbers of one dtype in one vector each, in the order of the dtypes: one copy serves for all gradients."""
    dtypes = dict.fromkeys(t.dtype for t in tensors)
    return [torch.cat([t.flatten() for t in tensors if t.dtype == dtype]) for dtype in dtypes]


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
        with torch.no_grad():
            if ctx.turn != recorded.turn:  # another call was made since
                recorded.turn += 1
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
            rows = {t.dtype: iter(t.clone().split(_lengths(recording, traced, t.dtype))) for t in recording.gradients}
            gradients: list[Tensor | None] = [None] * (1 + traced.operands)
            for number in traced.numbers:
                like = recording.operands[number]
                gradient = next(rows[like.dtype]).view(like.shape)
                gradients[1 + number] = _part(gradient, traced.axes[number], sizes)
        return tuple(gradients)


def _lengths(recording: _Recording, traced: Derivable, dtype: torch.dtype) -> list[int]:
    """Numbers of the gradients of one dtype."""
    operands = [recording.operands[number] for number in traced.numbers]
    return [t.numel() for t in operands if t.dtype == dtype]
