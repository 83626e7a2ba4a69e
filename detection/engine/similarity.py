"""Similarity of calls and of results.

There are two methods: word sketches, which hold no plain text (every word is a keyed hash of one character), and the
literal formulas of the `similarity` preset on the text itself. Both compare the whole: what is too
long to be kept is condensed, never cut.
"""

from __future__ import annotations

import re
import string
from contextlib import suppress
from itertools import islice
from typing import Any
from zlib import crc32

from rapidfuzz.distance import Levenshtein

from detection.engine.calls import Arguments
from detection.engine.identity import Keyer, WordHashes, dump, encoded, parse

# 4 KiB of a field: what an edit distance can compare within the time of a call.
MAX_LITERAL_CHARS = 4096
# More fields than tools have; the rest counts as one. A judgement for the time of a call, not measured.
MAX_FIELDS = 24
# Words of one value before several share a hash: a quarter of a sketch; a judgement, not measured.
MAX_FIELD_WORDS = 48
# Three bytes each: 64 calls with full sketches are more than a state of 32 KiB, which then forgets its oldest calls.
MAX_SKETCH_CHARS = 192
# Words of a page for `repeat_near_ratio`, 1.2 KB for the one streak of a run; a judgement, not measured.
MAX_SET_WORDS = 400
# Words of a text that is said, 144 bytes for each of a few; a judgement, not measured.
MAX_SAMPLE_WORDS = 48
# `ls` and `ls -la` are similar, as with the system that `similarity` repeats, although most of the words differ.
SHORT_TEXT_WORDS = 4

