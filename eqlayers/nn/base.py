"""What all layers share: backend, layout, and the words in which they describe themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..backends import find, select, verdicts
from ..backends.registry import Call
from ..errors import DeviceError


def _present(device: torch.device | str) -> torch.device:
    device = torch.device(device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device must be one that torch can use here, got {str(device)!r} and {torch.cuda.device_count()} GPUs. "
            f"Pass another, or ask where there is one."
        )
    return device


class KeepsFloat64(torch.nn.Module):
    """Mixin: the buffers named in ``kept_in_float64`` keep their dtype under ``.float()``, ``.half()`` and so on.

    A total energy in float32 is off by a meV; its shifts must survive a change of the network's dtype.
    """

    kept_in_float64: tuple[str, ...] = ()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = {name: self.get_buffer(name) for name in self.kept_in_float64}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            moved = self.get_buffer(name)
            kept_value = torch.empty_like(moved, dtype=value.dtype) if value.is_meta else value.to(moved.device)
            setattr(self, name, kept_value)  # also where ``to_empty`` would have left anything in it
        return self


class EquivariantModule(torch.nn.Module):
    """Base of the layers: keeps ``layout`` and ``backend``, and can say which backend runs and why.

    Args:
        layout: Layout of flat features, 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.
    """

    num_paths: int = 0

    def __init__(self, layout: str = "mul_ir", backend: str | None = None) -> None:
        super().__init__()
        if backend is not None:
            find(backend)
        self.layout = layout
        self.backend = backend

    def sample_calls(self, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Call]]:
        """Calls as the layer makes them, with an empty batch, labelled; layers of dense work make none."""
        return iter(())

    def dense_paths(self) -> int:
        """Number of paths that are matrix products of torch, beside the calls above."""
        return 0

    def selected_backend(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> str:
        """Names of the backends that would run on ``device``, joined by '+'; 'torch' for dense layers.

        Those of the layers inside it are among them, as in :func:`eqlayers.explain`.

        Raises:
            DeviceError: There is no such device.
        """
        names = [select(call, self.backend).name for _, call in self.sample_calls(dtype, _present(device))]
        names += ["torch"] * (self.dense_paths() > 0)
        for layer in self.children():
            names += layer.selected_backend(device, dtype).split("+") if isinstance(layer, EquivariantModule) else []
        return "+".join(dict.fromkeys(names)) or "torch"

    def explain(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> str:
        """For each sparse product of the layer: which backend runs, and what the others say.

        Raises:
            DeviceError: There is no such device.
        """
        lines = [f"{type(self).__name__} on {device}, {dtype}, backend={self.backend or 'auto'}"]
        for label, call in self.sample_calls(dtype, _present(device)):
            lines.append(f"  {label}: {select(call, self.backend).name} runs")
            lines.extend(f"    {name}: {verdict}" for name, verdict in verdicts(call).items())
        if self.dense_paths():
            lines.append(f"  {self.dense_paths()} of {self.num_paths} paths: torch.matmul")
        elif len(lines) == 1:
            lines.append("  dense layer: torch.matmul")
        return "\n".join(lines)

    def _kind(self) -> str:
        return f"{self.layout}, backend {self.backend or 'auto'}"
