"""Keys and JSON of forms, from their content as plain numbers and strings.

The content has no names of classes or fields, so renaming these changes no key and no file.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def as_json(content: Any) -> bytes:
    """Lists of numbers and strings as JSON; a float64 is written so that reading gives the same bits."""
    return json.dumps(content, separators=(",", ":")).encode()


def key_of(content: Any) -> str:
    """Short hash of the content: equal descriptions have equal keys, on every machine."""
    return hashlib.sha256(as_json(content)).hexdigest()[:16]
