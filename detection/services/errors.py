"""What a service may refuse; doors turn each into their own kind of answer."""

from __future__ import annotations


class ServiceError(Exception):
    """A refusal with a stable code, a sentence for people and, where one is to blame, the field.

    Attributes
    ----------
    code
        Stable, in snake case; part of the public contract.
    status
        The HTTP status that fits.
    """

    code = "refused"
    status = 422

    def __init__(self, detail: str, *, field: str = "", code: str = "") -> None:
        super().__init__(detail)
        self.detail, self.field = detail, field
        self.code = code or type(self).code


class NotFound(ServiceError):
    """There is no such thing in this project."""

    code, status = "not_found", 404


class Conflict(ServiceError):
    """The thing is not in a state that allows it."""

    code, status = "conflict", 409


class Invalid(ServiceError):
    """A value is not valid."""

    code, status = "invalid", 422
