"""Descriptions as text: what a saved graph carries, so that a process that never built the layer can run it.

The text is ``<kind>-2:<key>:<payload>``: the kind of the description and the format, the hash of its content, and the
content as compressed JSON in URL-safe base64. Format 1 differs in the key alone, which hashed what Python printed of
the classes of that time: its texts are read, and their keys are not compared.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from eqlayers_kernels.forms.content import as_json, key_of

from ..errors import ConfigError

_MAX_BYTES = 1 << 28  # of the JSON; the largest programs of tests have 1e5 terms, 3 MB
_FORMAT, _WITHOUT_KEY = "2", "1"
T = TypeVar("T")


def pack(kind: str, content: Any) -> str:
    """The text of a description, the same in every process."""
    payload = base64.urlsafe_b64encode(zlib.compress(as_json(content), 9)).decode()
    return f"{kind}{_FORMAT}:{key_of(content)}:{payload}"


def unpack(kind: str, text: str, build: Callable[[Any], T], what: str) -> T:
    """The description of such a text.

    Args:
        kind: With which the text must begin, before the number of the format.
        text: Made by :func:`pack`, of this version or an earlier one.
        build: Makes the description, which has a ``key``, from the content; raises what a wrong one raises.
        what: 'program' or 'formula', for messages.

    Raises:
        ConfigError: The text is of another version, damaged, or something else.
    """
    tag, _, rest = text.partition(":")
    if tag not in (kind + _FORMAT, kind + _WITHOUT_KEY):
        raise ConfigError(
            f"the text of a {what} must begin with '{kind}{_FORMAT}:', got {_short(text)}. It was saved by another "
            f"version of eqlayers: export the model again with this one."
        )
    key, _, payload = rest.partition(":")
    try:
        unzip = zlib.decompressobj()
        content = unzip.decompress(base64.b64decode(payload, altchars=b"-_", validate=True), _MAX_BYTES)
        if not unzip.eof:
            raise ValueError("it is cut short")
        found = build(json.loads(content, parse_constant=_refuse_constant))
    except (binascii.Error, zlib.error, ValueError, TypeError, IndexError, RecursionError) as error:
        raise ConfigError(
            f"the text of a {what} must hold a {what}, got {_short(text)}, which does not ({error}). The file is "
            f"damaged: export the model again."
        ) from error
    own: str = found.key  # type: ignore[attr-defined]
    if own != key and tag == kind + _FORMAT:
        raise ConfigError(
            f"the text of a {what} must hold the {what} of its key, {key[:16]}, got the {what} of {own}. The file "
            f"is damaged: export the model again."
        )
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"expected finite numbers, got {name}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
