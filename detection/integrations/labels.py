"""Tags and metadata that clients give to sessions: in the bodies of events and guard requests, or in headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from detection.strict_json import JsonProblem, loads

TAGS_HEADER: Final = "LoopGuard-Tags"
METADATA_HEADER: Final = "LoopGuard-Metadata"
MAX_LABELS: Final = 16
"""Tags of a session, and keys of its metadata. A judgement: people read them in one line, and filter by a few."""
MAX_TAG_CHARACTERS: Final = 64
MAX_KEY_CHARACTERS: Final = 64
MAX_VALUE_CHARACTERS: Final = 256


class LabelError(ValueError):
    """A tag or metadata that is not valid.

    Attributes
    ----------
    code, path
        Stable code, and the field at fault.
    """

    def __init__(self, code: str, path: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.path, self.detail = code, path, detail


class Labels(NamedTuple):
    """The tags and the metadata of a session."""

    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}

    def joined(self, other: Labels) -> Labels:
        """Return these with others; of a key in both, the other value."""
        if not any(other):
            return self
        return Labels((*dict.fromkeys((*self.tags, *other.tags)),), {**self.metadata, **other.metadata})


NO_LABELS: Final = Labels()


def labels_of(tags: Any, metadata: Any) -> Labels:
    """Return the labels in fields of a document; raises `LabelError`."""
    if tags is None and metadata is None:
        return NO_LABELS
    return Labels(checked_tags(tags or []), _metadata({} if metadata is None else metadata))


def labels_of_headers(header: Callable[[str], str]) -> Labels:
    """Return the labels in headers: tags with commas between them, and metadata as a JSON object.

    Parameters
    ----------
    header
        Returns a header by its name, or empty.
    """
    tags, metadata = header(TAGS_HEADER), header(METADATA_HEADER)
    if not (tags or metadata):
        return NO_LABELS
    found = [tag.strip() for tag in tags.split(",") if tag.strip()]
    try:
        values = loads(metadata.encode("latin-1", "replace")) if metadata else {}
    except JsonProblem:
        raise LabelError("invalid_json", "metadata", f"`{METADATA_HEADER}` must be a JSON object.") from None
    return Labels(checked_tags(found), _metadata(values))


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Return tags without duplicates; raises `LabelError`."""
    if not isinstance(tags, list | tuple):
        raise LabelError("invalid_type", "tags", "`tags` must be a list of strings.")
    found = (*dict.fromkeys(_text(tag, "tags", MAX_TAG_CHARACTERS) for tag in tags),)
    if len(found) > MAX_LABELS:
        raise LabelError("too_long", "tags", f"`tags` must have at most {MAX_LABELS} entries.")
    return found


def _metadata(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise LabelError("invalid_type", "metadata", "`metadata` must be an object of strings.")
    if len(values) > MAX_LABELS:
        raise LabelError("too_long", "metadata", f"`metadata` must have at most {MAX_LABELS} keys.")
    return dict(_pairs(values))


def _pairs(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = _text(key, "metadata", MAX_KEY_CHARACTERS)
        yield name, _text(value, f"metadata.{name}", MAX_VALUE_CHARACTERS)


def _text(value: Any, path: str, longest: int) -> str:
    if not isinstance(value, str):
        raise LabelError("invalid_type", path, f"`{path}` must contain strings only.")
    if not 1 <= len(value) <= longest:
        raise LabelError("too_long", path, f"A text in `{path}` must have 1 to {longest} characters.")
    if not value.isprintable():
        raise LabelError("invalid_characters", path, f"`{path}` must contain printable characters only.")
    return value
