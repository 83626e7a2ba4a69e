"""Errors of the engine."""

from __future__ import annotations


class PolicyError(ValueError):
    """A scope or setting that is not allowed; the text is one sentence that names it.

    Attributes
    ----------
    field : str
        The setting or scope name at fault.
    message : str
        What is wrong and what is allowed, as the rest of a sentence: "must be between 1 and 31,536,000".
    others : tuple of PolicyError
        Further errors of the same override.
    """

    def __init__(self, field: str, message: str, others: tuple[PolicyError, ...] = ()) -> None:
        super().__init__(f"`{field}` {message}.")
        self.field = field
        self.message = message
        self.others = others
