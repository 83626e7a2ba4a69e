"""Signatures of texts: which pieces of four bytes occur in them, so that a search reads few texts without its words.

A signature is a Bloom filter with one position for each piece. It says "certainly not" or "perhaps": texts are read
before anything is said of them, and cannot be read from it. It is much smaller than an index of words, finds parts of
words, and needs nothing of the database but `get_bit`. Measured beside `tsvector` and `pg_trgm`:
docs/decisions/0026-search-by-signatures.md.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable
from typing import Final

PIECE_BYTES: Final = 4
"""With three bytes, numbers would say nothing: most of the thousand triples of digits occur in a few dozen calls."""
SIZES: Final = (1021, 2039, 4093, 8191, 16381, 32749, 65521)
"""Lengths in bits, primes: the remainder of a piece is its position. The three longest are for single long texts; the
others stay in the page of their row."""
BITS_PER_PIECE: Final = 3
"""Length of a new signature, in bits for each of its pieces; half of them are for later ones. A word that is not there
has several pieces, and each must meet a bit that is set: with a quarter of them set, five pieces do once in a
thousand signatures."""
MAX_FILL: Final = 0.4
"""Share of bits that are set up to which pieces are added to a signature."""
MAX_TERMS, MAX_CHARACTERS = 20, 1_000
_TERM = re.compile(r'"([^"]+)"|([^\s"]+)')


def folded(text: str) -> str:
    """Return a text as it is compared: without the difference of upper and lower case."""
    return text.lower()


def terms_of(query: str) -> tuple[str, ...]:
    """Return the words and the phrases in quotes of a query, each once, as they are compared."""
    found = (folded(phrase or word) for phrase, word in _TERM.findall(query[:MAX_CHARACTERS]))
    return tuple(dict.fromkeys(term for term in found if term.strip()))[:MAX_TERMS]


def pieces_of(text: str) -> set[int]:
    """Return the pieces of a text that is folded, as numbers. About 40 ns a byte."""
    data = text.encode("utf-8", "surrogatepass")
    found: set[int] = set()
    for start in range(min(PIECE_BYTES, len(data) - PIECE_BYTES + 1)):
        pieces = array("I", data[start : len(data) - (len(data) - start) % PIECE_BYTES])
        if sys.byteorder == "big":
            pieces.byteswap()
        found.update(pieces)
    return found


def size_for(pieces: int) -> int:
    """Return the length in bits of a new signature."""
    return next((size for size in SIZES if size >= pieces * BITS_PER_PIECE), SIZES[-1])


def with_pieces(signature: bytes, bits: int, pieces: Iterable[int]) -> tuple[bytes, float]:
    """Return a signature of this length with more pieces, and which share of its bits is set."""
    content = bytearray(signature or bytes((bits + 7) // 8))
    for position in {*map(bits.__rmod__, pieces)}:
        content[position >> 3] |= 1 << (position & 7)
    return bytes(content), int.from_bytes(content, "little").bit_count() / bits