# Words end at white space and ASCII punctuation. ASCII text is split as bytes: several times as fast.
_BREAKS = bytes(
    ord(" ") if chr(code).isspace() or chr(code) in string.punctuation.replace("_", "") else code
    for code in range(256)
)
_ASCII_BREAKS = _BREAKS[:128] + bytes(range(128, 256))
# White space beyond ASCII, and what bytes do not count as such.
_OTHER_SPACE = re.compile("[\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_DIGITS = re.compile(r"\d+")
# The same for any text.
_WORD = re.compile(f"[^\\s{re.escape(string.punctuation.replace('_', ''))}]+")
_FIELD = "|"
_SCALAR = "#"
_SCALARS = (bool, int, float)
# The name of the only field of arguments that are not an object.
_NAMELESS = b""

# A signature begins with a character of private use, which no text needs.
_SIGNATURE = "\ue000"
# The estimate of a share errs by about a twentieth with 96 groups, in 291 bytes; a judgement.
_MAX_GROUPS = 96
_NO_PAIR = "-"
_NO_PAIRS = (_NO_PAIR, _NO_PAIR)
# Other characters than those of word hashes, which are searched for in sketches.
_FIRST_CODE_POINT = 0xAC00
# The characters of Hangul's block: three bytes of UTF-8 each, and none is escaped in JSON.
_CODE_POINTS = 0x2B00
# Knuth's multiplier, a prime near 2**32 divided by the golden ratio: it spreads neighbouring hashes.
_MIXER = 2_654_435_761
# Each of these characters has three bytes in UTF-8.
_SIGN_BYTES = 3
# A text of so many bytes within a value is condensed if the value is too long.
_LONG_TEXT_BYTES = 400
# Deeper than arguments of tools are nested, and far from the limit of recursion; a judgement.
_MAX_DEPTH = 8
# Words and punctuation in UTF-8. Long runs without a break end at certain letters or bytes, so that what is inserted
# changes the pieces next to it and not all that follow.
_PIECES = re.compile(
    rb"\w{1,24}(?!\w)|\w{1,24}?[08aeimquAEIMQU_]|\w{1,24}"
    rb"|[\x80-\xff]{1,48}?[\x80\x88\x90\x98\xa0\xa8\xb0\xb8]|[\x80-\xff]{1,48}|[^\s\w\x80-\xff]{1,4}"
)


def sketch(arguments: Arguments, keyer: Keyer) -> str:
    """Return the word sketch of arguments, at most 192 characters, in one pass over them.

    Each field of an object becomes the hash of its name and the hashes of the words of its value. Numbers, Booleans and
    containers are one word, so that page 1 and page 2 differ. Arguments that are not an object count as one field.
    """
    value: Any = arguments
    if isinstance(value, str):
        with suppress(ValueError):
            value = parse(value)
    hashes = keyer.word_hashes
    if not isinstance(value, dict):
        return _bounded([hashes[_NAMELESS] + _value_sketch(value, hashes)], hashes)
    if len(value) > MAX_FIELDS:
        value = _with_one_rest(value)
    fields = []
    for name, item in value.items():
        field = hashes[name.encode() if type(name) is str and name.isascii() else encoded(str(name))]
        # Most values are so short that they need none of the limits below.
        if type(item) is str and len(item) <= MAX_FIELD_WORDS and item.isascii():
            fields.append(field + "".join(map(hashes.__getitem__, item.encode().translate(_BREAKS).split())))
        elif type(item) is int:
            fields.append(field + _SCALAR + hashes[b"%d" % item])
        else:
            fields.append(field + _value_sketch(item, hashes))
    fields.sort()
    whole = _FIELD.join(fields)
    return whole if len(whole) <= MAX_SKETCH_CHARS else _bounded(fields, hashes)


def _with_one_rest(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return an object of `MAX_FIELDS` fields: the first ones by name, and all others as one value."""
    names = sorted(value, key=str)
    kept = {name: value[name] for name in names[: MAX_FIELDS - 1]}
    return kept | {"": [[str(name), value[name]] for name in names[MAX_FIELDS - 1 :]]}


def _bounded(fields: list[str], hashes: WordHashes) -> str:
    """Return the fields as one sketch; of one that is too long, the longest fields are folded."""
    whole = _FIELD.join(fields)
    if len(whole) <= MAX_SKETCH_CHARS:
        return whole
    size = MAX_SKETCH_CHARS // len(fields) - 1
    return _FIELD.join(sorted(field[:1] + _folded(field[1:], size - 1, hashes) for field in fields))


def _folded(words: str, size: int, hashes: WordHashes) -> str:
    """Return the hashes of words as at most `size` hashes, each of several words, so that the end still counts."""
    if len(words) <= size:
        return words
    step = -(-len(words) // size)
    return "".join(hashes[words[i : i + step].encode()] for i in range(0, len(words), step))


def _value_sketch(value: Any, hashes: WordHashes) -> str:
    if not isinstance(value, str):
        if value is None or isinstance(value, _SCALARS):
            return _SCALAR + hashes[str(value).encode()]
        return _SCALAR + hashes[dump(value)]
    words = words_of_text(value)
    if len(words) > MAX_FIELD_WORDS:
        # Of a long text, several words share a hash, so that its end still counts.
        step = -(-len(words) // MAX_FIELD_WORDS)
        words = [b" ".join(words[i : i + step]) for i in range(0, len(words), step)]
    return "".join(hashes.of(words))


def words_of_text(text: str) -> list[bytes]:
    """Return the words of a text in UTF-8."""
    if text.isascii():
        return text.encode().translate(_BREAKS).split()
    if _OTHER_SPACE.search(text):
        return list(map(encoded, _WORD.findall(text)))
    return encoded(text).translate(_ASCII_BREAKS).split()


def hashed_words(text: str, keyer: Keyer) -> str:
    """Return the words of a text in their order, as keyed hashes of one character."""
    return "".join(keyer.word_hashes.of(words_of_text(text)))


def word_places(text: str, count: int) -> list[tuple[int, int]]:
    """Return where the first words of `hashed_words` begin and end."""
    return [found.span() for found in islice(_WORD.finditer(text), count)]


def word_set(text: str, keyer: Keyer) -> str:
    """Return the words of a text without digits, once: sorted keyed hashes of one character, at most `MAX_SET_WORDS`.

    Which words are kept depends on their hashes alone, so two long texts keep the same ones.
    """
    words = words_of_text(_DIGITS.sub("", text))
    return "".join(sorted(set(map(keyer.word_hashes.__getitem__, words)))[:MAX_SET_WORDS])


def changed_words(one: str, other: str) -> tuple[int, int]:
    """Return how many words of two word sets are in one of them only, and how many there are in all.

    Beyond the last word of a full set, nothing is known of its text.
    """
    ends = [words[-1] for words in (one, other) if len(words) == MAX_SET_WORDS]
    mine, theirs = set(one), set(other)
    if ends:
        mine, theirs = ({word for word in words if word <= min(ends)} for words in (mine, theirs))
    return len(mine ^ theirs), len(mine | theirs)


def word_sample(text: str, keyer: Keyer) -> str:
    """Return at most `MAX_SAMPLE_WORDS` words of a text, with digits, as hashes of one character.

    They are chosen by their hashes, so that two texts with the same words have the same sample.
    """
    words = map(keyer.word_hashes.__getitem__, words_of_text(text.lower()))
    return "".join(sorted(set(words))[:MAX_SAMPLE_WORDS])


def sketch_similarity(one: str, other: str, ratio: float) -> float:
    """Return the similarity of two sketches, 0 to 1: the share of fields whose values are at least `ratio` similar.

    A single field is compared by its value. Two short texts are also similar if one contains all words of the other.
    """
    if one == other:
        return 1.0
    fields, others = one.split(_FIELD), other.split(_FIELD)
    if len(fields) == len(others) == 1:
        return _value_similarity(fields[0][1:], others[0][1:]) if fields[0][:1] == others[0][:1] else 0.0
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


def literal_arguments(arguments: Arguments, size: int) -> str:
    """Return arguments as JSON of at most `size` bytes, for `literal_similarity` of what it stands for.

    Long texts become signatures if the whole is too long, and the whole becomes one if that does not suffice.
    """
    value: Any = arguments
    if isinstance(value, str):
        value = value.strip()
        with suppress(ValueError):
            value = parse(value) if value else {}
    elif value is None:
        value = {}
    text = dump(value)
    if len(text) > size:
        text = _shortened(value, size) or dump(signature(text.decode("utf-8", "replace"), size))
    return text.decode("utf-8", "replace")


def literal_result(text: str, size: int) -> str:
    """Return the text of a result, in at most `size` bytes, for `literal_result_similarity`."""
    # What is stored must be valid text.
    text = text.encode("utf-8", "replace").decode()
    if len(text.encode()) <= size:
        return text
    with suppress(ValueError):
        value = parse(text)
        if isinstance(value, dict | list) and (short := _shortened(value, size)):
            return short.decode("utf-8", "replace")
    return signature(text, size)


def _shortened(value: Any, size: int) -> bytes:
    """Return a value whose long texts are signatures as JSON, nothing if it is still too long."""
    short = dump(_with_signatures(value, size, _MAX_DEPTH))
    return short if len(short) <= size else b""


def _with_signatures(value: Any, size: int, depth: int) -> Any:
    if isinstance(value, str):
        return signature(value, size) if len(encoded(value)) > _LONG_TEXT_BYTES else value
    if not depth:
        return value
    if isinstance(value, dict):
        return {name: _with_signatures(item, size, depth - 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_signatures(item, size, depth - 1) for item in value]
    return value


def signature(text: str, size: int) -> str:
    """Return what stands for a long text in at most `size` bytes: of up to 96 groups of its pairs of words, one each.

    It is the pair with the smallest hash (MinHash), so the share of equal groups of two signatures estimates the share
    of pairs that two texts have in common, wherever these differ. A pair that comes twice is two.
    """
    groups = [-1] * min(_MAX_GROUPS, (size - len(_SIGNATURE.encode())) // _SIGN_BYTES)
    times: dict[int, int] = {}
    before = 0
    for piece in _PIECES.findall(encoded(text)):
        pair, before = crc32(piece, before), crc32(piece)
        time = times[pair] = times.get(pair, 0) + 1
        rank, place = divmod((pair + time) * _MIXER & 0xFFFF_FFFF, len(groups))
        if not 0 <= groups[place] <= rank:
            groups[place] = rank
    return _SIGNATURE + "".join(
        chr(_FIRST_CODE_POINT + rank % _CODE_POINTS) if rank >= 0 else _NO_PAIR for rank in groups
    )


def _is_signature(value: Any) -> bool:
    return isinstance(value, str) and value[:1] == _SIGNATURE


def _signature_similarity(one: Any, other: Any) -> float:
    """Return the estimated share that two values have in common, of which at least one is a signature."""
    groups = max(len(value) for value in (one, other) if _is_signature(value)) - 1
    size = _SIGN_BYTES * groups + len(_SIGNATURE.encode())
    signatures = [
        value
        if _is_signature(value)
        else signature(value if isinstance(value, str) else dump(value).decode("utf-8", "replace"), size)
        for value in (one, other)
    ]
    if len(signatures[0]) != len(signatures[1]):
        return 0.0  # made under other settings
    pairs = [pair for pair in zip(*(made[1:] for made in signatures), strict=True) if pair != _NO_PAIRS]
    equal = sum(1 for mine, theirs in pairs if mine == theirs)
    return 2 * equal / (len(pairs) + equal) if pairs else 1.0


def literal_similarity(one: Any, other: Any, threshold: float) -> float:
    """Return the similarity of arguments by the literal formula: edit distance, share of matching keys, mean of a list.

    Two empty containers score 1; text and another type score by equality. Signatures of long texts are compared by the
    pairs of words that they have in common.
    """
    if _is_signature(one) or _is_signature(other):
        return _signature_similarity(one, other)
    if isinstance(one, str) and isinstance(other, str):
        return _text_similarity(one, other)
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
    if _is_signature(one) or _is_signature(other):
        return _signature_similarity(one, other)
    try:
        parsed, other_parsed = parse(one), parse(other)
    except ValueError:
        return _text_similarity(one, other)
    return literal_similarity(parsed, other_parsed, threshold)


def _text_similarity(one: str, other: str) -> float:
    if len(one) > MAX_LITERAL_CHARS or len(other) > MAX_LITERAL_CHARS:
        size = _SIGN_BYTES * _MAX_GROUPS + len(_SIGNATURE.encode())
        return 1.0 if one == other else _signature_similarity(signature(one, size), signature(other, size))
    return float(Levenshtein.normalized_similarity(one, other))
