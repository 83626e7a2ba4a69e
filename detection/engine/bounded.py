"""Sets and tables of bounded size, and the hashes in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

# 768 bytes of a state of 32 KiB: a result that comes again after 192 others counts as new; a judgement.
MAX_RESULTS = 192
# 32 bits: with 192 results kept, one new result in 20 million is taken for a known one.
HASH_BYTES = 4

_Value = TypeVar("_Value")


@dataclass(slots=True)
class RecentHashes:
    """A bounded set of 32-bit hashes, oldest first.

    The hashes stay packed, four bytes each: a session is stored and loaded at every call and looks up only one or two.
    """

    packed: bytes = b""

    def __len__(self) -> int:
        return len(self.packed) // HASH_BYTES

    def find(self, value: bytes) -> int:
        """Return the offset of a hash, or -1."""
        place = self.packed.find(value)
        # The end of one hash and the start of the next may look like a third.
        while place % HASH_BYTES and place > 0:
            place = self.packed.find(value, place + 1)
        return place

    def add(self, value: bytes, limit: int) -> None:
        """Append a hash; the oldest ones above the limit are dropped."""
        self.packed = (self.packed + value)[-HASH_BYTES * limit :]

    def add_new(self, value: bytes, limit: int) -> bool:
        """Append a hash unless it is there; return whether it was new."""
        packed = self.packed
        # Most are new, which the bytes alone tell.
        if packed.find(value) >= 0 and self.find(value) >= 0:
            return False
        self.packed = (packed + value)[-HASH_BYTES * limit :]
        return True

    def remove(self, value: bytes) -> None:
        """Remove a hash if it is there."""
        place = self.find(value)
        if place >= 0:
            self.packed = self.packed[:place] + self.packed[place + HASH_BYTES :]

    def renew(self, place: int) -> None:
        """Move the hash at this offset to the end, so that it is dropped last."""
        packed = self.packed
        self.packed = packed[:place] + packed[place + HASH_BYTES :] + packed[place : place + HASH_BYTES]


def hash_of(text: str) -> int:
    """Return a 32-bit hash of an id; never 0, which stands for no id."""
    # Ids are nearly always ASCII, and encoding those without an error handler is faster.
    return crc32(text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")) or 1


def drop_oldest(table: dict[str, _Value], limit: int) -> None:
    """Remove the oldest entries above the limit."""
    while len(table) > limit:
        del table[next(iter(table))]
