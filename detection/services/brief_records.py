"""Records that pages keep for a few minutes, in a table that all `web` processes share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone
from django.utils.crypto import salted_hmac

from detection.models import BriefRecord

BATCH_EXPIRED = 5_000
_ADD = """
    INSERT INTO detection_briefrecord AS known (key, value, expires_at)
    VALUES (%s, NULL, now() + make_interval(secs => %s))
    ON CONFLICT (key) DO UPDATE SET value = NULL, expires_at = excluded.expires_at WHERE known.expires_at < now()
"""


def key_of(*parts: object) -> str:
    """Return the key of a subject: a digest, so that the table does not reveal it."""
    return salted_hmac("brief-record", repr(parts), algorithm="sha256").hexdigest()


def claim(key: str, seconds: float) -> bool:
    """Create an empty record; False if there is one that has not expired. One statement, so one of several wins."""
    with connection.cursor() as cursor:
        cursor.execute(_ADD, [key, seconds])
        return bool(cursor.rowcount)


def store(key: str, value: Any, seconds: float) -> None:
    """Set a record."""
    expires_at = timezone.now() + timedelta(seconds=seconds)
    BriefRecord.objects.update_or_create(pk=key, defaults={"value": value, "expires_at": expires_at})


def load(key: str) -> tuple[bool, Any]:
    """Return whether there is a record, and its value."""
    found = BriefRecord.objects.filter(pk=key, expires_at__gt=timezone.now()).values_list("value").first()
    return (False, None) if found is None else (True, found[0])


def delete(key: str) -> None:
    """Delete a record."""
    BriefRecord.objects.filter(pk=key).delete()


def forget_expired() -> None:
    """Delete the records that have expired."""
    expired = BriefRecord.objects.filter(expires_at__lt=timezone.now()).values("pk")[:BATCH_EXPIRED]
    while BriefRecord.objects.filter(pk__in=expired).delete()[0] == BATCH_EXPIRED:
        pass
