"""Throttle of failed sign-ins by account and by address, with a growing wait.

Existing logins and the account itself are not affected: only further attempts have to wait. The counts have a table of
their own, in which no number of other names displaces them.
"""

from __future__ import annotations

import math
from datetime import timedelta

from django.db import connection, transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac

from detection.models import FailedSignIns

FREE_TRIES = 5
FREE_TRIES_PER_ADDRESS = 20
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 900.0
FORGET_AFTER = timedelta(hours=1)
BATCH_EXPIRED = 5_000
_COUNT = """
    INSERT INTO detection_failedsignins AS known (place, count, not_before, expires_at)
    SELECT place, 1, now(), now() + make_interval(secs => %(forget)s)
    FROM unnest(%(places)s::text[]) AS place ORDER BY place
    ON CONFLICT (place) DO UPDATE SET
        count = CASE WHEN known.expires_at < now() THEN 1 ELSE known.count + 1 END,
        expires_at = excluded.expires_at
    RETURNING place, count
"""


def _places(username: str, address: str) -> dict[str, int]:
    """Return the places that a sign-in counts at, with the free tries of each."""

    def digest(kind: str, text: str) -> str:
        return salted_hmac("sign-in", f"{kind}:{text}", algorithm="sha256").hexdigest()

    name = username.strip().casefold()[:300]
    return {
        digest("both", f"{name}\n{address}"): FREE_TRIES,
        digest("account", name): FREE_TRIES * 4,
        digest("address", address): FREE_TRIES_PER_ADDRESS,
    }


def wait_seconds(username: str, address: str) -> int:
    """Return how long this account at this address has to wait before the next try; 0 if it does not."""
    now = timezone.now()
    rows = FailedSignIns.objects.filter(place__in=_places(username, address), not_before__gt=now)
    return max((math.ceil((row.not_before - now).total_seconds()) for row in rows), default=0)


@transaction.atomic
def failed(username: str, address: str) -> None:
    """Count a failed try; each one beyond the free ones doubles the wait."""
    places = _places(username, address)
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, {"places": sorted(places), "forget": FORGET_AFTER.total_seconds()})
        counts = dict(cursor.fetchall())
    now = timezone.now()
    for place, count in sorted(counts.items()):
        over = count - places[place]
        if over >= 0:
            wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(over, 20))
            FailedSignIns.objects.filter(place=place).update(not_before=now + timedelta(seconds=wait))


def succeeded(username: str, address: str) -> None:
    """Forget the failed tries of this account at this address."""
    FailedSignIns.objects.filter(place=next(iter(_places(username, address)))).delete()


def forget_expired() -> None:
    """Delete the counts that no longer matter."""
    expired = FailedSignIns.objects.filter(expires_at__lt=timezone.now()).values("pk")[:BATCH_EXPIRED]
    while FailedSignIns.objects.filter(pk__in=expired).delete()[0] == BATCH_EXPIRED:
        pass
