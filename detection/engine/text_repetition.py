"""Finds a word, line or block that a text repeats again and again, in constant memory and while the text arrives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_PERIOD_TOKENS: Final = 512
"""The longest block that is recognised: about 350 words, longer than a screen of text."""
MIN_REPEATS: Final = 6
"""Times that a block must stand in a row: a chorus or a table's rule stands four or five times."""
MAX_WORDLESS_TOKENS: Final = 2000
"""So many numbers and signs in a row may repeat: a matrix of zeros, a ruler, an empty table."""
MIN_WORD_SHARE: Final = 0.25
"""Share of words among the repeated tokens; with fewer they count as numbers and signs."""

# A word of any script, in pieces of at most 16 characters: scripts without spaces have no others, and a single letter
# may go on for pages. Every other sign stands for itself.
MAX_TOKEN_CHARS: Final = 16
_CONTEXT_BITS: Final = 8
"""By which each word shifts a context of 64 bits, so that it is one of the latest eight words."""
_CONTEXT_MASK: Final = (1 << 8 * _CONTEXT_BITS) - 1  # of the eight words
_TOKEN: Final = re.compile(rf"[^\W_]{{1,{MAX_TOKEN_CHARS}}}|[^\w\s]|_")


@dataclass(frozen=True, slots=True)
class Repetition:
    """A stretch of a text that consists of one block in a row.

    Attributes
    ----------
    words
        How many words and signs the stretch has.
    block
        How many the block has.
    """

    words: int
    block: int

    @property
    def repeats(self) -> int:
        """How often the block stands in a row."""
        return self.words // self.block


class RepetitionScanner:
    """Reads a text part by part, and keeps its longest repetition.

    Costs about a microsecond a word, and the same memory for any text: the latest `MAX_PERIOD_TOKENS` words as numbers.

    Parameters
    ----------
    min_words
        Words and signs that a repetition must have.
    """

    __slots__ = (
        "_before",
        "_context",
        "_count",
        "_last",
        "_last_in_context",
        "_min_words",
        "_period",
        "_rest",
        "_ring",
        "_run",
        "_words",
        "longest",
    )

    def __init__(self, min_words: int) -> None:
        self._min_words = min_words
        self._ring = [0] * MAX_PERIOD_TOKENS
        self._last: dict[tuple[int, int], int] = {}
        self._last_in_context: dict[int, int] = {}
        self._before = self._context = self._count = self._period = self._run = self._words = 0
        self._rest = ""
        self.longest: Repetition | None = None

    def feed(self, text: str) -> bool:
        """Read the next part of the text; return whether a repetition was found by now."""
        tokens = _TOKEN.findall(self._rest + text)
        # The part may end within a word.
        is_open = bool(tokens) and text[-1:].isalnum() and len(tokens[-1]) < MAX_TOKEN_CHARS
        self._rest = tokens.pop() if is_open else ""
        self._read(tokens)
        return self.longest is not None or self._is_repetition

    def finish(self) -> Repetition | None:
        """Read what may have been an unfinished word, and return the longest repetition."""
        if self._rest:
            self._read([self._rest])
            self._rest = ""
        self._note()
        return self.longest

    def _read(self, tokens: list[str]) -> None:
        ring, size, last, last_in_context = self._ring, MAX_PERIOD_TOKENS, self._last, self._last_in_context
        before, context, count = self._before, self._context, self._count
        for word in tokens:
            token = hash(word)
            context = (context << _CONTEXT_BITS ^ token) & _CONTEXT_MASK
            if self._period and ring[(count - self._period) % size] == token:
                self._run += 1
                self._words += word[0].isalpha()
            else:
                self._note()
                # A block of few words has its pairs several times, and the latest is no block ago.
                seen = last_in_context.get(context, -size)
                if count - seen >= size:
                    seen = last.get((before, token), -size)
                self._period = count - seen if count - seen < size else 0
                self._run = self._words = 0
            last[before, token] = last_in_context[context] = count
            ring[count % size] = before = token
            count += 1
            if len(last_in_context) > 2 * size:
                self._last = last = {pair: at for pair, at in last.items() if count - at < size}
                last_in_context = {words: at for words, at in last_in_context.items() if count - at < size}
                self._last_in_context = last_in_context
        self._before, self._context, self._count = before, context, count

    @property
    def _is_repetition(self) -> bool:
        """Whether the stretch in hand is one."""
        run, period = self._run, self._period
        is_long = run + period >= self._min_words and run >= (MIN_REPEATS - 1) * period
        return is_long and (self._words >= MIN_WORD_SHARE * run or run >= MAX_WORDLESS_TOKENS)

    def _note(self) -> None:
        """Keep the stretch in hand if it is the longest repetition."""
        words = self._run + self._period
        if self._is_repetition and (self.longest is None or words > self.longest.words):
            self.longest = Repetition(words, self._period)


def longest_repetition(text: str, min_words: int) -> Repetition | None:
    """Return the longest repetition of a whole text of at least `min_words` words, or None."""
    scanner = RepetitionScanner(min_words)
    scanner.feed(text)
    return scanner.finish()
