"""Parses the JSON of one result once, however many questions are asked about it."""

from __future__ import annotations

from typing import Any

from detection.engine.identity import parse


class JsonText:
    """The text of JSON that was parsed last, with its value. Lives as long as one result is read."""

    __slots__ = ("_text", "_value")

    def __init__(self) -> None:
        self._text: str | None = None
        self._value: Any = None

    def value_of(self, text: str) -> Any:
        """Return the value of a text, which nobody changes.

        Raises
        ------
        ValueError
            If the text is not JSON or is nested too deeply.
        """
        if text != self._text:
            self._value, self._text = parse(text), text
        return self._value

    def object_of(self, text: str) -> dict[str, object] | None:
        """Return the value of a text; None unless it is an object."""
        try:
            value = self.value_of(text)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None
