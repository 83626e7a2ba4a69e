"""Rewrites the history of a conversation, in the same way in every later request, so that prompt caches work."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from detection.gateway.protocols.answers import Message

_NAMES: Final = ("anchor", "occurrence", "before", "calls", "results", "notes", "copies")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_RESULT_IDS: Final = {"tool": "tool_call_id", "tool_result": "tool_use_id"}
"""The field of a result that names its call, by its role or type; outputs of the Responses API have `call_id`."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What is added to the history around one answer that the client got.

    Attributes
    ----------
    anchor, occurrence
        Id of the first call of the answer, and how often it has occurred as one: model servers use ids again.
    before
        Messages before the answer: earlier answers of which no call ran, with the reasons as results.
    calls, results
        Calls of the answer that the client did not get, each with its number among all calls of the answer, and their
        results; both in the form of the protocol.
    notes
        Warnings before results, by call id.
    copies
        Calls among `calls` that get the result of another call of the answer, by id, with the id of that call.
    """

    anchor: str
    occurrence: int
    before: list[Message] = field(default_factory=list)
    calls: list[tuple[int, Message]] = field(default_factory=list)
    results: list[Message] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """Lookup key of an answer."""
        return self.anchor, self.occurrence

    def dump(self) -> str:
        """Return it as JSON text."""
        return orjson.dumps({name: getattr(self, name) for name in _NAMES}).decode()

    @classmethod
    def load(cls, text: str) -> Rewrite:
        """Parse the output of `dump`, of this version or of a later one that has more fields."""
        return cls(**{name: value for name, value in orjson.loads(text).items() if name in _NAMES})

    def merged(self, known: Sequence[Message]) -> list[Message]:
        """Return all calls of the answer in order: those that the client knows and the others."""
        calls = [*known]
        for number, call in self.calls:
            calls.insert(number, call)
        return calls


class Rewrites:
    """The rewrites of a session, looked up in the order of the messages."""

    def __init__(self, rewrites: Sequence[Rewrite], *, with_notes: bool) -> None:
        self._by_key = {one.key: one for one in rewrites}
        self._seen: Counter[str] = Counter()
        self._with_notes = with_notes
        self._notes: dict[str, str] = {}

    def of_answer(self, call_ids: Sequence[str]) -> Rewrite | None:
        """Return the rewrite of an answer with these calls."""
        if not call_ids:
            return None
        self._seen.update(call_ids)
        found = self._by_key.get((call_ids[0], self._seen[call_ids[0]]))
        if self._with_notes:
            for call_id in call_ids:
                self._notes.pop(call_id, None)
            if found is not None:
                self._notes.update(found.notes)
        return found

    def note_of(self, call_id: str) -> str:
        """Return the warning before a result, or empty."""
        if call_id in self._seen or not self._with_notes:
            return self._notes.get(call_id, "")
        return next((one.notes[call_id] for one in self._by_key.values() if call_id in one.notes), "")

    def results_beside(self, call_id: str) -> list[Message]:
        """Return the results that belong beside one whose call the model server keeps and the list lacks."""
        if call_id in self._seen:
            return []
        return next((one.results for one in self._by_key.values() if one.anchor == call_id), [])


def with_copies(messages: list[Message], rewrites: Sequence[Rewrite]) -> list[Message]:
    """Return a rewritten conversation in which calls that did not run have the results of those that ran for them."""
    copies = {own: first for one in rewrites for own, first in one.copies.items()}
    if not copies:
        return messages
    out, known = [*messages], dict[str, Message]()
    items: list[Any]
    for place in range(len(out) - 1, -1, -1):
        field_name = "" if _answered(out[place]) else _list_field(out[place])
        items = cast("list[Any]", out[place][field_name]) if field_name else [out[place]]
        changed = [*items]
        for at in range(len(items) - 1, -1, -1):
            item = items[at]
            if isinstance(item, dict) and (call_id := _answered(item)):
                known[call_id] = item
                if (first := known.get(copies.get(call_id, ""))) is not None:
                    changed[at] = _answering(first, call_id)
        if any(old is not new for old, new in zip(items, changed, strict=True)):
            out[place] = out[place] | {field_name: changed} if field_name else changed[0]
    return out


def _list_field(message: Message) -> str:
    return next((name for name in ("content", "parts") if isinstance(message.get(name), list)), "")


def _id_field(item: Message) -> str:
    known = _RESULT_IDS.get(str(item.get("role"))) or _RESULT_IDS.get(str(item.get("type")), "")
    return known or ("call_id" if str(item.get("type")).endswith("_call_output") else "")


def _answered(item: Message) -> str:
    """Return the id of the call that a result answers, or nothing if it is none or names no call."""
    answered = item.get("functionResponse")
    found = answered.get("id") if isinstance(answered, dict) else item.get(_id_field(item))
    return found if isinstance(found, str) else ""


def _answering(result: Message, call_id: str) -> Message:
    """Return the same result for another call."""
    if isinstance(answered := result.get("functionResponse"), dict):
        return {**result, "functionResponse": {**answered, "id": call_id}}
    copied = {name: value for name, value in result.items() if name not in ("id", "cache_control")}
    return {**copied, _id_field(result): call_id}


def occurrence_of(call_id: str, call_ids: Sequence[str]) -> int:
    """Return the occurrence number of the next call with this id."""
    return 1 + sum(one == call_id for one in call_ids)


def replace_list(body: bytes, key: str, old: Sequence[Any], new: Sequence[Any]) -> bytes:
    """Return a JSON object with another list in a field. Elements that stay keep their bytes, and so does all the rest.

    Parameters
    ----------
    key
        Name of the field.
    old, new
        Its elements. An element stays if it is the same object.
    """
    text = body.decode()
    found = _elements(text, key)
    if found is None or len(found[2]) != len(old):
        return orjson.dumps({**orjson.loads(body), key: list(new)})
    start, end, spans = found
    places = {id(element): place for place, element in enumerate(old)}
    pieces: list[str] = []
    before = -1
    for element in new:
        place = places.get(id(element), -1)
        if pieces:
            is_next = place > 0 and place == before + 1
            pieces.append(text[spans[before][1] : spans[place][0]] if is_next else ",")
        is_kept = place >= 0
        pieces.append(text[slice(*spans[place])] if is_kept else orjson.dumps(element).decode())
        before = place if is_kept else -2
    return (text[:start] + "".join(pieces) + text[end:]).encode()


def _elements(text: str, key: str) -> tuple[int, int, list[tuple[int, int]]] | None:
    """Return where the list in a field begins and ends, inside its brackets, and where its elements lie."""
    found = None
    at = _skip(text, 0) + 1
    while text[(at := _skip(text, at))] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if name == key and text[at] == "[":
            found, at = _list(text, at + 1)
        else:
            if name == key:
                found = None
            _, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        at += text[at] == ","
    return found


def _list(text: str, at: int) -> tuple[tuple[int, int, list[tuple[int, int]]], int]:
    spans: list[tuple[int, int]] = []
    start = at
    while text[(at := _skip(text, at))] != "]":
        _, end = _DECODER.raw_decode(text, at)
        spans.append((at, end))
        at = _skip(text, end)
        at += text[at] == ","
    first = spans[0][0] if spans else start
    last = spans[-1][1] if spans else start
    return (first, last, spans), at + 1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
