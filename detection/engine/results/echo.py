"""Removes from a result what only repeats the call: its query, its command line, the name of its tool.

A call is remembered by the hashes of its words, one character each, in their order. The words of a result are hashed
in the same way, so that a text of the call is found in them as a whole, whatever stands between the words: in a JSON
field, in prose, or percent-encoded in an address. No text is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import filterfalse
from typing import Any
from urllib.parse import unquote

from detection.engine.identity import CONTAINERS, Keyer
from detection.engine.similarity import hashed_words, word_places, words_of_text

# Tools repeat a call at the beginning of a result; a judgement for the time of a result.
MAX_HEAD_CHARS = 512
# Shells repeat it at the end, too; a judgement for the same reason.
MAX_TAIL_CHARS = 192
# Texts in nested arguments, more than most tools take; a judgement for the size of the state.
MAX_TEXTS = 16
# Hashed words of all of them, three bytes each; a judgement for the size of the state.
MAX_ECHO_CHARS = 160
# A shorter echo, such as `a` or `ls`, may be any word of the result; a judgement.
_MIN_WORD_CHARS = 3
# The scripts of Chinese, Japanese and Korean begin here: a character says as much as a syllable or a word.
_IDEOGRAPHS = "\N{CJK RADICAL REPEAT}"
# A judgement: numbers are not looked for, and half of a phrase is more than chance finds. What passes is compared as a
# whole.
_FOUND = 0.5
_FIELD = "|"
_SCALAR = "#"
_NO_WORDS = ("", _SCALAR)
_ENCODED = re.compile(r"(?:%[0-9A-Fa-f]{2}){1,64}")
_ESCAPES = re.compile(r"\\[nrt]")
# Values of nested arguments that are looked at, four for each text that may be kept; a judgement for the time of a
# call.
_MAX_SEEN = 4 * MAX_TEXTS
# An object with few fields may have guessed their names; a judgement.
_MAX_NAMES = 4
# Signs before a word, as in `../../` and `--`; a judgement.
_MAX_BEFORE_WORD = 8
# What stands directly before the first word of a path, an option or a pattern, and belongs to it.
_BEFORE_WORD = re.compile(rf"[/.~*+$@#^-]{{1,{_MAX_BEFORE_WORD}}}\Z")
# Quotation marks beyond ASCII stand directly at a word. Each becomes one character, so that places stay.
_QUOTES = str.maketrans(dict.fromkeys("«»„“”‹›「」『』《》〈〉【】", '"'))
# Where two values of an object meet.
_SEAM = re.compile(r"\"\s{0,9}[:,]\s{0,9}[\"{\[]")


def nested_texts(arguments: Any, keyer: Keyer) -> str:
    """Return the hashed words of the texts that lie deeper than the fields of the arguments, which a sketch covers."""
    if not isinstance(arguments, dict):
        return ""
    found: list[str] = []
    size = 0
    for value in arguments.values():
        if not isinstance(value, CONTAINERS):
            continue
        for text in _texts(value):
            hashed = hashed_words(text[:MAX_HEAD_CHARS], keyer)
            if hashed and size + len(hashed) < MAX_ECHO_CHARS and len(found) < MAX_TEXTS:
                found.append(hashed)
                size += len(hashed) + 1
    return _FIELD.join(found)


def _texts(value: Any) -> Iterator[str]:
    """Return the first texts in a value of any depth, without recursion."""
    waiting, seen = [value], 0
    while waiting and seen < _MAX_SEEN:
        item = waiting.pop()
        seen += 1
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += list(item.values())[:MAX_TEXTS]
            if len(item) <= _MAX_NAMES:
                waiting[:0] = item
        elif isinstance(item, list):
            waiting += item[:MAX_TEXTS]


def without_echo(text: str, sketch: str, nested: str, tool: str, keyer: Keyer) -> str:
    """Return a text in which its beginning and its end do not repeat the call; the same text if they do not.

    Costs one pass over 704 characters.

    Parameters
    ----------
    sketch, nested
        The texts of the arguments; see `Record`.
    tool
        The name of the tool if that is to be masked, too.
    """
    others = f"{nested}{_FIELD}{hashed_words(tool, keyer)}" if tool else nested
    if not sketch and not others:
        return text
    if len(text) <= MAX_HEAD_CHARS + MAX_TAIL_CHARS:
        return _masked(text, sketch, others, keyer)
    head, middle, tail = text[:MAX_HEAD_CHARS], text[MAX_HEAD_CHARS:-MAX_TAIL_CHARS], text[-MAX_TAIL_CHARS:]
    return _masked(head, sketch, others, keyer) + middle + _masked(tail, sketch, others, keyer)


def _masked(text: str, sketch: str, others: str, keyer: Keyer) -> str:
    masked = _without_phrases(text, sketch, others, keyer)
    if masked is text and not text.isascii() and (quoted := text.translate(_QUOTES)) != text:
        masked = _without_phrases(quoted, sketch, others, keyer)
        return text if masked is quoted else masked
    return masked


def _without_phrases(text: str, sketch: str, others: str, keyer: Keyer) -> str:
    plain = text
    if "%" in plain:
        plain = _ENCODED.sub(lambda found: unquote(found[0], errors="replace"), plain)
    if "\\" in plain:
        plain = _ESCAPES.sub("  ", plain)
    words = words_of_text(plain)
    # Each different word is hashed once, and numbers, which rarely come twice, are not.
    known = set(keyer.word_hashes.of([*filterfalse(bytes.isdigit, set(words))]))
    if known.isdisjoint(sketch) and known.isdisjoint(others):
        return text
    phrases = [field[1:] for field in sketch.split(_FIELD) if field[1:2] not in _NO_WORDS]
    phrases += filter(None, others.split(_FIELD))
    if not any(sum(map(known.__contains__, phrase)) >= _FOUND * len(phrase) for phrase in phrases):
        return text
    hashed = "".join(keyer.word_hashes.of(words))
    ranges: list[tuple[int, int]] = []
    for phrase in phrases:
        start = hashed.find(phrase)
        while start >= 0:
            ranges.append((start, start + len(phrase)))
            start = hashed.find(phrase, start + len(phrase))
    if not ranges:
        return text
    places = word_places(plain, max(end for _, end in ranges))
    spans = [(places[start][0], places[end - 1][1]) for start, end in ranges]
    return _cut(plain, spans) or text


def _cut(text: str, spans: list[tuple[int, int]]) -> str:
    """Return the text with these spans masked; of two that overlap, the first and longer one."""
    kept, at, is_cut = [], 0, False
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        is_short = end - start < _MIN_WORD_CHARS and text[start:end] < _IDEOGRAPHS
        if start < at or is_short or text[start:end].isdigit():
            continue
        if _SEAM.search(text, start, end):
            continue
        if before := _BEFORE_WORD.search(text, max(at, start - _MAX_BEFORE_WORD), start):
            start = before.start()
        kept += [text[at:start], "~"]
        at, is_cut = end, True
    return "".join([*kept, text[at:]]) if is_cut else ""
