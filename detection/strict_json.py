"""The strict JSON parser of all external input: pure, and with bounded cost for hostile input.

It enforces UTF-8, no NaN, and bounds on depth, nodes, keys and numbers, in the document and in JSON inside strings. The
entry points interpret the fields. Nothing here depends on Django.

There are three kinds of errors: text that is not JSON (`not_json`), JSON above a limit (one code per limit), and values
that are altered with a visible mark (`Cleaner.marks`): NUL, lone surrogates, duplicate keys, numbers finer than a
double.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

import orjson

MAX_DEPTH: Final = 64
MAX_NODES: Final = 10_000
MAX_KEY_BYTES: Final = 256
MAX_DIGITS: Final = 64

NUL_MARK: Final = "\u2400"
SURROGATE_MARK: Final = "\ufffd"
_PRUNE_DEPTH: Final = MAX_DEPTH + 16
_EXACT_DIGITS: Final = 15
"""A number with at most this many significant digits survives the conversion to a double."""

_HUGE = 10**MAX_DIGITS
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[{\]}]', re.DOTALL)
"""An unterminated string extends to the end of the text; to search from each quote would take quadratic time."""


class JsonProblem(ValueError):
    """A document or a part of it is invalid.

    Attributes
    ----------
    code
        ``not_json``, ``too_deep``, ``too_many_nodes``, ``key_too_long``, ``number_range`` or ``number_too_long``.
    detail
        One sentence for people.
    path
        Where, as in ``events[3].arguments.q``; empty for the document.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail, self.path = code, detail, ""

    def within(self, step: str | int) -> JsonProblem:
        """Prefix the path with one more step, from the inside out."""
        self.path = join(f"[{step}]" if isinstance(step, int) else shorten(step), self.path)
        return self


def join(head: str, tail: str) -> str:
    """Join two parts of a path."""
    return head + tail if not tail or not head or tail.startswith("[") else f"{head}.{tail}"


def shorten(name: str) -> str:
    """Shorten a name from a client for a message: printable, at most 60 characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in name[:60])


class Doubled(dict[str, object]):
    """An object with a repeated key; the last value applies, and the earlier ones are kept separately."""

    __slots__ = ("earlier",)
    earlier: list[tuple[str, Any]]


class _TooBig(float):
    """A number beyond the range of a double."""

    __slots__ = ()


class _TooLong(float):
    """A number with implausibly many digits."""

    __slots__ = ()


class _Rounded(float):
    """A number that a double cannot hold exactly."""

    __slots__ = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    doubled = Doubled(made)
    last = {key: at for at, (key, _) in enumerate(pairs)}
    doubled.earlier = [pair for at, pair in enumerate(pairs) if last[pair[0]] != at]
    return doubled


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        return _TooBig(0)
    if len(text) > _EXACT_DIGITS + 1:
        if len(text) > MAX_DIGITS + 8:
            return _TooLong(0)
        if Decimal(text) != Decimal(repr(number)):
            return _Rounded(number)
    return number


def _integer(text: str) -> int | float:
    return _TooLong(0) if len(text.lstrip("-")) > MAX_DIGITS else int(text)


def _constant(word: str) -> NoReturn:
    raise JsonProblem("not_json", f"{word} is not JSON.")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_careful_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_int=_integer, parse_constant=_constant
)


def loads(data: bytes | str) -> Any:
    """Parse one document.

    Parameters
    ----------
    data
        UTF-8 bytes, or text.

    Returns
    -------
    object
        With every object a `dict` (or `Doubled`); numbers beyond the limits are placeholders that `Cleaner` rejects, so
        that one invalid event of a batch does not affect the others.

    Raises
    ------
    JsonProblem
        ``not_json``. Linear in the length of `data`.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise JsonProblem(
            "not_json", f"Not UTF-8 (byte {error.start}); other encodings are not supported."
        ) from None
    try:
        return _decoder.decode(text)
    except RecursionError:
        text = _prune(text)
    except json.JSONDecodeError as error:
        what = f"{error.msg[:1].lower()}{error.msg[1:]}" if text.strip() else "empty"
        raise JsonProblem(
            "not_json", f"Not valid JSON: {what} at line {error.lineno}, column {error.colno}."
        ) from None
    except JsonProblem:
        raise
    except ValueError:  # an integer longer than Python converts
        pass
    try:
        return _careful_decoder.decode(text)
    except RecursionError:
        return _careful_decoder.decode(_prune(text))
    except json.JSONDecodeError:
        raise JsonProblem("not_json", "Not JSON.") from None


def _prune(text: str) -> str:
    """Replace everything far beyond the allowed depth by null; the rest is still deep enough to be rejected."""
    kept: list[str] = []
    depth = start = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        char = text[found.start()]
        if char in "[{":
            depth += 1
            if depth == _PRUNE_DEPTH:
                kept.append(text[start : found.start()])
                kept.append("null")
        elif char in "]}":
            if depth == _PRUNE_DEPTH:
                start = found.end()
            depth -= 1
    if depth >= _PRUNE_DEPTH:
        return ""
    kept.append(text[start:])
    return "".join(kept)


