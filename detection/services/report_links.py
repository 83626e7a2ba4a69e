"""The report of a week as messages have it: its sentence, and the token of the link that opens it."""

from __future__ import annotations

import hmac
from datetime import date, datetime, timedelta
from typing import Final

from django.conf import settings
from django.utils.crypto import salted_hmac

from detection.engine import durations
from detection.models.alert_facts import ReportFacts
from detection.services import keys

PREFIX: Final = "lgr_"


def sentence(row: ReportFacts) -> str:
    """Return what happened in the week, in a sentence."""
    now, before, loops = row["loop_cost_usd"], row["loop_cost_usd_before"], row["loops"]
    if not now:
        return f"{loops:,} loop{'' if loops == 1 else 's'} began in these 7 days; no cost of them is known."
    words = f"Loops cost {durations.money(now)} in these 7 days"
    change = round(100 * (now - before) / before) if before else 0
    if not change:
        return f"{words}."
    return f"{words}, {abs(change):,} % {'less' if change < 0 else 'more'} than in the 7 days before."


def last_day(row: ReportFacts) -> date:
    """Return the last day of the week of a report."""
    return (datetime.fromisoformat(row["ends_at"]) - timedelta(days=1)).date()


def token_of(public_id: str, secret_key: str | None = None) -> str:
    """Return the token of a link. It follows from the secret of the installation, so it is stored nowhere.

    Parameters
    ----------
    secret_key
        None for the present one.
    """
    secret = salted_hmac(__name__, public_id, secret_key, algorithm="sha256").hexdigest()
    return keys.token_with(PREFIX, public_id, secret)


def opens(token: str, public_id: str) -> bool:
    """Return whether a token is that of a link, under the present secret or an earlier one that is still valid."""
    known = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return any(hmac.compare_digest(token_of(public_id, one), token) for one in known)
