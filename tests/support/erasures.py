"""Lets erasures fail in the database."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def failing_erasures(but: str = "none") -> Iterator[None]:
    """No session can be deleted, but the one of this name; the error contains the name of the session."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF OLD.external_id <> '{but}' THEN RAISE EXCEPTION 'not %%', OLD.external_id; END IF; RETURN OLD; END $$;"
            "CREATE TRIGGER fails BEFORE DELETE ON detection_session FOR EACH ROW EXECUTE FUNCTION fails()",
            [],
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION fails CASCADE")
