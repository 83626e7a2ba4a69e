"""Paths of wrong settings within a body."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from detection.api.problems import Problem
from detection.engine.fields import FIELDS
from detection.services.errors import Invalid
from detection.strict_json import join


@contextmanager
def setting_errors(path: str, values: dict[str, object]) -> Iterator[None]:
    """Give the path of every wrong setting within the body."""
    try:
        yield
    except Invalid as error:
        paths = {
            name: join(path, name) if name in FIELDS or name in values else name for name in error.errors
        }
        errors = [
            {"path": paths[name], "code": error.code, "hint": hint} for name, hint in error.errors.items()
        ]
        raise Problem(
            error.status,
            error.code,
            error.detail,
            path=paths.get(error.field, error.field),
            errors=errors if len(errors) > 1 else None,
        ) from error
