"""Errors that services raise; each entry point turns them into its own kind of response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Row = TypeVar("_Row")
_NOT_FOUND = "Not found in this project."


class ServiceError(Exception):
    """An error with a stable code, a message for people and, if applicable, the field at fault.

    Attributes
    ----------
    code
        Stable, in snake case; part of the public contract.
    status
        The matching HTTP status.
    """

    code = "rejected"
    status = 422

    def __init__(self, detail: str, *, field: str = "", code: str = "") -> None:
        super().__init__(detail)
        self.detail, self.field = detail, field
        self.code = code or type(self).code


class NotFound(ServiceError):
    """The object does not exist in this project."""

    code, status = "not_found", 404

    def __init__(self, detail: str = _NOT_FOUND) -> None:
        super().__init__(detail)


def found(row: _Row | None, detail: str = _NOT_FOUND) -> _Row:
    """Return a row that was looked for, or raise `NotFound`."""
    if row is None:
        raise NotFound(detail)
    return row


class Conflict(ServiceError):
    """The current state does not allow the change."""

    code, status = "conflict", 409


class SessionBusy(ServiceError):
    """Too many requests wait for the lock of one session."""

    code, status = "unavailable", 503


class NotStorable(ServiceError):
    """An event is valid, but the database cannot store it: a defect of LoopGuard, which the log describes."""

    code = "not_storable"

    def __init__(self) -> None:
        super().__init__("The event cannot be stored. The log has the details for this request id.")


class Invalid(ServiceError):
    """A value is not valid.

    Attributes
    ----------
    errors
        What is wrong by field, one sentence each; `detail` and `field` are those of the first.
    """

    code, status = "invalid", 422

    def __init__(
        self, detail: str, *, field: str = "", code: str = "", errors: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail, field=field, code=code)
        self.errors = errors or {field: detail}
