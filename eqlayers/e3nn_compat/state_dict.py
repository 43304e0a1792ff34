"""State dicts of e3nn load here, and state dicts written here load into e3nn, both strictly.

e3nn keeps coefficients of its generated code as buffers (``_compiled_main_*._w3j_1_1_0``); which of them exist depends
on its version and options. Only their signs are read on load; on save the installed e3nn makes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from e3nn import get_optimization_defaults, o3

from ..core.checks import check_flag, got
from ..core.errors import ConfigError
from ..irreps.algebra import wigner_3j
from ..irreps.instructions import Instruction

_GENERATED = "_compiled_main"


def check_e3nn_layer(module: Any, name: str, *attributes: str) -> Any:
    """The module, if it has the attributes of an e3nn layer of any version; else ConfigError."""
    common = ("irreps_out", "instructions", "weight", "internal_weights", "shared_weights", "output_mask")
    if not isinstance(module, torch.nn.Module) or not all(hasattr(module, attr) for attr in (*attributes, *common)):
        raise ConfigError(
            f"module must be an e3nn.o3.{name}, or of a class derived from it, got {got(module)}. Pass such a layer; "
            f"for a whole model use eqlayers.accelerate."
        )
    return module


def share_tensors(layer: torch.nn.Module, module: torch.nn.Module, *names: str) -> None:
    """Give a layer the parameters and buffers of an e3nn layer: the same objects."""
    for name in names:
        value = getattr(module, name)
        register = layer.register_parameter if isinstance(value, torch.nn.Parameter) else layer.register_buffer
        register(name, value)


def has_channel_axes(module: Any) -> bool:
    """Whether an ``e3nn.o3.Linear`` was built with ``f_in`` and ``f_out``, which it does not store."""
    # only its generated code shows it, which then drops the last two axes of the features' shape
    code = getattr(getattr(module, _GENERATED, None), "code", "")
    return re.search(r"(?:None|0), -2\b", code) is not None


def e3nn_channels(module: Any) -> tuple[int | None, int | None]:
    """``f_in`` and ``f_out`` of an ``e3nn.o3.Linear``, read from its weight; ConfigError if it stores none."""
    if not has_channel_axes(module):
        return getattr(module, "f_in", None), getattr(module, "f_out", None)
    if module.weight.ndim != 3:
        raise ConfigError(
            f"a Linear with f_in and f_out must have a weight of its own, which alone tells them, got one of shape "
            f"{list(module.weight.shape)}. Build eqlayers.Linear with the same arguments instead."
        )
    return module.weight.shape[0], module.weight.shape[1]


class E3nnFlags:
    """Mixin of layers with e3nn's views of weights, and with its private options, which change no result."""

    _optimize_einsums = True

    def weight_views(self: Any, weight: torch.Tensor | None = None, yield_instruction: bool = False) -> Iterator[Any]:
        """Views of the weights of all instructions that have some; with numbers and instructions on request."""
        yield_instruction = check_flag("yield_instruction", yield_instruction)
        for number, has_weight in enumerate(self._weights.has):
            if has_weight:
                view = self.weight_view_for_instruction(number, weight)
                yield (number, self.instructions[number], view) if yield_instruction else view

    def _take_flags(self, **flags: bool | None) -> None:
        """Store flags of a constructor as attributes; None is e3nn's global default."""
        defaults = get_optimization_defaults()
        for name, value in flags.items():
            setattr(self, name, check_flag(name, defaults[name[1:]] if value is None else value))

    def _share_flags(self, theirs: torch.nn.Module) -> None:
        """Copy the flags of an e3nn layer; older versions have fewer."""
        for name in ("_did_compile_right", "_specialized_code", "_optimize_einsums"):
            if hasattr(theirs, name):
                setattr(self, name, getattr(theirs, name))


