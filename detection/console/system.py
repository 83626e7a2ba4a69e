"""How the parts are: how far detection has come, the database, the broker, the versions."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import django
import redis
from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from detection.console import display
from detection.console.access import ProjectRequest, in_project
from detection.selectors import dashboard

SLOW_SECONDS, LATE_SECONDS = 5, 30
BROKER_PATIENCE_SECONDS = 0.5


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show how the parts are."""
    start = time.perf_counter()
    status = dashboard.system_status(request.project.pk)
    database_ms = (time.perf_counter() - start) * 1000
    lag = (timezone.now() - status.oldest_waiting_since).total_seconds() if status.oldest_waiting_since else 0.0
    broker = _broker()
    parts = [
        _part("Database", "ok", f"answers in {database_ms:.0f} ms", f"PostgreSQL {status.database_version.split(' ')[0]}"),
        _part(
            "Detection",
            "ok" if lag < SLOW_SECONDS else "slow" if lag < LATE_SECONDS else "bad",
            "up to date" if not status.sessions_waiting else f"{status.sessions_waiting} sessions waiting, the oldest for {display.span(lag)}",
            "Workers fold what came in; without the broker the sweeper does, within 15 s.",
        ),
        broker,
        _part(
            "Events set aside",
            "slow" if status.parked_sessions else "ok",
            f"in {status.parked_sessions} sessions" if status.parked_sessions else "none",
            "An event that detection cannot digest is put aside with its error; its session goes on.",
        ),
    ]
    context = {
        "parts": parts,
        "is_well": all(part["state"] == "ok" for part in parts),
        "status": status,
        "size": _size(status.database_bytes),
        "versions": _versions(),
        "urls": (("Pages and API", settings.PUBLIC_URL), ("Live socket", settings.LIVE_URL)),
    }
    return render(request, "console/system.html", context)


def _part(name: str, state: str, words: str, about: str) -> dict[str, str]:
    return {"name": name, "state": state, "word": {"ok": "Working", "slow": "Slow", "bad": "Failing"}[state], "words": words, "about": about}


def _broker() -> dict[str, Any]:
    about = "Rings the workers and carries hints to open pages. Nothing is lost without it."
    try:
        client = redis.Redis.from_url(
            settings.CELERY_BROKER_URL, socket_connect_timeout=BROKER_PATIENCE_SECONDS, socket_timeout=BROKER_PATIENCE_SECONDS
        )
        start = time.perf_counter()
        client.ping()
        waiting = client.llen(f"loopguard:{settings.CELERY_TASK_DEFAULT_QUEUE}")
        client.close()
    except redis.RedisError as error:
        return _part("Broker", "bad", f"does not answer ({type(error).__name__})", about)
    return _part("Broker", "ok", f"answers in {(time.perf_counter() - start) * 1000:.0f} ms, {waiting} tasks queued", about)


def _versions() -> list[tuple[str, str]]:
    try:
        own = version("loopguard")
    except PackageNotFoundError:
        own = "from the source tree"
    return [("LoopGuard", own), ("Python", platform.python_version()), ("Django", django.get_version())]


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"
