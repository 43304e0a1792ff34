"""Weights of a symmetric contraction, with MACE's state dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from .basis import dense, has_paths
from .lower import Mixing, mixing, polynomials_of, read_tensor


class ContractionWeights(torch.nn.Module):
    """Weights of one irrep of the result, under MACE's names, ``[Z, P, C]`` for each degree, the highest first.

    MACE's state dict holds the coupling tensors as well. A loaded tensor may be another basis of the same
    polynomials: of another version of e3nn, whose signs differ, or of another package. It replaces the basis, so loaded
    weights give the same results. The flags ``weights_*_zeroed`` mark weights that MACE fixes to 0.
    """

    weights_max: torch.nn.Parameter

    def __init__(
        self, text: str, ir_out: o3.Irrep, correlation: int, num_elements: int, channels: int, reduced: bool
    ) -> None:
        super().__init__()
        self._text, self._ir, self._correlation = text, (ir_out.l, ir_out.p), correlation
        self._own = tuple(mixing(text, self._ir, degree, reduced) for degree in range(1, correlation + 1))
        self.mixings = self._own
        # MACE's flag i belongs to degree i + 1, but freezes weights.i, which belong to degree correlation - 1 - i
        empty = [not has_paths(text, self._ir, degree, reduced) for degree in range(1, correlation + 1)]
        self.weights = torch.nn.ParameterList([])
        for index in range(correlation):
            degree = correlation - index
            paths = self._own[degree - 1].shape[1]
            frozen = empty[-1] if index == 0 else empty[index - 1]
            shape = (num_elements, paths, channels)
            value = torch.zeros(shape) if frozen else torch.randn(shape) / paths
            parameter = torch.nn.Parameter(value, requires_grad=not frozen)
            if index == 0:
                self.weights_max = parameter
            else:
                self.weights.append(parameter)
        for number, flag in enumerate(empty):
            name = f"weights_{number if number < correlation - 1 else 'max'}_zeroed"
            self.register_buffer(name, torch.tensor(flag))

    def tensor(self, degree: int) -> np.ndarray:
        """MACE's U, symmetric in the factors: ``[2 l + 1, D, ..., D, P]``, for l = 0 without the first axis."""
        polynomials = polynomials_of(self._text, self._ir, degree, self.mixings[degree - 1])
        whole = dense(polynomials, o3.Irreps(self._text).dim, degree)
        return whole[0] if self._ir[0] == 0 else whole

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        like, dtype = self.weights_max, torch.promote_types(self.weights_max.dtype, torch.float32)
        for degree in range(1, self._correlation + 1):
            value = torch.from_numpy(self.tensor(degree)).to(like.device, dtype)
            destination[f"{prefix}U_matrix_{degree}"] = value

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        mixings = list(self._own)
        for degree in range(1, self._correlation + 1):
            key = f"{prefix}U_matrix_{degree}"
            if key not in state_dict:
                missing_keys += [key] if strict else []
                continue
            unexpected_keys[:] = [name for name in unexpected_keys if name != key]
            read = self._read(degree, state_dict[key], key, error_msgs)
            mixings[degree - 1] = mixings[degree - 1] if read is None else read
        self.mixings = tuple(mixings)

    def _read(self, degree: int, tensor: Tensor, key: str, error_msgs: list[str]) -> Mixing | None:
        """The mixing of a tensor of the state dict, or None with an entry in ``error_msgs``."""
        mixed, dim = self._own[degree - 1], o3.Irreps(self._text).dim
        size = () if self._ir[0] == 0 else (2 * self._ir[0] + 1,)
        shape = (*size, *[dim] * degree, mixed.shape[1])
        if tuple(tensor.shape) != shape:
            error_msgs.append(
                f"{key} must be {list(shape)}, got {list(tensor.shape)}. Build the layer for the irreps of the "
                f"checkpoint, and with the other use_reduced_cg if only the last number differs."
            )
            return None
        if tensor.is_meta:
            return None
        value = tensor.detach().to("cpu", torch.float64).numpy()
        value = value.reshape(2 * self._ir[0] + 1, *shape[len(size) :])
        read = read_tensor(self._text, self._ir, degree, mixed, value, torch.finfo(tensor.dtype).eps)
        if read is None:
            error_msgs.append(
                f"{key} must hold equivariant tensors of {self._text}, got others. Check the order of the irreps."
            )
        return read
