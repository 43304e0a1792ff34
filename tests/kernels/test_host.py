"""Tensors on the host are copied to a device in each call, from memory that is locked once."""

import pytest
import torch

from eqlayers_kernels.host import HostTensors


def test_a_copy_on_a_device_is_not_kept() -> None:
    tensors: HostTensors[str] = HostTensors()
    tensors.on_host["a"] = table = torch.arange(3)
    assert tensors.on_device("a", torch.device("cpu")) is table
    assert tensors.on_device("a", torch.device("meta")).device.type == "meta"
    assert tensors.on_host == {"a": table}
    with pytest.raises(KeyError, match="b"):
        tensors.on_device("b", torch.device("cpu"))


def test_copies_to_a_gpu_come_from_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph can hold such a copy; locking takes as long as a copy, so it happens once."""
    locked: list[torch.Tensor] = []

    def pin(self: torch.Tensor) -> torch.Tensor:
        locked.append(self.clone())
        return locked[-1]

    def to(self: torch.Tensor, device: torch.device, non_blocking: bool = False) -> object:
        return self.data_ptr(), device, non_blocking

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    tensors: HostTensors[str] = HostTensors()
    tensors.on_host |= {"a": torch.arange(3), "b": torch.arange(2)}
    gpu = torch.device("cuda", 1)
    copies = [tensors.on_device(key, gpu) for key in "aba"]
    assert copies == [(locked[n].data_ptr(), gpu, True) for n in (0, 1, 0)]
    assert tensors.on_host["a"] is locked[0], "the memory that is not locked is free again"
