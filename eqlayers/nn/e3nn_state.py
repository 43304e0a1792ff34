"""State dicts that e3nn writes load here, and those written here load into e3nn, strictly, in both directions.

e3nn keeps coefficients of its generated code as buffers (``_compiled_main_*._w3j_1_1_0``); which of them exist depends
on its version and options. They are dropped on load, and made by the installed e3nn on save.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from e3nn import o3

_GENERATED = "_compiled_main"


class E3nnState(torch.nn.Module):
    """Mixin of layers whose e3nn twin has generated buffers; needs ``irreps_*``, ``instructions``, ``weights``."""

    _state_options: dict[str, Any]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        me: Any = self
        paths = tuple(tuple(ins)[:5] for ins in me.instructions)
        irreps = (me.irreps_in1, me.irreps_in2, me.irreps_out)
        options = tuple(self._state_options.items())
        for key, value in _generated_by_e3nn(irreps, paths, me.shared_weights, options).items():
            like = me.output_mask
            dtype = like.dtype if value.is_floating_point() else value.dtype
            destination[prefix + key] = value.to(like.device, dtype, copy=True)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        unexpected_keys[:] = [k for k in unexpected_keys if not k.startswith(prefix + _GENERATED)]


@lru_cache(maxsize=256)
def _generated_by_e3nn(
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps],
    paths: tuple[tuple[Any, ...], ...],
    shared_weights: bool,
    options: tuple[tuple[str, Any], ...],
) -> dict[str, torch.Tensor]:
    """The generated buffers of an e3nn product with the same paths, in float64 on the CPU."""
    with torch.device("cpu"):
        try:
            twin = o3.TensorProduct(
                *irreps, list(paths), internal_weights=False, shared_weights=shared_weights, **dict(options)
            )
        except (NotImplementedError, IndexError):  # compile_right of modes that e3nn has not: no twin, no keys
            return {}
        state = {k: v for k, v in twin.state_dict().items() if k.startswith(_GENERATED)}
        for key in state:
            name, *degrees = key.rsplit(".", 1)[1].lstrip("_").split("_")
            if name == "w3j":  # e3nn rounded it to the default dtype
                state[key] = o3.wigner_3j(*map(int, degrees), dtype=torch.float64)
    return state
