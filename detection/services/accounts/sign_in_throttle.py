"""Throttle of failed sign-ins by account and by address, with a growing wait.

An attempt counts as failed before it is checked, and is withdrawn when it was right: so parallel attempts are throttled
like those in sequence. Existing sign-ins and the account itself are not affected: only new attempts have to wait. The
counts have a table of their own, in which no number of other names displaces them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction
from django.db.models import Case, F, Value, When
from django.utils import timezone
from django.utils.crypto import salted_hmac

from detection.models import FailedSignIns

FREE_TRIES = 5
FREE_TRIES_PER_ADDRESS = 20
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 900.0
FORGET_AFTER = timedelta(hours=1)
BATCH_EXPIRED = 5_000
_NO_WAIT = datetime(2000, 1, 1, tzinfo=UTC)
# The clock is read once the row is locked, so what a parallel attempt has just stored counts. A place that has to wait
# is not returned.
_COUNT = """
    INSERT INTO detection_failedsignins AS known (place, count, not_before, expires_at)
    SELECT place, 1, %(no_wait)s, clock_timestamp() + make_interval(secs => %(forget)s)
    FROM unnest(%(places)s::text[]) AS place ORDER BY place
    ON CONFLICT (place) DO UPDATE SET
        count = CASE WHEN known.expires_at < clock_timestamp() THEN 1 ELSE known.count + 1 END,
        expires_at = excluded.expires_at
    WHERE known.not_before <= clock_timestamp()
    RETURNING place, count
"""


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """An attempt that was counted, unless it has to wait.

    Attributes
    ----------
    wait_seconds
        Until the next attempt is checked; 0 if this one is.
    """

    wait_seconds: int
    _not_before: dict[str, datetime] = field(default_factory=dict, repr=False)

    def withdraw(self) -> None:
        """Stop counting an attempt that succeeded.

        The wait that it started ends, unless a later attempt started one.
        """
        for place, not_before in self._not_before.items():
            FailedSignIns.objects.filter(place=place, count__gt=0).update(
                count=F("count") - 1,
                not_before=Case(When(not_before=not_before, then=Value(_NO_WAIT)), default=F("not_before")),
            )


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


def begin(username: str, address: str) -> SignInAttempt:
    """Count an attempt of an account at an address, if it may be checked; after free ones, each doubles the wait."""
    places = _places(username, address)
    with transaction.atomic():
        with connection.cursor() as cursor:
            forget_seconds = FORGET_AFTER.total_seconds()
            cursor.execute(_COUNT, {"places": sorted(places), "forget": forget_seconds, "no_wait": _NO_WAIT})
            counts = dict(cursor.fetchall())
        if len(counts) == len(places):
            return SignInAttempt(0, _started_waits(places, counts))
        transaction.set_rollback(True)
    return SignInAttempt(max(1, wait_seconds(username, address)))


def _started_waits(places: dict[str, int], counts: dict[str, int]) -> dict[str, datetime]:
    now = timezone.now()
    waits = dict.fromkeys(places, _NO_WAIT)
    for place, count in counts.items():
        over = count - places[place]
        if over >= 0:
            wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(over, 20))
            waits[place] = now + timedelta(seconds=wait)
            FailedSignIns.objects.filter(place=place).update(not_before=waits[place])
    return waits


def wait_seconds(username: str, address: str) -> int:
    """Return how long this account at this address has to wait before the next attempt; 0 if it does not."""
    now = timezone.now()
    rows = FailedSignIns.objects.filter(place__in=_places(username, address), not_before__gt=now)
    return max((math.ceil((row.not_before - now).total_seconds()) for row in rows), default=0)


def forget(username: str, address: str) -> None:
    """Forget the failed attempts of this account at this address, after a sign-in."""
    FailedSignIns.objects.filter(place=next(iter(_places(username, address)))).delete()


def forget_expired() -> None:
    """Delete the counts that no longer matter."""
    expired = FailedSignIns.objects.filter(expires_at__lt=timezone.now()).values("pk")[:BATCH_EXPIRED]
    while FailedSignIns.objects.filter(pk__in=expired).delete()[0] == BATCH_EXPIRED:
        pass
