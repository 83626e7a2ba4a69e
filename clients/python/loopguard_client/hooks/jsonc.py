"""JSON as people write it, with comments, commas at the end and a byte order mark: read, and changed in one place.

Does not belong here: what hooks look like.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

BYTE_ORDER_MARK: Final = "\ufeff"
_TOKEN: Final = re.compile(
    r'(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<comment>//[^\r\n]*|/\*[\s\S]*?\*/)|(?P<sign>[{}\[\]:,])'
    r'|(?P<word>[^\s{}\[\]:,"/]+)|(?P<space>\s+)'
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of the outermost object: where its name begins, and where its value begins and ends."""

    name: str
    start: int
    value_start: int
    value_end: int


def parsed(text: str) -> Any:
    """Return the document.

    Raises
    ------
    ValueError
        If it is no JSON even without comments and commas at the end, or a name occurs twice in an object.
    """
    meant = _meant(_tokens(text))
    kept = [
        token.text
        for token, after in pairwise([*meant, _Token("end", "", 0, 0)])
        if not (token.text == "," and after.text in ("}", "]"))
    ]
    return json.loads(" ".join(kept), object_pairs_hook=_unique)


def has_comment(text: str, name: str) -> bool:
    """Return whether the value of a member of the outermost object has comments."""
    tokens = _tokens(text)
    found = next((one for one in _members(tokens) if one.name == name), None)
    return found is not None and any(
        token.kind == "comment" and found.value_start <= token.start < found.value_end for token in tokens
    )


def replaced(text: str, name: str, value: object) -> str:
    """Return the text of an object with one member set to a value, or removed for None; all else stays as it is.

    New text has the indentation and the line ends of the rest.
    """
    tokens = _tokens(text)
    members = _members(tokens)
    place = next((number for number, one in enumerate(members) if one.name == name), None)
    if value is None:
        return text if place is None else _without(text, tokens, members, place)
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    indent, line_end = found[1] if found else "  ", "\r\n" if "\r\n" in text else "\n"
    dumped = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", line_end + indent)
    if place is not None:
        member = members[place]
        return text[: member.value_start] + dumped + text[member.value_end :]
    line = f"{line_end}{indent}{json.dumps(name)}: {dumped}"
    if not members:
        start = _meant(tokens)[0].end
        return (
            text[:start]
            + line
            + (text[start:] if "\n" in text[start:].rstrip() else line_end + text[start:].lstrip())
        )
    last = members[-1].value_end
    comma = next(
        (token for token in tokens if token.text == "," and token.start >= last and token.kind == "sign"),
        None,
    )
    place_after, sign = (comma.end, "") if comma else (last, ",")
    closing = max(token.start for token in tokens if token.depth == 0 and token.text == "}")
    rest = "" if "\n" in text[place_after:closing] else line_end
    return text[:place_after] + sign + line + rest + text[place_after:]


def _without(text: str, tokens: list[_Token], members: list[_Member], place: int) -> str:
    member = members[place]
    start, end = member.start, member.value_end
    commas = [token for token in tokens if token.text == "," and token.kind == "sign" and token.depth == 1]
    after = next((token for token in commas if token.start >= end), None)
    before = next((token for token in reversed(commas) if token.end <= start), None)
    if after is not None:
        end = after.end
    start = len(text[:start].rstrip(" \t\r\n"))
    if after is None and before is not None and not text[before.end : start].strip():
        start = before.start
    return text[:start] + text[end:]


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place, depth = len(text) - len(text.removeprefix(BYTE_ORDER_MARK)), 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise ValueError(f"line {text.count(chr(10), 0, place) + 1} cannot be read")
        if match[0] in ("}", "]"):
            depth -= 1
        found.append(_Token(match.lastgroup, match[0], place, depth))
        if match[0] in ("{", "["):
            depth += 1
        place = match.end()
    return found


def _meant(tokens: list[_Token]) -> list[_Token]:
    return [token for token in tokens if token.kind not in ("comment", "space")]


def _members(tokens: list[_Token]) -> list[_Member]:
    """Return the members of the outermost object, of a text that `parsed` accepts."""
    meant = _meant(tokens)
    found: list[_Member] = []
    for number, token in enumerate(meant):
        if token.depth == 1 and token.text == ":":
            value = meant[number + 1 :]
            end = next(n for n, one in enumerate(value) if (one.depth, one.text) in ((1, ","), (0, "}")))
            name = meant[number - 1]
            found.append(_Member(json.loads(name.text), name.start, value[0].start, value[end - 1].end))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return document
