"""Similarity of calls and of results.

There are two methods: word sketches, which hold no plain text (every word is a keyed hash of one character), and the
literal formulas of the `similarity` preset on the text itself.
"""

from __future__ import annotations

import re
import string
from contextlib import suppress
from itertools import islice
from typing import Any

from rapidfuzz.distance import Levenshtein

from detection.engine.calls import Arguments
from detection.engine.identity import Keyer, WordHashes, dump, encoded, parse

MAX_FIELD_CHARS = 4096
MAX_FIELDS = 24
MAX_FIELD_WORDS = 48
MAX_SKETCH_CHARS = 192
MAX_SET_CHARS = 2048
MAX_SAMPLE_WORDS = 48
SHORT_TEXT_WORDS = 4

# Words end at white space and ASCII punctuation.
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation.replace("_", ""), " "))
# The same for ASCII text, which is split as bytes: several times as fast.
_BREAKS = bytes(
    ord(" ") if chr(code).isspace() or chr(code) in string.punctuation.replace("_", "") else code
    for code in range(256)
)
_DIGITS = re.compile(r"\d+")
_FIELD = "|"
_SCALAR = "#"
_SCALARS = (bool, int, float)


def sketch(arguments: Arguments, keyer: Keyer) -> str:
    """Return the word sketch of arguments, at most 192 characters.

    Each field of an object becomes the hash of its name and the hashes of the words of its value. Numbers, Booleans and
    containers are one word, so that page 1 and page 2 differ. Arguments that are not an object count as one field.
    """
    value: Any = arguments
    if isinstance(value, str):
        with suppress(ValueError):
            value = parse(value)
    if not isinstance(value, dict):
        return _value_sketch(value, keyer.word_hashes)
    hashes = keyer.word_hashes
    fields = []
    for name, item in value.items() if len(value) <= MAX_FIELDS else islice(value.items(), MAX_FIELDS):
        field = hashes[name.encode() if type(name) is str and name.isascii() else encoded(str(name))]
        if type(item) is str and len(item) <= MAX_FIELD_WORDS and item.isascii():
            # Most values: so short that they need none of the limits below.
            fields.append(field + "".join(map(hashes.__getitem__, item.encode().translate(_BREAKS).split())))
        else:
            fields.append(field + _value_sketch(item, hashes))
    fields.sort()
    return _FIELD.join(fields)[:MAX_SKETCH_CHARS]


def _value_sketch(value: Any, hashes: WordHashes) -> str:
    if not isinstance(value, str):
        if value is None or isinstance(value, _SCALARS):
            return _SCALAR + hashes[str(value).encode()]
        return _SCALAR + hashes[dump(value)[:MAX_FIELD_CHARS].decode("utf-8", "replace").encode()]
    words = _words(value[:MAX_FIELD_CHARS])
    if len(words) > MAX_FIELD_WORDS:
        # Of a long text, several words share a hash, so that its end still counts.
        step = -(-len(words) // MAX_FIELD_WORDS)
        words = [b" ".join(words[i : i + step]) for i in range(0, len(words), step)]
    return "".join(map(hashes.__getitem__, words))


def _words(text: str) -> list[bytes]:
    """Return the words of a text in UTF-8."""
    if text.isascii():
        return text.encode().translate(_BREAKS).split()
    return [encoded(word) for word in text.translate(_PUNCTUATION).split()]


def word_set(text: str, keyer: Keyer) -> str:
    """Return the words of the first 2,048 characters without digits, once: sorted keyed hashes of one character."""
    words = _words(_DIGITS.sub("", text[:MAX_SET_CHARS]))
    return "".join(sorted(set(map(keyer.word_hashes.__getitem__, words))))


def word_sample(text: str, keyer: Keyer) -> str:
    """Return at most `MAX_SAMPLE_WORDS` words of the first 2,048 characters, with digits, as hashes of one character.

    They are chosen by their hashes, so that two texts with the same words have the same sample.
    """
    words = map(keyer.word_hashes.__getitem__, _words(text[:MAX_SET_CHARS].lower()))
    return "".join(sorted(set(words))[:MAX_SAMPLE_WORDS])


def sketch_similarity(one: str, other: str, ratio: float) -> float:
    """Return the similarity of two sketches, 0 to 1: the share of fields whose values are at least `ratio` similar.

    A single field is compared by its value. Two short texts are also similar if one contains all words of the other.
    """
    if one == other:
        return 1.0
    fields, others = one.split(_FIELD), other.split(_FIELD)
    if len(fields) == len(others) == 1:
        if fields[0][:1] != others[0][:1]:
            return Levenshtein.normalized_similarity(one, other)
        return _value_similarity(fields[0][1:], others[0][1:])
    named = {field[:1]: field[1:] for field in fields}
    others_named = {field[:1]: field[1:] for field in others}
    alike = sum(
        1
        for name, value in named.items()
        if name in others_named and _value_similarity(value, others_named[name]) >= ratio
    )
    return alike / len(named.keys() | others_named.keys())


def shared_fields(one: str, other: str) -> float:
    """Return the share of the fields of two sketches whose names and values are the same."""
    fields, others = set(one.split(_FIELD)), set(other.split(_FIELD))
    return len(fields & others) / max(len(fields), len(others))


def _value_similarity(one: str, other: str) -> float:
    if one == other:
        return 1.0
    if one.startswith(_SCALAR) or other.startswith(_SCALAR):
        return 0.0
    shorter, longer = sorted((one, other), key=len)
    if len(shorter) > 0 and len(longer) <= SHORT_TEXT_WORDS and set(shorter) <= set(longer):
        return 1.0
    return float(Levenshtein.normalized_similarity(one, other))


def literal_similarity(one: Any, other: Any, threshold: float) -> float:
    """Return the similarity of arguments by the literal formula: edit distance, share of matching keys, mean of a list.

    Two empty containers score 1; text and another type score by equality.
    """
    if isinstance(one, str) and isinstance(other, str):
        return float(Levenshtein.normalized_similarity(one[:MAX_FIELD_CHARS], other[:MAX_FIELD_CHARS]))
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() | other.keys()
        if not names:
            return 1.0
        alike = sum(
            1
            for name in names
            if name in one
            and name in other
            and literal_similarity(one[name], other[name], threshold) > threshold
        )
        return alike / len(names)
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return 0.0
        if not one:
            return 1.0
        return sum(literal_similarity(a, b, threshold) for a, b in zip(one, other, strict=True)) / len(one)
    return 1.0 if type(one) is type(other) and one == other else 0.0


def literal_result_similarity(one: str, other: str, threshold: float) -> float:
    """Return the similarity of results by the literal formula: 1 if identical, else by structure or edit distance."""
    if one == other:
        return 1.0
    try:
        parsed, other_parsed = parse(one), parse(other)
    except ValueError:
        return float(Levenshtein.normalized_similarity(one[:MAX_FIELD_CHARS], other[:MAX_FIELD_CHARS]))
    return literal_similarity(parsed, other_parsed, threshold)
