"""Identity of calls: canonical arguments and keyed digests. The identity of results is in `results`."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal
from zlib import crc32

import orjson

from detection.engine.calls import Arguments

Identity = Literal["canonical", "raw", "tool"]

CONTAINERS = (dict, list)
"""What contains other values in JSON. For `isinstance`, which is slow with a union."""
# 128 bits, so that no two calls of a project have one digest by chance.
DIGEST_BYTES = 16
# The code points from the first of these on are characters that JSON need not escape.
_FIRST_CODE_POINT = 0x3400
# 24,576 characters: two different words share one rarely enough to compare, and often enough to keep them secret.
_CODE_POINTS = 0x6000
# Less than a megabyte for a project's secret; a judgement for the memory of a process.
_MAX_MEMO_WORDS = 4096
# Projects of which a process keeps them; a judgement for the same reason.
_MAX_KEYERS = 32
# Longer words rarely come twice; a judgement.
_MAX_MEMO_BYTES = 24
# Numbers up to 99 come often, longer ones are ids and figures; a judgement.
_LONG = 3
# Python does not parse integers of more than 4,300 digits.
_MAX_DIGITS = 4000
_EMPTY_OBJECT = b"{}"
# Scripts put a handful of marks on a letter, and Unicode's stream-safe texts 30 at most.
_MAX_COMBINING_IN_A_ROW = 32
# orjson changes integers beyond 64 bits and floats out of range, so text with long numbers takes the slow path.
_LONG_NUMBER = re.compile(r"[0-9](?:[eE]|[0-9]{15})")
# ASCII text in kinds of characters: digits, and the letter of an exponent. Searching them is faster than the pattern.
_NUMBER_KINDS = bytes.maketrans(b"0123456789E", b"0" * 10 + b"e")

# More combining marks on one letter than any script uses; ordering them would take quadratic time. Three letters
# decompose into combining marks; beyond the first plane, whole blocks are precise enough.
_COMBINING = "".join(char for char in map(chr, range(0x300, 0x10000)) if unicodedata.combining(char))
_MARK = (
    f"[{_COMBINING}\u0f73\u0f75\u0f81\U000101fd\U000102e0\U00010376-\U0001037a\U00010a00-\U00011fff"
    "\U00016a00-\U00016fff\U0001bc00-\U0001bcff\U0001d165-\U0001d244\U0001e000-\U0001e94f]"
)
_COMBINING_MARK = re.compile(_MARK)
_COMBINING_IN_A_ROW = re.compile(f"{_MARK}{{{_MAX_COMBINING_IN_A_ROW},}}")


class WordHashes(dict[bytes, str]):
    """A keyed hash of one character for every word, given in UTF-8. Several words share one, which keeps them secret.

    The dictionary computes what it does not contain. It caches short words, and begins anew when it is full; hashes are
    the same with and without the cache.
    """

    __slots__ = ("_seed",)

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of(self, words: list[bytes]) -> list[str]:
        """Return the hash of each word; of many that are not cached, faster than one by one."""
        hashed: list[Any] = list(map(self.get, words))
        if None in hashed:
            seed = self._seed
            for place, known in enumerate(hashed):
                if known is None:
                    word = words[place]
                    hashed[place] = one = chr(_FIRST_CODE_POINT + crc32(word, seed) % _CODE_POINTS)
                    if len(word) <= _MAX_MEMO_BYTES and not word.isdigit():
                        self[word] = one
            if len(self) > _MAX_MEMO_WORDS:
                self.clear()
        return hashed

    def __missing__(self, word: bytes) -> str:
        hashed = chr(_FIRST_CODE_POINT + crc32(word, self._seed) % _CODE_POINTS)
        size = len(word)
        # Long numbers rarely come twice.
        if size <= _MAX_MEMO_BYTES and (size < _LONG or not word.isdigit()):
            if len(self) >= _MAX_MEMO_WORDS:
                # Words of sessions that have ended give way to those of today's.
                self.clear()
            self[word] = hashed
        return hashed


class Keyer:
    """Digests keyed with a project's secret (BLAKE2b), so that stored digests do not reveal their input.

    Parameters
    ----------
    secret : bytes
        The project's secret. One longer than 64 bytes is hashed first.
    """

    __slots__ = ("_base", "word_hashes")

    def __init__(self, secret: bytes = b"") -> None:
        key = secret if len(secret) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.blake2b(secret).digest()
        self._base = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)
        self.word_hashes = WordHashes(
            int.from_bytes(hashlib.blake2b(b"sketch", digest_size=4, key=key).digest())
        )

    def digest(self, domain: bytes, *parts: bytes) -> str:
        """Return the hex digest of the parts. Digests of different domains never coincide."""
        state = self._base.copy()
        state.update(domain)
        for part in parts:
            # The length in front makes ("ab", "c") and ("a", "bc") two different inputs.
            state.update(b"%d:%b" % (len(part), part))
        return state.hexdigest()

    def call_key(
        self, tool: str, arguments: Arguments, *, identity: Identity = "canonical", ignore: Sequence[str] = ()
    ) -> str:
        """Return the key of a call: a digest of tool name and canonical arguments.

        Parameters
        ----------
        tool : str
            Tool name.
        arguments : dict, list, str or None
            Object or raw text.
        identity : {"canonical", "raw", "tool"}
            `raw` uses the text as received, and an object in the order of its fields; `tool` uses no arguments.
        ignore : sequence of str
            Dotted paths to ignore, such as `meta.nonce`. `*` matches every list item or field.

        Returns
        -------
        str
            32 hex digits. Costs one pass over the arguments.
        """
        if identity == "tool":
            return self.digest(b"tool", encoded(tool))
        if identity == "raw":
            text = raw_text(arguments)
        elif isinstance(arguments, dict) and not ignore:
            text = dump(arguments)
        else:
            text = canonical(arguments, ignore)
        return self.digest(b"call", encoded(tool), text)


@lru_cache(maxsize=_MAX_KEYERS)
def keyer_of(secret: bytes) -> Keyer:
    """Return the digests of a project's secret, with the hashes of the words of its latest calls."""
    return Keyer(secret)