class E3nnState(E3nnFlags, torch.nn.Module):
    """Mixin of layers with ``plan``, ``instructions`` and ``output_mask`` whose e3nn layer has generated buffers."""

    _specialized_code, _did_compile_right = True, False
    _state_options: dict[str, Any]
    _generated: dict[str, torch.Tensor] | None = None

    def _keep_generated(self, module: torch.nn.Module) -> None:
        """Store the generated buffers of an e3nn layer, so that state dicts have the same keys."""
        self._generated = generated_buffers(module)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        me: Any = self
        generated = self._generated
        if generated is None:
            paths = tuple(tuple(ins)[:5] for ins in me.instructions)
            irreps = me.plan.irreps
            generated = _generated_by_e3nn(irreps, paths, me.shared_weights, tuple(self._state_options.items()))
        for key, value in generated.items():
            like = me.output_mask
            dtype = like.dtype if value.is_floating_point() else value.dtype
            destination[prefix + key] = value.to(like.device, dtype, copy=True)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        *_, unexpected_keys, error_msgs = args
        unexpected_keys[:] = [k for k in unexpected_keys if not k.startswith(prefix + _GENERATED)]
        mine = {key: value for key, value in state_dict.items() if key.startswith(prefix + _GENERATED)}
        loaded = {key[len(prefix) :]: value for key, value in mine.items() if value.device.type != "meta"}
        try:
            self._follow(loaded)
        except ConfigError as error:
            error_msgs.append(str(error))

    def _follow(self, loaded: dict[str, torch.Tensor]) -> None:
        """Use the signs of loaded coefficients in the plan, since e3nn computes with coefficients as loaded."""
        me: Any = self
        signs = coefficient_signs(loaded, me.plan.irreps, me.instructions)
        signed = [
            old if sign is None else ins._replace(path_weight=ins.path_weight * sign)
            for sign, ins, old in zip(signs, me.instructions, me.plan.instructions, strict=True)
        ]
        if signed != list(me.plan.instructions):
            me.plan = type(me.plan)(me.plan.irreps, signed, me.plan.layout)
            me._note_change()
            self._generated = {key: value.detach().clone() for key, value in loaded.items()}


def generated_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the buffers of an e3nn layer's generated code, by their keys."""
    return {key: value.detach().clone() for key, value in module.state_dict().items() if key.startswith(_GENERATED)}


def coefficient_signs(
    generated: dict[str, torch.Tensor],
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps],
    instructions: Sequence[Instruction],
) -> list[float | None]:
    """Signs of the Wigner 3j symbols that a layer stores, relative to the installed e3nn's: +1 or -1 per instruction.

    e3nn 0.4 and 0.6 differ in the sign of some triples of degrees, and a saved layer keeps the signs of its version.
    None for instructions whose symbols are not stored; ConfigError if symbols differ by more than signs.
    """
    sign_of: dict[tuple[int, ...], float] = {}
    for key, value, degrees in _symbols(generated):
        sign, error = _deviation(value, degrees)
        if not error <= torch.finfo(torch.bfloat16).eps:  # saved symbols may have been rounded to any dtype
            raise ConfigError(
                f"the buffer {key} must hold the Wigner 3j symbols of degrees {degrees} up to their sign, got values "
                f"that differ by {error:.1e}. Load the layer's state anew, or leave it as it is."
            )
        sign_of[degrees] = sign
    triples = [tuple(part[i].ir.l for part, i in zip(irreps, ins[:3], strict=True)) for ins in instructions]
    return [sign_of.get(triple) for triple in triples]


def exact_symbols(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The Wigner 3j symbols that a layer stores, in float64 with its signs, by the names of their buffers.

    e3nn computes them in torch's default dtype; ``.double()`` of a float32 layer keeps their float32 rounding.
    """
    stored = _symbols(generated_buffers(module))
    return {key: torch.from_numpy(wigner_3j(*ls) * _deviation(value, ls)[0]) for key, value, ls in stored}


def _symbols(generated: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, tuple[int, ...]]]:
    """Generated buffers of Wigner 3j symbols: key, value, and the degrees, which the key names."""
    for key, value in generated.items():
        name, *degrees = key.rpartition(".")[2].lstrip("_").split("_")
        if name == "w3j":
            yield key, value, tuple(map(int, degrees))


def _deviation(value: torch.Tensor, degrees: tuple[int, ...]) -> tuple[float, float]:
    """Sign of the symbols relative to the installed e3nn's, and the largest difference up to that sign."""
    theirs, ours = value.double().cpu().numpy(), wigner_3j(*degrees)
    if theirs.shape != ours.shape:
        return 1.0, float("inf")
    sign = 1.0 if float((theirs * ours).sum()) >= 0 else -1.0
    return sign, float(np.abs(theirs - sign * ours).max())


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
            e3nn_layer = o3.TensorProduct(
                *irreps, list(paths), internal_weights=False, shared_weights=shared_weights, **dict(options)
            )
        except (NotImplementedError, IndexError):  # compile_right of modes that e3nn lacks: no layer, no keys
            return {}
        state = generated_buffers(e3nn_layer)
        for key, _, degrees in _symbols(state):  # e3nn rounded them to the default dtype
            state[key] = o3.wigner_3j(*degrees, dtype=torch.float64)
    return state
