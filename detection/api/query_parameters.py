"""Query strings and names in paths: what is unknown or cannot be a name is refused before anything is asked."""

from __future__ import annotations

from typing import TypeVar

from django.http import HttpRequest
from ninja import Schema

from detection.api.auth import actor, project_of
from detection.api.problems import Problem
from detection.services.audit import Actor
from detection.services.errors import NotFound
from detection.strict_json import shorten

Row = TypeVar("Row")


def refuse_unknown(request: HttpRequest, schema: type[Schema]) -> None:
    """Refuse parameters that the route does not know: a mistyped filter must not read as none."""
    unknown = request.GET.keys() - schema.model_fields.keys()
    if unknown:
        known = ", ".join(schema.model_fields)
        raise Problem(422, "unknown_parameter", f"There are: {known}.", path=shorten(min(unknown)))


def existing_name(name: str) -> str:
    """Return a name out of a path; one that nothing can have is not found."""
    if "\x00" in name or len(name) > 1000:
        raise NotFound("There is no such thing in this project.")
    return name


def existing(row: Row | None, what: str) -> Row:
    """Return what was looked up; `what` says in words what it would have been."""
    if row is None:
        raise NotFound(f"There is no such {what} in this project.")
    return row


def target(request: HttpRequest, name: str) -> tuple[int, str, Actor]:
    """Return what a service is told that changes one thing: the project, the thing's name in the path, and who asks."""
    return project_of(request), existing_name(name), actor(request)


def new_name(name: str, path: str, length: int) -> str:
    """Return a name that something is to be stored under."""
    if not name.isprintable() or not name.strip():
        raise Problem(422, "invalid_characters", "Only printable characters.", path=path)
    if len(name) > length:
        raise Problem(422, "too_long", f"At most {length} characters.", path=path)
    return name
