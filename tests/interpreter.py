"""Triton's interpreter without the work that it repeats: the same numbers in half the time."""

import functools
import sys
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Keeps what the interpreter makes again for each array and for each call of a function in a kernel.

    In each such call it replaces Triton's builtins by its own, although the launch of the kernel has done that. For one
    dtype of NumPy it makes a dictionary of all, and for one shape a tuple of Triton. It computes whether an integer
    overflows, and asserts it in debug mode only. A release of Triton that lacks one of these names is left alone.
    """
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    names = ("_patch_lang", "_LangPatchScope", "_get_np_dtype", "tl.core._unwrap_shape")
    names += ("interpreter_builder.options.debug", "interpreter_builder.options.sanitize_overflow")
    try:
        attrgetter(*names)(interpreter)
    except AttributeError:
        return
    tl, patch_lang = interpreter.tl, interpreter._patch_lang
    of_any = interpreter._get_np_dtype
    of_number = functools.cache(of_any)

    def patch_lang_once(function: Any) -> Any:
        modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        if modules and not any(tl.core.is_builtin(module.load) for module in modules):
            return interpreter._LangPatchScope()  # has nothing to restore: the launch around this call does
        return patch_lang(function)

    def np_dtype(dtype: Any) -> Any:
        scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        return of_number(scalar) if type(scalar) is tl.dtype else of_any(dtype)

    def unwrapped(shape: Any) -> list[Any]:
        sizes = shape.value if isinstance(shape, tl.constexpr) else shape
        return [size.value if isinstance(size, tl.constexpr) else size for size in sizes]

    options = interpreter.interpreter_builder.options
    if not options.debug:  # what was computed is dropped
        patch.setattr(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False))
    patch.setattr(interpreter, "_patch_lang", patch_lang_once)
    patch.setattr(interpreter, "_get_np_dtype", np_dtype)
    patch.setattr(tl.core, "_unwrap_shape", unwrapped)
