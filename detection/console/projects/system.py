"""The System page: state of detection, database, broker and workers; versions."""

from __future__ import annotations

import platform
import time
from typing import Any

import django
import redis
from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection import __version__, jobs
from detection.console.access import ProjectRequest, in_project
from detection.engine import durations
from detection.selectors import dashboard, heartbeats
from detection.selectors.audit import audit_weakness
from detection.selectors.packed_events import PackedSum, packed_sum
from detection.selectors.quarantine import QuarantineCounts, quarantine_counts
from detection.selectors.servers import Server, broker_server, database_server
from detection.services.storage.disk_space import DiskUsage, disk_monitor

SLOW_SECONDS, LATE_SECONDS = 5, 30
NEARLY_FULL = 2
"""The disk counts as nearly full below this multiple of the required free space."""
_WORK = {
    "worker": ("Workers", "Evaluate stored events. Idle when there is no work."),
    "sweeper": ("Sweeper", "Finds unevaluated sessions every 5 s, in each worker and in beat."),
    "beat": ("Schedule", "Periodic tasks: from beat through the broker to a worker, every 5 s."),
    "housekeeping": ("Housekeeping", "Partitions, retention and abandoned sessions, every 5 min."),
}


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the state of the components."""
    start = time.perf_counter()
    status = dashboard.system_status(request.project.pk)
    database_ms = (time.perf_counter() - start) * 1000
    lag = (
        (timezone.now() - status.oldest_waiting_since).total_seconds() if status.oldest_waiting_since else 0.0
    )
    database, broker = database_server(), _broker()
    parts = [
        _server(
            _part(
                "Database",
                "ok",
                f"answers in {durations.milliseconds(database_ms)}",
                f"PostgreSQL {database.version}",
            ),
            database,
        ),
        *_disk(disk_monitor.usage()),
        _part(
            "Detection",
            "ok" if lag < SLOW_SECONDS else "slow" if lag < LATE_SECONDS else "bad",
            "up to date"
            if not status.sessions_waiting
            else f"lagging: {status.sessions_waiting} session{'' if status.sessions_waiting == 1 else 's'} waiting, "
            f"the oldest for {durations.span(lag)}",
            "Workers evaluate stored events. Without the broker, the sweeper does so within 15 s.",
        ),
        _guard(status.missed_guard_requests),
        broker,
        *_workers(status.sessions_waiting > 0),
        _audit(audit_weakness()),
        _quarantined(quarantine_counts(request.project.pk))
        | {"url": reverse("console:quarantine", args=[request.project.slug])},
    ]
    context = {
        "parts": parts,
        "is_well": all(part["state"] == "ok" for part in parts),
        "status": status,
        "size": size_words(status.database_bytes),
        "packed": packed_words(packed_sum(request.project.pk)),
        "weeks": [(week, size_words(week.size)) for week in dashboard.past_weeks()],
        "versions": _versions(),
        "urls": (("Pages and API", settings.PUBLIC_URL), ("Live socket", settings.LIVE_URL)),
    }
    return render(request, "projects/system.html", context)


def _part(name: str, state: str, words: str, about: str) -> dict[str, str]:
    return {
        "name": name,
        "state": state,
        "word": {"ok": "Working", "slow": "Slow", "bad": "Failing"}[state],
        "words": words,
        "about": about,
    }


def _disk(usage: DiskUsage | None) -> list[dict[str, str]]:
    """Return the state of the database's disk; empty when the database is on another machine."""
    if usage is None:
        return []
    words = f"{size_words(usage.free)} of {size_words(usage.total)} free"
    about = "Sessions, events and loops."
    if usage.min_free:
        about = f"Below {size_words(usage.min_free)} free, new events are rejected. Everything else keeps working."
    if usage.is_full:
        return [
            _part("Disk", "bad", f"{words}: events and guard requests are rejected (503 storage_full)", about)
        ]
    if usage.free < NEARLY_FULL * usage.min_free:
        return [_part("Disk", "slow", f"{words}, nearly full", about) | {"word": "Nearly full"}]
    return [_part("Disk", "ok", words, about)]


def _guard(missed: int) -> dict[str, str]:
    about = "Answers within 1.5 s or the client's own limit, else with 503 unavailable, and the client decides alone."
    if missed:
        words = f"{missed:,} request{'s' if missed > 1 else ''} missed the deadline in the last hour"
        return _part("Guard", "slow", words, about)
    return _part("Guard", "ok", "no deadline missed in the last hour", about)


def _workers(has_work: bool) -> list[dict[str, Any]]:
    """Return when each part last did work: a process that runs without working is failing."""
    now = timezone.now()
    parts: list[dict[str, Any]] = []
    for beat in heartbeats.heartbeats(now):
        name, help_ = _WORK[beat.part]
        may_be_quiet = beat.part == "worker" and not has_work
        state = "ok" if may_be_quiet or not beat.is_late else "slow" if beat.at is None else "bad"
        worked = "not active yet" if beat.at is None else "last active"
        parts.append(_part(name, state, worked, help_) | {"at": beat.at})
    return parts


def _audit(weakness: str) -> dict[str, str]:
    words = weakness or "append-only: LoopGuard can read and add entries only"
    part = _part("Audit", "slow" if weakness else "ok", words, "Database privileges protect the entries.")
    return part | ({"word": "Unprotected"} if weakness else {})


def _quarantined(counts: QuarantineCounts) -> dict[str, str]:
    about = "An event whose evaluation failed is quarantined with its error. Its session continues."
    if counts.events:
        words = f"{counts.events:,} in {counts.sessions:,} session{'s' if counts.sessions > 1 else ''}"
        return _part("Quarantined events", "slow", words, about) | {"word": "Needs retry"}
    return _part("Quarantined events", "ok", "none", about)


def _broker() -> dict[str, Any]:
    about = "Notifies workers and open pages. No data is lost without it."
    start = time.perf_counter()
    try:
        waiting, server = jobs.waiting_tasks(), broker_server()
    except redis.RedisError as error:
        return _part("Broker", "bad", f"does not answer ({type(error).__name__})", about)
    answered = durations.milliseconds((time.perf_counter() - start) * 1000)
    words = f"answers in {answered}, {waiting} tasks queued"
    return _server(_part("Broker", "ok", words, f"{server.product} {server.version}. {about}"), server)


def _server(part: dict[str, str], server: Server) -> dict[str, str]:
    """Return the part of a server, with what is wrong with its version and settings."""
    if not server.problem:
        return part
    return part | {"state": "slow", "word": "Not as tested", "words": f"{part['words']}. {server.problem}"}


def _versions() -> list[tuple[str, str]]:
    return [
        ("LoopGuard", __version__),
        ("Python", platform.python_version()),
        ("Django", django.get_version()),
    ]


def packed_words(packed: PackedSum) -> str:
    """Return how much is packed, in words; empty for nothing."""
    if not packed.sessions:
        return ""
    sizes = f"{size_words(packed.row_bytes)} of rows in {size_words(packed.packed_bytes)}"
    return f"{packed.sessions:,} session{'' if packed.sessions == 1 else 's'} packed, {sizes}"


def size_words(count: float) -> str:
    """Return a number of bytes in words."""
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"
