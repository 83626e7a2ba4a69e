"""Reads of the gateway's traffic: requests, errors, tokens, cost and added time, over time and by backend or model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from django.db import connection
from django.utils import timezone

from detection.models import TrafficPeriod

TrafficGroup = Literal["minute", "hour", "day", "backend", "model"]
ERROR_KINDS: Final = (
    "unreachable", "timeouts", "rate_limited", "client_errors", "server_errors", "cut", "unreadable",
)  # fmt: skip
TOKEN_KINDS: Final = (
    "input_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "unpriced_tokens",
)
ADDED_MS: Final = (1, 2, 5, 10, 15, 25, 50, 100, 250, 500, 1_000, 2_500)
"""Upper limits of the steps in which added times are counted, in milliseconds; one more step is above the last."""
MINUTES_SPAN: Final = timedelta(hours=48)
"""How long minutes are kept."""
MAX_MINUTES_READ: Final = timedelta(hours=6)
"""Longer spans are read from hours, unless they are shown by the minute."""
MAX_ROWS: Final = 3_000


@dataclass(slots=True)
class TrafficNumbers:
    """Counts of requests; see `models.GatewayTraffic`.

    Attributes
    ----------
    errors
        By kind, all of `ERROR_KINDS`.
    abandoned
        Requests whose client left before the end of the response: it had enough, or it gave up waiting.
    unguarded
        Requests of other paths than those that are guarded, except for lists of models and counts of tokens.
    """

    requests: int = 0
    abandoned: int = 0
    unguarded: int = 0
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ERROR_KINDS, 0))
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    unpriced_tokens: int = 0
    priced_usd: float = 0.0
    added_counts: list[int] = field(default_factory=lambda: [0] * (len(ADDED_MS) + 1))
    added_ms: float = 0.0

    @property
    def token_count(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @property
    def error_count(self) -> int:
        """Errors of all kinds."""
        return sum(self.errors.values())

    @property
    def cost_usd(self) -> float | None:
        """Cost of the tokens that have a price; None if there are tokens and none has one."""
        return None if self.unpriced_tokens and self.unpriced_tokens >= self.token_count else self.priced_usd

    def added_ms_at(self, share: float) -> float | None:
        """Return a quantile of the added time in milliseconds, interpolated within its step; None without requests."""
        total = sum(self.added_counts)
        if not total:
            return None
        left, low = share * total, 0.0
        for count, high in zip(self.added_counts, ADDED_MS, strict=False):
            if count and left <= count:
                return low + (high - low) * left / count
            left, low = left - count, float(high)
        return low


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """One group: a time, a backend or a model, and its numbers."""

    key: str
    numbers: TrafficNumbers


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """Totals and groups of a time span."""

    total: TrafficNumbers
    rows: tuple[TrafficRow, ...]


_COUNTERS: Final = ("requests", "abandoned", "unguarded", *ERROR_KINDS, *TOKEN_KINDS)
_SUMS: Final = ", ".join(
    (
        *(f"sum(t.{name})::bigint" for name in _COUNTERS),
        "sum(t.cost_usd)::float8",
        "sum(t.added_ms)::float8",
        *(f"sum(t.added_counts[{place + 1}])::bigint" for place in range(len(ADDED_MS) + 1)),
    )
)
_KEYS: Final = {
    **{unit: f"to_char(date_trunc('{unit}', t.at, 'UTC') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI\"Z\"')"
       for unit in ("minute", "hour", "day")},
    "backend": "b.name",
    "model": "t.model",
}  # fmt: skip


def gateway_traffic(
    project_id: int, start: datetime, end: datetime, by: TrafficGroup, backend: str = ""
) -> TrafficReport:
    """Return the traffic of a project between two moments.

    Parameters
    ----------
    start, end
        Half open; periods that begin within it count. Minutes are read where they are kept and the span is short or
        shown by the minute, whole hours otherwise.
    backend
        Name of the only backend that counts, or empty.

    Returns
    -------
    TrafficReport
        Groups in order of time, or by requests, at most `MAX_ROWS`. One query.
    """
    is_kept = start >= timezone.now() - MINUTES_SPAN
    reads_minutes = by == "minute" or (is_kept and end - start <= MAX_MINUTES_READ)
    period = TrafficPeriod.MINUTE if reads_minutes else TrafficPeriod.HOUR
    order = "1" if by in ("minute", "hour", "day") else "2 DESC, 1"
    query = (
        f"SELECT {_KEYS[by]}, {_SUMS} FROM detection_gatewaytraffic t"  # noqa: S608
        " JOIN detection_gatewaybackend b ON b.project_id = t.project_id AND b.id = t.backend_id"
        " WHERE b.project_id = %s AND (%s = '' OR b.name = %s) AND t.period = %s AND t.at >= %s AND t.at < %s"
        f" GROUP BY 1 ORDER BY {order} LIMIT %s"
    )
    begin = start.astimezone(UTC).replace(second=0, microsecond=0)
    if not reads_minutes:
        begin = begin.replace(minute=0)
    with connection.cursor() as cursor:
        cursor.execute(query, [project_id, backend, backend, int(period), begin, end, MAX_ROWS])
        rows = tuple(TrafficRow(key, _numbers(values)) for key, *values in cursor.fetchall())
    return TrafficReport(_total(row.numbers for row in rows), rows)


def traffic_totals() -> list[tuple[str, str, TrafficNumbers]]:
    """Return project, backend and numbers of all time, of every backend with traffic; one query."""
    query = (
        f"SELECT p.slug, b.name, {_SUMS} FROM detection_gatewaytraffic t"  # noqa: S608
        " JOIN detection_gatewaybackend b ON b.project_id = t.project_id AND b.id = t.backend_id"
        " JOIN detection_project p ON p.id = b.project_id WHERE t.period = 0 GROUP BY 1, 2 ORDER BY 1, 2"
    )
    with connection.cursor() as cursor:
        cursor.execute(query)
        return [(project, name, _numbers(values)) for project, name, *values in cursor.fetchall()]


def _numbers(values: Sequence[Any]) -> TrafficNumbers:
    counted = dict(zip(_COUNTERS, values, strict=False))
    cost, added_ms, *steps = values[len(_COUNTERS) :]
    errors = {kind: counted.pop(kind) for kind in ERROR_KINDS}
    return TrafficNumbers(errors=errors, priced_usd=cost, added_ms=added_ms, added_counts=steps, **counted)


def _total(rows: Any) -> TrafficNumbers:
    total = TrafficNumbers()
    for row in rows:
        for name in ("requests", "abandoned", "unguarded", *TOKEN_KINDS, "priced_usd", "added_ms"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        total.errors = {kind: total.errors[kind] + row.errors[kind] for kind in ERROR_KINDS}
        total.added_counts = [a + b for a, b in zip(total.added_counts, row.added_counts, strict=True)]
    return total


def unpriced_models(project_id: int, since: datetime) -> list[tuple[str, str, int]]:
    """Return backend, model and tokens of models without a price since a moment; at most 20, most tokens first."""
    query = (
        "SELECT b.name, t.model, sum(t.unpriced_tokens)::bigint FROM detection_gatewaytraffic t"
        " JOIN detection_gatewaybackend b ON b.project_id = t.project_id AND b.id = t.backend_id"
        " WHERE b.project_id = %s AND t.period = 3600 AND t.at >= %s"
        " AND t.unpriced_tokens > 0 AND t.model <> '' GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 20"
    )
    with connection.cursor() as cursor:
        cursor.execute(query, [project_id, since])
        return [(backend, model, tokens) for backend, model, tokens in cursor.fetchall()]
