"""Values in the form that the API accepts: bounded, printable, JSON."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

STORED_CHARACTERS: Final = 16_000
"""Of a result; the server stores little more."""
MAX_ARGUMENT_CHARACTERS: Final = 32_000
"""Longer arguments are sent with their long texts cut."""
MAX_TEXT_IN_ARGUMENTS: Final = 2_000
MAX_DEPTH: Final = 24
MAX_ITEMS: Final = 1_000
LENGTHS: Final = {"tool": 128, "agent": 128, "backend": 128, "model": 200, "cwd": 1024, "tag": 64, "key": 64}
MAX_NAME: Final = 256
MAX_LABELS: Final = 16
"""Tags, and keys of metadata."""


def new_id(prefix: str) -> str:
    """Return a unique id."""
    return f"{prefix}{uuid.uuid4().hex}"


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def name(text: str, field: str = "") -> str:
    """Return a name within its limit, of printable characters; a name that is too long ends in a digest."""
    limit = LENGTHS.get(field, MAX_NAME)
    clean = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= limit else f"{clean[: limit - 17]}~{digest(clean)[:16]}"


def labels(tags: Iterable[str], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return tags and metadata within the limits of the API, without those that are empty."""
    sent_tags = list(dict.fromkeys(name(str(tag), "tag") for tag in tags if str(tag)))[:MAX_LABELS]
    pairs = {
        name(str(key), "key"): name(str(value)) for key, value in metadata.items() if str(key) and str(value)
    }
    sent: dict[str, Any] = {"tags": sent_tags, "metadata": dict(list(pairs.items())[:MAX_LABELS])}
    return {field: value for field, value in sent.items() if value}


def content(value: Any) -> str | None:
    """Return a result as text.

    A text beyond 16,000 characters is cut and ends in its length and digest, so that two long results that differ only
    in what was cut still differ. Bytes become their length and digest.
    """
    if value is None or isinstance(value, str):
        text = value
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        text = f"[{len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()[:32]}]"
    else:
        text = _json_or_repr(value)
    if text is None or len(text) <= STORED_CHARACTERS:
        return text
    return f"{text[:STORED_CHARACTERS]}\n[cut by loopguard-client: {len(text)} characters, sha256 {digest(text)}]"


def arguments(value: Mapping[str, Any] | str) -> str | dict[str, Any]:
    """Return arguments within the limits of the API; what is cut keeps its digest, so that calls still differ."""
    try:
        return _arguments(value)
    except Exception:  # noqa: BLE001 (a mapping of the application may raise anything)
        return cut(_repr(value))


def _arguments(value: Mapping[str, Any] | str) -> str | dict[str, Any]:
    if isinstance(value, str):
        if len(value) <= MAX_ARGUMENT_CHARACTERS:
            return value
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            return f"{value[:MAX_TEXT_IN_ARGUMENTS]} [{len(value)} characters, sha256 {digest(value)}]"
        value = parsed
    plain = {str(key)[:200]: _plain(item, 1) for key, item in value.items()}
    whole = dumps(plain)
    if len(whole) <= MAX_ARGUMENT_CHARACTERS:
        return plain
    short = _shortened(plain)
    text = dumps(short)
    if len(text) <= 4 * MAX_ARGUMENT_CHARACTERS and isinstance(short, dict):
        return short
    return cut(plain)


def cut(sent_arguments: str | dict[str, Any]) -> dict[str, Any]:
    """Return only length and digest of arguments."""
    text = sent_arguments if isinstance(sent_arguments, str) else dumps(sent_arguments)
    return {"cut_by_loopguard_client": {"characters": len(text), "sha256": digest(text)}}


def key(tool: str, sent_arguments: str | dict[str, Any], cwd: str = "") -> str:
    """Return what identical calls have in common: tool and directory, and the arguments in any order."""
    value: Any = sent_arguments
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = sent_arguments
    return digest(f"{tool}\n{dumps(value)}\n{cwd}" if cwd else f"{tool}\n{dumps(value)}")


def dumps(document: Any) -> str:
    """Return JSON text in ASCII with sorted keys."""
    return json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if -(10**15) < value < 10**15 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return content(value)
    if depth >= MAX_DEPTH:
        text = _repr(value)
        return f"{text[:MAX_TEXT_IN_ARGUMENTS]} [sha256 {digest(text)}]"
    if isinstance(value, Mapping):
        return {str(name_)[:200]: _plain(item, depth + 1) for name_, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, depth + 1) for item in value), key=str)
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic, without importing it
        try:
            return _plain(dump(mode="json"), depth + 1)
        except Exception:  # noqa: BLE001 (a model of the application may raise anything)
            return _repr(value)
    return _repr(value)


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT_IN_ARGUMENTS:
        return f"{value[:MAX_TEXT_IN_ARGUMENTS]} [{len(value)} characters, sha256 {digest(value)}]"
    if isinstance(value, dict):
        return {name_: _shortened(item) for name_, item in value.items()}
    if isinstance(value, list):
        if len(value) > MAX_ITEMS:
            return [
                *(_shortened(item) for item in value[:10]),
                f"[{len(value)} items, sha256 {digest(dumps(value))}]",
            ]
        return [_shortened(item) for item in value]
    return value


def _json_or_repr(value: Any) -> str:
    try:
        return dumps(_plain(value, 1))
    except Exception:  # noqa: BLE001 (a value of the application may raise anything)
        return _repr(value)


def _repr(value: Any) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 (a class of the application may raise anything)
        text = type(value).__name__
    return text