def encoded(text: str) -> bytes:
    """Return the text as UTF-8, lone surrogates included."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def digest_of_calls(kind_family: str, keys: Iterable[str]) -> str:
    """Return the hex identity of a loop. It needs no secret, because the call keys are keyed digests."""
    return hashlib.blake2b("|".join((kind_family, *keys)).encode(), digest_size=DIGEST_BYTES).hexdigest()


def smallest_rotation(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the rotation that sorts first: A-B-A-B and B-A-B-A are one loop. Costs quadratic time in a few keys."""
    return min(tuple(keys[i:]) + tuple(keys[:i]) for i in range(len(keys) or 1))


def parse(text: str) -> Any:
    """Parse JSON without loss of precision: integers of any size stay distinct, floats out of range become text.

    Raises
    ------
    ValueError
        If the text is not JSON or is nested too deeply.
    """
    if not _has_long_number(text):
        try:
            return orjson.loads(text)
        except ValueError:
            pass  # The standard library reads some of what orjson rejects, such as lone surrogates.
    try:
        return json.loads(text, parse_float=_exact_float, parse_int=_exact_int, parse_constant=_not_json)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _has_long_number(text: str) -> bool:
    if not text.isascii():
        return _LONG_NUMBER.search(text) is not None
    kinds = text.encode().translate(_NUMBER_KINDS)
    return b"0e" in kinds or b"0" * 16 in kinds


def structured(arguments: Arguments) -> Arguments:
    """Return the object or list that a text contains, so that it is parsed only once; anything else unchanged."""
    if isinstance(arguments, str) and arguments[:1] in ("{", "["):
        with suppress(ValueError):
            value = parse(arguments)
            if isinstance(value, CONTAINERS):
                return value
    return arguments


