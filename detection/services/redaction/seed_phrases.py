"""Finds seed phrases of wallets: 12 to 24 words of the list of BIP 39, with a right checksum."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

from mnemonic import Mnemonic

LENGTHS = (24, 21, 18, 15, 12)
_BITS_PER_WORD = 11
_NUMBERS = {word: number for number, word in enumerate(Mnemonic("english").wordlist)}
HINT = r"(?:[a-z]{3,8}[\s,.0-9)]+){11}[a-z]{3,8}"
"""What each text with a phrase contains; few texts of another kind do."""
_WORD = re.compile(r"[A-Za-z]+")
_BETWEEN = re.compile(r"[\s,.0-9)\"']{1,12}")
"""Words may be numbered, and on lines of their own."""


def find_phrases(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the seed phrases in a text."""
    words = [*_WORD.finditer(text)]
    after = 0
    # Of any twelve words that follow one another, one stands at one of these places.
    for at in range(LENGTHS[-1] - 1, len(words), LENGTHS[-1]):
        if at >= after and _number(words[at]) is not None:
            start = at
            while start > after and _continues(text, words[start - 1], words[start]):
                start -= 1
            after = at + 1
            while after < len(words) and _continues(text, words[after - 1], words[after]):
                after += 1
            yield from _phrases_of_run(words[start:after])


def _number(word: re.Match[str]) -> int | None:
    return _NUMBERS.get(word[0].lower())


def _continues(text: str, word: re.Match[str], following: re.Match[str]) -> bool:
    """Return whether two words of the list stand together."""
    return (
        _number(word) is not None
        and _number(following) is not None
        and _BETWEEN.fullmatch(text, word.end(), following.start()) is not None
    )


def _phrases_of_run(run: list[re.Match[str]]) -> Iterator[tuple[int, int, str]]:
    at = 0
    while at + LENGTHS[-1] <= len(run):
        count = next((count for count in LENGTHS if _is_phrase(run[at : at + count], count)), 0)
        if count:
            yield run[at].start(), run[at + count - 1].end(), "seed-phrase"
        at += count or 1


def _is_phrase(words: list[re.Match[str]], count: int) -> bool:
    """Return whether there are so many words, most of them different, and their checksum is right."""
    numbers = [_NUMBERS[word[0].lower()] for word in words]
    if len(numbers) != count or len({*numbers}) * 2 < count:
        return False
    bits = "".join(f"{number:0{_BITS_PER_WORD}b}" for number in numbers)
    checked = len(bits) // 33
    entropy = int(bits[:-checked], 2).to_bytes(checked * 4, "big")
    return f"{sha256(entropy).digest()[0]:08b}"[:checked] == bits[-checked:]
