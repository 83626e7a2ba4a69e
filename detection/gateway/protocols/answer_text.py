"""What an answer says: as much of its text and reasoning as is reported, and whether either repeats itself."""

from __future__ import annotations

from typing import Final

from detection.engine.text_repetition import RepetitionScanner, longest_repetition

KEPT_CHARACTERS: Final = 8_000
"""Of the beginning of a text, and of its end: together less than an event keeps."""
MAX_WHOLE_CHARACTERS: Final = 1_000_000
"""Of a text that may be cut: the protocol of responses repeats all of it in its last event."""
CUT: Final = "[LoopGuard ended this answer because it repeats itself.]"
_OMITTED: Final = " … "


class BoundedText:
    """The beginning and the end of a text that arrives in parts.

    Attributes
    ----------
    repeats_itself
        Whether the text was found to repeat itself; only where `watch` was called.
    """

    def __init__(self) -> None:
        self.repeats_itself = False
        self._head: list[str] = []
        self._free = KEPT_CHARACTERS
        self._tail = ""
        self._is_cut = False
        self._scanner: RepetitionScanner | None = None

    def watch(self, max_words: int) -> None:
        """Look for a repetition of so many words while the text arrives."""
        self._scanner = RepetitionScanner(max_words)
        self._free = MAX_WHOLE_CHARACTERS

    def add(self, text: str) -> None:
        """Add the next part."""
        if self._scanner is not None and not self.repeats_itself:
            self.repeats_itself = self._scanner.feed(text)
        if self._free:
            self._head.append(text[: self._free])
            text, self._free = text[self._free :], max(0, self._free - len(text))
        if text:
            tail = self._tail + text
            self._is_cut = self._is_cut or len(tail) > KEPT_CHARACTERS
            # Cut at twice the length, so that a text of many parts is not copied with each of them.
            self._tail = tail[-KEPT_CHARACTERS:] if len(tail) > 2 * KEPT_CHARACTERS else tail

    @property
    def whole(self) -> str:
        """The text, without its middle if it is too long."""
        return "".join((*self._head, _OMITTED if self._is_cut else "", self._tail[-KEPT_CHARACTERS:]))

    @property
    def excerpt(self) -> str:
        """The text as it is reported: at most `KEPT_CHARACTERS` of its beginning and of its end."""
        text = self.whole
        if len(text) <= 2 * KEPT_CHARACTERS:
            return text
        return f"{text[:KEPT_CHARACTERS]}{_OMITTED}{text[-KEPT_CHARACTERS:]}"


class AnswerText:
    """The text of an answer and its reasoning."""

    def __init__(self) -> None:
        self.text, self.thinking = BoundedText(), BoundedText()

    def watch(self, max_words: int) -> None:
        """Look for a repetition of so many words while the answer arrives."""
        self.text.watch(max_words)
        self.thinking.watch(max_words)

    @property
    def repeats_itself(self) -> bool:
        """Whether the answer was found to repeat itself; only where `watch` was called."""
        return self.text.repeats_itself or self.thinking.repeats_itself

    def reported(self, max_words: int, *, has_calls: bool) -> list[str]:
        """Return the texts to report.

        A text beside calls, and reasoning, are reported only if they repeat themselves. An answer without calls is
        reported in any case, even if it is empty.

        Parameters
        ----------
        max_words
            The limit for repeated words; 0 if nobody looks for them.
        """
        thinking, text = self.thinking.excerpt, self.text.excerpt
        found = [thinking] if max_words and longest_repetition(thinking, max_words) else []
        if not has_calls or (max_words and longest_repetition(text, max_words)):
            found.append(text)
        return found


def without_cut_reasoning(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return a conversation without reasoning that the gateway has cut; the same messages where nothing changes.

    It has no signature, and Anthropic's model server rejects reasoning without one.
    """
    return [_without_cut(message) for message in messages] if any(map(_is_cut, messages)) else messages


def _is_cut(message: dict[str, object]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and str(block.get("text")).endswith(CUT) for block in content
    )


def _without_cut(message: dict[str, object]) -> dict[str, object]:
    content = message.get("content")
    if not isinstance(content, list) or not _is_cut(message):
        return message
    kept = [one for one in content if one.get("type") != "thinking" or one.get("signature")]
    return message | {"content": kept}
