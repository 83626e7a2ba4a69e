"""When are two calls the same call? Compared as trees, without any text in between."""

from __future__ import annotations

import json
import unicodedata
from typing import Any


class _Number(str):
    """A number as it was written, so that no digit is lost."""

    __slots__ = ()


def tree(arguments: Any) -> Any:
    """A tree that is equal for equal arguments and only for those."""
    if isinstance(arguments, str):
        text = arguments.strip()
        if not text:
            return ("object", ())
        try:
            value = json.loads(text, parse_int=_Number, parse_float=float)
        except ValueError:
            return ("text", unicodedata.normalize("NFC", text))
    else:
        value = arguments
    return ("object", ()) if value is None else _tree(value)


def _tree(value: Any) -> Any:
    if isinstance(value, _Number):
        return ("int", str(int(value)))
    if isinstance(value, bool) or value is None:
        return ("word", str(value))
    if isinstance(value, int):
        return ("int", str(value))
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, str):
        return ("string", unicodedata.normalize("NFC", value))
    if isinstance(value, list):
        return ("list", tuple(_tree(item) for item in value))
    fields = {unicodedata.normalize("NFC", name): _tree(item) for name, item in value.items()}
    return ("object", tuple(sorted(fields.items(), key=repr)))