def compact(value: Any) -> str:
    """Write a value as compact JSON text, integers of any size exactly. The value must have passed a `Cleaner`."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Cleaner:
    """Checks the values of one event against the limits, and marks its alterations.

    Parameters
    ----------
    max_nodes
        Maximum number of values.

    Attributes
    ----------
    marks
        In the order of their first appearance: ``nul``, ``surrogate``, ``duplicate_key``, ``number_precision``,
        ``not_json`` (text that looks like JSON but is not; kept as text).
    nodes
        Number of values so far; the limit applies to all of them together.
    """

    __slots__ = ("marks", "max_nodes", "nodes")

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self.marks: dict[str, None] = {}
        self.max_nodes = max_nodes
        self.nodes = 0

    def value(self, value: Any, depth: int = 1) -> Any:
        """Return the value as it can be stored: the same object if nothing had to change.

        Raises
        ------
        JsonProblem
            If a value is above a limit, with the path from here.
        """
        self.nodes += 1
        if self.nodes > self.max_nodes:
            raise JsonProblem("too_many_nodes", f"More than {self.max_nodes:,} values in one event.")
        kind = type(value)
        if kind is str:
            return self._string(value, depth)
        if kind is dict or kind is Doubled:
            return self._object(value, depth)
        if kind is list:
            if depth > MAX_DEPTH:
                raise _too_deep()
            return [self._inside(at, inner, depth) for at, inner in enumerate(value)]
        if kind is int and not -_HUGE < value < _HUGE:
            raise _too_long()
        return self._number(value, kind) if isinstance(value, float) else value

    def text(self, text: str) -> str:
        """Return text without NUL and lone surrogates, which no database column can store; marks replace them."""
        if text.isascii() and "\x00" not in text:
            return text
        return _UNSTORABLE.sub(self._replace, text)

    def json_text(self, text: str, depth: int = 1) -> str:
        """Check text that is expected to be JSON, such as the arguments that a model wrote.

        Text that is not JSON is kept and marked. JSON is checked against every limit; it is serialised again only if it
        contains values that cannot be stored.
        """
        try:
            parsed = loads(text)
        except JsonProblem:
            self.marks["not_json"] = None
            return self.text(text)
        inner = Cleaner(self.max_nodes)
        inner.nodes = self.nodes
        cleaned = inner.value(parsed, depth)
        self.nodes = inner.nodes
        self.marks |= inner.marks
        return compact(cleaned) if inner.marks.keys() - {"not_json", "number_precision"} else self.text(text)

    def _string(self, value: str, depth: int) -> str:
        return (
            self.json_text(value, depth)
            if value[:1] in ("{", "[") and _may_be_json(value)
            else self.text(value)
        )

    def _inside(self, step: str | int, value: Any, depth: int) -> Any:
        try:
            return self.value(value, depth + 1)
        except JsonProblem as problem:
            raise problem.within(step) from None

    def _object(self, value: dict[str, object], depth: int) -> dict[str, object]:
        if depth > MAX_DEPTH:
            raise _too_deep()
        pairs = value.items()
        made: dict[str, object] = {}
        if isinstance(value, Doubled):
            self.marks["duplicate_key"] = None
            pairs = [*_renamed(value), *pairs]  # type: ignore[assignment]
        for key, inner in pairs:
            if len(key) > MAX_KEY_BYTES or (
                not key.isascii() and len(key.encode("utf-8", "replace")) > MAX_KEY_BYTES
            ):
                raise JsonProblem("key_too_long", f"A key is longer than {MAX_KEY_BYTES} bytes.").within(key)
            made[self.text(key)] = self._inside(key, inner, depth)
        return made

    def _number(self, value: float, kind: type) -> float:
        if kind is _TooBig:
            raise JsonProblem("number_range", "A number is beyond the range of a double.")
        if kind is _TooLong:
            raise _too_long()
        if kind is _Rounded:
            self.marks["number_precision"] = None
            return float(value)
        return value

    def _replace(self, found: re.Match[str]) -> str:
        if found[0] == "\x00":
            self.marks["nul"] = None
            return NUL_MARK
        self.marks["surrogate"] = None
        # The code stays visible, so that texts that differed before still differ.
        return f"{SURROGATE_MARK}{ord(found[0]):x}"


def _too_deep() -> JsonProblem:
    return JsonProblem("too_deep", f"Nested deeper than {MAX_DEPTH} levels.")


def _too_long() -> JsonProblem:
    return JsonProblem("number_too_long", f"A number has more than {MAX_DIGITS} digits.")


def _may_be_json(text: str) -> bool:
    return text.rstrip()[-1:] in ("}", "]")


def _renamed(value: Doubled) -> list[tuple[str, Any]]:
    """Give the earlier values of repeated keys unique names, so that nothing is lost silently."""
    taken = {*value}
    numbers: dict[str, int] = {}
    renamed = []
    for key, inner in value.earlier:
        number = numbers.get(key, 0) + 1
        while (name := f"{key} (duplicate {number})") in taken:
            number += 1
        numbers[key] = number
        taken.add(name)
        renamed.append((name, inner))
    return renamed