def canonical(arguments: Arguments, ignore: Sequence[str] = ()) -> bytes:
    """Return compact JSON with sorted keys at every depth and strings in NFC, or the trimmed text if it is not JSON.

    No arguments, an empty text and `{}` are identical. Text that is not JSON gets a prefix, so that it differs from a
    JSON string with the same letters.
    """
    value: Any = arguments
    if isinstance(arguments, str):
        trimmed = arguments.strip()
        if not trimmed:
            return _EMPTY_OBJECT
        try:
            value = parse(trimmed)
        except ValueError:
            return b"text " + _composed(trimmed).encode("utf-8", "surrogatepass")
    if value is None:
        return _EMPTY_OBJECT
    if ignore:
        value = without(value, ignore)
    return dump(value)


def raw_text(arguments: Arguments) -> bytes:
    """Return the arguments exactly as received."""
    if isinstance(arguments, str):
        return arguments.encode("utf-8", "surrogatepass")
    return _EMPTY_OBJECT if arguments is None else _dump(arguments, sort=False)


def dump(value: Any) -> bytes:
    """Return the canonical compact JSON of a parsed value."""
    text = _dump(value, sort=True)
    if text.isascii():
        return text
    decoded = text.decode("utf-8", "surrogatepass")
    composed = _composed(decoded)
    if composed == decoded:
        return text
    try:
        # Normalisation may change the order of the keys.
        return _dump(json.loads(composed), sort=True)
    except (ValueError, RecursionError):
        return composed.encode("utf-8", "surrogatepass")


def _composed(text: str) -> str:
    # So many marks in a row cover one of the characters at this distance: in most texts, looking at these is enough.
    sample = text[_MAX_COMBINING_IN_A_ROW - 1 :: _MAX_COMBINING_IN_A_ROW]
    if _COMBINING_MARK.search(sample) and _COMBINING_IN_A_ROW.search(text):
        return text
    return unicodedata.normalize("NFC", text)


def _dump(value: Any, *, sort: bool) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else 0)
    except (TypeError, ValueError):
        pass  # Integers beyond 64 bits, lone surrogates and deep nesting are rare and take the slow path.
    try:
        text = json.dumps(value, sort_keys=sort, separators=(",", ":"), default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = _flat(value)
    return text.encode("utf-8", "surrogatepass")


def _flat(value: Any) -> str:
    """Return any tree as text without recursion; only for what JSON cannot represent."""
    parts: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            parts.append(f"{{{len(item)}")
            for name in sorted(item, key=str, reverse=True):
                waiting += (item[name], str(name))
        elif isinstance(item, list | tuple):
            parts.append(f"[{len(item)}")
            waiting += reversed(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            parts.append(f"{item:#x}")
        else:
            parts.append(repr(item))
    return ",".join(parts)


def without(value: Any, paths: Iterable[str]) -> Any:
    """Return a copy of the value without these dotted paths."""
    for path in paths:
        value = _without(value, path.split("."))
    return value


def _without(value: Any, steps: list[str]) -> Any:
    head, rest = steps[0], steps[1:]
    if isinstance(value, list):
        if head != "*":
            return value
        return [_without(item, rest) for item in value] if rest else []
    if not isinstance(value, dict):
        return value
    if head != "*" and head not in value:
        return value
    if not rest:
        return {} if head == "*" else {name: item for name, item in value.items() if name != head}
    return {name: _without(item, rest) if head in ("*", name) else item for name, item in value.items()}


def _exact_int(text: str) -> Any:
    # As prefixed text, longer integers stay distinct.
    return int(text) if len(text) < _MAX_DIGITS else f"\x00int {text}"


def _exact_float(text: str) -> Any:
    number = float(text)
    return number if abs(number) != float("inf") else f"\x00float {text}"


def _not_json(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
