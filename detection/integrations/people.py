"""What is a person's message: the one rule, for every way in which messages arrive.

Where a client reports a message, a person wrote it unless it is empty. A list of messages only has the user's side, in
which programs write, too: there, a text is a program's if it has the form of one, or for the circumstances in which it
came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from detection.integrations.program_texts import PROGRAM_TEXTS

MAX_GAPS: Final = 19
"""Remembered times between identical prompts, oldest first; the limit for identical prompts is at most one more."""
_HEAD_CHARACTERS: Final = 6_000
_LAST_CHARACTERS: Final = 4_000
_FORMS: Final = [
    (re.compile(rf"(?:{one.pattern})", re.IGNORECASE | re.DOTALL),
     re.compile(one.after, re.IGNORECASE | re.MULTILINE) if one.after else None)
    for one in PROGRAM_TEXTS
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How a text of the user's side came.

    Attributes
    ----------
    gaps
        Seconds between the answer before and each identical text in a row after the first, this one last.
    seconds
        Since the answer that it follows; None if that is not known.
    follows_block
        Whether LoopGuard ended that answer.
    """

    gaps: tuple[float, ...] = ()
    seconds: float | None = None
    follows_block: bool = False

    def is_of_program(self, max_identical: int, within_seconds: float) -> bool:
        """Return whether a program sent the text.

        Parameters
        ----------
        max_identical
            Which of identical texts in a row is a program's.
        within_seconds
            How soon after the answer a program writes. 0 means that circumstances say nothing.
        """
        if not within_seconds or self.seconds is None or self.seconds > within_seconds:
            return False
        latest = self.gaps[1 - max_identical :]
        is_series = len(latest) == max_identical - 1 and max(latest) <= within_seconds
        return self.follows_block or is_series


def is_reported_by_person(content: str | None) -> bool:
    """Return whether a reported message is a person's. One without content is: its client keeps texts to itself."""
    return content is None or bool(content.strip())


def is_program_text(text: str, before: str = "") -> bool:
    """Return whether a text of the user's side has a form that only programs write.

    Parameters
    ----------
    before
        Text of the message of the model that it follows; empty if there is none, or it is not known.
    """
    head = text.lstrip()[:_HEAD_CHARACTERS]
    return any(
        pattern.match(head) and (after is None or after.search(before[-_LAST_CHARACTERS:]))
        for pattern, after in _FORMS
    )
