"""The traffic of the gateway: requests, errors, added time, tokens and cost of each backend and model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection.console.access import ProjectRequest, in_project
from detection.console.accounts import preferences
from detection.console.formatting import money, number
from detection.console.insights.chart import Bucket, Chart, stacked
from detection.engine.durations import milliseconds
from detection.selectors.gateway import list_backends
from detection.selectors.gateway_traffic import TrafficGroup, TrafficNumbers, TrafficRow, gateway_traffic

SPANS: Final[tuple[tuple[str, str, timedelta, TrafficGroup], ...]] = (
    ("1h", "1 hour", timedelta(hours=1), "minute"),
    ("6h", "6 hours", timedelta(hours=6), "minute"),
    ("24h", "24 hours", timedelta(hours=24), "hour"),
    ("7d", "7 days", timedelta(days=7), "hour"),
    ("30d", "30 days", timedelta(days=30), "day"),
    ("365d", "1 year", timedelta(days=365), "day"),
)
STEPS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
ERROR_WORDS: Final = {
    "unreachable": "unreachable",
    "timeouts": "timeout",
    "rate_limited": "status 429",
    "client_errors": "other 4xx",
    "server_errors": "5xx",
    "cut": "cut",
    "unreadable": "unreadable",
}
SHOWN_GROUPS: Final = 50


def cost_words(numbers: TrafficNumbers) -> str:
    """Return the cost; it is unknown, not zero, if tokens have no price."""
    if numbers.cost_usd is None:
        return "unknown"
    return money(numbers.cost_usd) + (" + unknown" if numbers.unpriced_tokens else "")


@dataclass(frozen=True, slots=True)
class TrafficLine:
    """A row of a table."""

    name: str
    numbers: TrafficNumbers
    minutes: float

    @property
    def per_minute(self) -> str:
        """Requests per minute."""
        rate = self.numbers.requests / self.minutes
        return f"{rate:,.1f}" if 0.05 <= rate < 10 else f"{rate:,.0f}" if rate >= 10 or not rate else "< 0.1"

    @property
    def errors(self) -> str:
        """Errors by kind, as words."""
        return ", ".join(
            f"{count:,} {ERROR_WORDS[kind]}" for kind, count in self.numbers.errors.items() if count
        )

    @property
    def cost(self) -> str:
        """Cost."""
        return cost_words(self.numbers)

    @property
    def median(self) -> str:
        """Median of the added time."""
        return _milliseconds(self.numbers.added_ms_at(0.5))

    @property
    def high(self) -> str:
        """95th percentile of the added time."""
        return _milliseconds(self.numbers.added_ms_at(0.95))


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else milliseconds(value)


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show totals, charts over time with their numbers, and the backends and models."""
    now = timezone.now()
    key, _, length, step = next((row for row in SPANS if row[0] == request.GET.get("span")), SPANS[0])
    names = [row.name for row in list_backends(request.project.pk)]
    backend = request.GET.get("backend", "")
    backend = backend if backend in names else ""
    zone = UTC if step == "day" else preferences.zone(request)  # days are counted in UTC
    start = _floor(now - length + STEPS[step], step)
    over_time = gateway_traffic(request.project.pk, start, now, step, backend)
    minutes = max(1.0, (now - start).total_seconds() / 60)
    lines = {
        by: [
            TrafficLine(row.key, row.numbers, minutes)
            for row in gateway_traffic(request.project.pk, start, now, by, backend).rows
        ]
        for by in ("backend", "model")
    }
    points = _filled(over_time.rows, start, now, step)
    context = {
        "spans": [(one, words, one == key) for one, words, *_ in SPANS],
        "span": key,
        "step": step,
        "zone": zone,
        "backend": backend,
        "has_backends": bool(names),
        "total": TrafficLine("", over_time.total, minutes),
        "by_backend": lines["backend"],
        "by_model": lines["model"][:SHOWN_GROUPS],
        "is_cut": len(lines["model"]) > SHOWN_GROUPS,
        "lines": [
            (at, TrafficLine("", numbers, STEPS[step].total_seconds() / 60))
            for at, numbers in reversed(points)
            if numbers.requests
        ],
        "charts": _charts(points, step, zone),
    }
    return render(request, "gateway/traffic.html", context)


def _floor(moment: datetime, step: str) -> datetime:
    moment = moment.astimezone(UTC).replace(second=0, microsecond=0)
    if step != "minute":
        moment = moment.replace(minute=0)
    return moment.replace(hour=0) if step == "day" else moment


def _filled(
    rows: tuple[TrafficRow, ...], start: datetime, end: datetime, step: str
) -> list[tuple[datetime, TrafficNumbers]]:
    """Return a point for every step, so that a minute without requests is drawn as zero."""
    known = {datetime.fromisoformat(row.key): row.numbers for row in rows}
    points, moment = [], start
    while moment < end:
        points.append((moment, known.get(moment) or TrafficNumbers()))
        moment += STEPS[step]
    return points


def _charts(
    points: list[tuple[datetime, TrafficNumbers]], step: str, zone: tzinfo
) -> list[tuple[str, Chart]]:
    """Return the charts with their names: requests, and the added time, whose median is the lower part of the bar."""
    buckets = [Bucket(at, at + STEPS[step]) for at, _ in points]
    errors = [float(one.error_count) for _, one in points]
    medians = [one.added_ms_at(0.5) or 0.0 for _, one in points]
    highs = [one.added_ms_at(0.95) or 0.0 for _, one in points]
    requests = {
        "answered": [one.requests - failed for (_, one), failed in zip(points, errors, strict=True)],
        "upstream errors": errors,
    }
    added = {
        "median": medians,
        "from there to 95 %": [max(0.0, high - median) for high, median in zip(highs, medians, strict=True)],
    }
    return [
        ("Requests", stacked(buckets, requests, zone, number)),
        ("Time added by LoopGuard", stacked(buckets, added, zone, milliseconds)),
    ]
