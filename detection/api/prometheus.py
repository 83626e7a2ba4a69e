"""Metrics of `web` for Prometheus: counters of its processes on one port; everything else is queried when scraped.

Several such processes count in files of the folder `PROMETHEUS_MULTIPROC_DIR`, which the Prometheus client reads by
itself; under `up`, so do `live`, workers and beat (`web.process_metrics`).
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter as Counts
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, Literal

from django.db import DatabaseError, connection
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from detection import jobs
from detection.selectors import alerts, dashboard, gateway_traffic, metric_totals
from detection.services.ingestion.ingest import Accepted
from detection.services.maintenance import beat_process
from detection.services.storage.disk_space import disk_monitor
from detection.stream import publisher as stream
from detection.web import process_metrics

REGISTRY: Final = CollectorRegistry()
_READS: Final = 3
_READ_PAUSE_SECONDS: Final = 0.05
_BUCKETS: Final = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0)

REQUESTS = Counter(
    "loopguard_ingest_requests_total",
    "Requests to the events and guard routes.",
    ("route", "status", "code"),
    registry=REGISTRY,
)
RATE_LIMITED = Counter(
    "loopguard_rate_limited_requests_total",
    "Requests above the rate limit of their key, to any route.",
    ("project",),
    registry=REGISTRY,
)
SPIKES = Counter(
    "loopguard_spike_requests_total",
    "Requests with reported events above the limit of their project, by what it does with these.",
    ("project", "action"),
    registry=REGISTRY,
)
EVENTS = Counter(
    "loopguard_ingest_events_total",
    "Received events by outcome.",
    ("outcome", "reason"),
    registry=REGISTRY,
)
TELEMETRY = Counter(
    "loopguard_otlp_records_total",
    "Received OpenTelemetry spans and log records by outcome. Ignored ones do not describe an agent.",
    ("signal", "outcome", "reason"),
    registry=REGISTRY,
)
REQUEST_SECONDS = Histogram(
    "loopguard_request_seconds",
    "Time from the first byte of the request to the response.",
    ("route",),
    buckets=_BUCKETS,
    registry=REGISTRY,
)
VERDICTS = Counter(
    "loopguard_guard_verdicts_total", "Verdicts of the guard.", ("decision",), registry=REGISTRY
)
ENDINGS = Counter(
    "loopguard_guard_endings_total",
    "Blocked calls that the guard asked to finish, to reuse a known answer, or to wait.",
    ("ending",),
    registry=REGISTRY,
)
VERDICT_SECONDS = Histogram(
    "loopguard_verdict_seconds",
    "Time spent in the guard service, including the commit.",
    buckets=_BUCKETS,
    registry=REGISTRY,
)
GUARD_MISSES = Counter(
    "loopguard_guard_missed_total",
    "Guard requests answered 503 at their deadline: while waiting for a thread, while running, because the database did"
    " not respond, or because too many waited for the session.",
    ("reason",),
    registry=REGISTRY,
)
_PUBLISH_FAILURES = Gauge(
    "loopguard_publish_failures",
    "Batches that could not be sent to the broker and items that were dropped, since this process started.",
    ("publisher", "reason"),
    multiprocess_mode="sum",
    registry=REGISTRY,
)

_BACKLOG_SQL: Final = """
SELECT count(*), coalesce(extract(epoch FROM now() - min(pending_since)), 0)::float
FROM detection_session WHERE evaluated_seq < last_seq
"""
_QUARANTINED_SQL: Final = "SELECT count(*) FROM detection_quarantinedevent"
_INCIDENTS_SQL: Final = "SELECT status, count(*) FROM detection_incident GROUP BY status"


class DatabaseCollector(Collector):
    """Backlog, sessions, incidents and alerts; the same in every process."""

    def collect(self) -> Iterator[Metric]:
        """Query the database; without it, only `loopguard_database_up` is reported."""
        up = GaugeMetricFamily("loopguard_database_up", "Whether the database is available.")
        try:
            metrics = self._query()
        except DatabaseError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield from metrics

    def _query(self) -> list[Metric]:
        with connection.cursor() as db:
            db.execute(_BACKLOG_SQL)
            waiting, age = db.fetchone()
            db.execute(_QUARANTINED_SQL)
            (quarantined,) = db.fetchone()
            db.execute(_INCIDENTS_SQL)
            incidents = db.fetchall()
        backlog = GaugeMetricFamily(
            "loopguard_unprocessed_sessions",
            "Sessions with events that are not evaluated yet.",
            value=waiting,
        )
        oldest = GaugeMetricFamily(
            "loopguard_oldest_unprocessed_seconds", "Age of the oldest unevaluated event.", value=age
        )
        quarantined_events = GaugeMetricFamily(
            "loopguard_quarantined_events",
            "Events whose evaluation failed and has not been retried successfully.",
            value=quarantined,
        )
        sessions = GaugeMetricFamily(
            "loopguard_sessions", "Sessions with an event in the last hour.", labels=("state",)
        )
        for state, number in dashboard.recent_sessions_by_state().items():
            sessions.add_metric((state,), number)
        looping, in_loop = dashboard.sessions_in_loops()
        loops = GaugeMetricFamily(
            "loopguard_sessions_in_loops",
            "Sessions in a loop: those in which its calls run now, and all.",
            labels=("which",),
        )
        loops.add_metric(("looping_now",), looping)
        loops.add_metric(("in_loop",), in_loop)
        by_status = GaugeMetricFamily("loopguard_incidents", "Incidents by status.", labels=("status",))
        for status, number in incidents:
            by_status.add_metric((status,), number)
        beats = GaugeMetricFamily(
            "loopguard_beat_processes",
            "Running processes of beat. One of them schedules, and another takes over when it ends; without, nothing is"
            " scheduled.",
            value=len(beat_process.running()),
        )
        return [
            beats,
            backlog,
            oldest,
            quarantined_events,
            sessions,
            loops,
            by_status,
            *_statistics(),
            *_gateway(),
            *_alerts(),
        ]


def _statistics() -> list[Metric]:
    """Return totals without demo sessions since counting began; calls are counted within seconds."""
    checks = CounterMetricFamily("loopguard_checks", "Evaluated calls.", labels=("project",))
    reactions = CounterMetricFamily(
        "loopguard_reactions", "Calls with a warning or a block.", labels=("project", "reaction")
    )
    cost = CounterMetricFamily("loopguard_cost_usd", "Cost of all calls.", labels=("project",))
    for project, checked, warned, blocked, spent in metric_totals.totals_by_project():
        checks.add_metric((project,), checked)
        reactions.add_metric((project, "warned"), warned)
        reactions.add_metric((project, "blocked"), blocked)
        cost.add_metric((project,), spent)
    found = GaugeMetricFamily(
        "loopguard_incidents_by_kind",
        "Stored incidents by detector and label.",
        labels=("project", "kind", "label"),
    )
    for project, kind, label, count in metric_totals.incidents_by_kind():
        found.add_metric((project, kind, label), count)
    judged = CounterMetricFamily(
        "loopguard_judge_calls", "Consultations of the judge by outcome.", labels=("project", "outcome")
    )
    for project, outcome, count in metric_totals.judge_calls_by_outcome():
        judged.add_metric((project, outcome), count)
    return [checks, reactions, cost, found, judged, *_incident_totals()]


_BY: Final[tuple[Literal["tool", "model"], ...]] = ("tool", "model")


def _incident_totals() -> list[Metric]:
    """Return recovery, confidence and cost of loops by detector, and incidents and cost by tool and model."""
    labels = ("project", "kind")
    recovery = GaugeMetricFamily(
        "loopguard_incidents_by_recovery",
        "Incidents with a reaction that ended or were stopped, by detector and whether the agent recovered after one.",
        labels=(*labels, "recovered"),
    )
    confidence = GaugeMetricFamily(
        "loopguard_incident_confidence", "Average confidence of stored incidents by detector.", labels=labels
    )
    metrics: list[Metric] = [recovery, confidence]
    for row in metric_totals.incident_totals("kind"):
        recovery.add_metric((row.project, row.name, "true"), row.recovered)
        recovery.add_metric((row.project, row.name, "false"), row.not_recovered)
        confidence.add_metric((row.project, row.name), row.confidence_sum / row.count)
    for by in _BY:
        incidents = GaugeMetricFamily(
            f"loopguard_incidents_by_{by}", f"Stored incidents by {by}.", labels=("project", by)
        )
        cost = GaugeMetricFamily(
            f"loopguard_loop_cost_usd_by_{by}",
            f"Cost of incidents that nobody labelled a false alarm, by {by}.",
            labels=("project", by),
        )
        for row in metric_totals.incident_totals(by):
            incidents.add_metric((row.project, row.name), row.count)
            cost.add_metric((row.project, row.name), row.loop_cost_usd)
        metrics += [incidents, cost]
    return metrics


def _gateway() -> list[Metric]:
    """Return the traffic of all time by backend; the processes of `live` add theirs every few seconds."""
    labels = ("project", "backend")
    requests = CounterMetricFamily("loopguard_gateway_requests", "Requests to model servers.", labels=labels)
    errors = CounterMetricFamily(
        "loopguard_gateway_upstream_errors", "Errors of model servers by kind.", labels=(*labels, "kind")
    )
    abandoned = CounterMetricFamily(
        "loopguard_gateway_abandoned_requests",
        "Requests whose client disconnected before the end of the response.",
        labels=labels,
    )
    unguarded = CounterMetricFamily(
        "loopguard_gateway_unguarded_requests",
        "Requests of paths that are not guarded, except for lists of models and counts of tokens.",
        labels=labels,
    )
    tokens = CounterMetricFamily(
        "loopguard_gateway_tokens",
        "Tokens by kind; cache tokens also count as input tokens.",
        labels=(*labels, "kind"),
    )
    cost = CounterMetricFamily("loopguard_gateway_cost_usd", "Cost of tokens with a price.", labels=labels)
    added = HistogramMetricFamily(
        "loopguard_gateway_added_seconds", "Time that LoopGuard added to requests.", labels=labels
    )
    for project, backend, numbers in gateway_traffic.traffic_totals():
        names = (project, backend)
        requests.add_metric(names, numbers.requests)
        abandoned.add_metric(names, numbers.abandoned)
        unguarded.add_metric(names, numbers.unguarded)
        for kind, count in numbers.errors.items():
            errors.add_metric((*names, kind), count)
        for kind in gateway_traffic.TOKEN_KINDS:
            tokens.add_metric((*names, kind.removesuffix("_tokens")), getattr(numbers, kind))
        cost.add_metric(names, numbers.priced_usd)
        limits = [*(str(limit / 1000) for limit in gateway_traffic.ADDED_MS), "+Inf"]
        counts = [*accumulate(numbers.added_counts)]
        added.add_metric(names, [*zip(limits, counts, strict=True)], numbers.added_ms / 1000)
    return [requests, errors, abandoned, unguarded, tokens, cost, added]


def _alerts() -> list[Metric]:
    health = alerts.health()
    notifications = GaugeMetricFamily(
        "loopguard_alert_notifications", "Stored notifications by state.", labels=("state",)
    )
    for state, count in health.by_state:
        notifications.add_metric((state,), count)
    return [
        notifications,
        GaugeMetricFamily(
            "loopguard_alert_events_pending",
            "Alert events that wait for routing.",
            value=health.pending_events,
        ),
        GaugeMetricFamily(
            "loopguard_alert_oldest_due_seconds",
            "Age of the oldest notification that is due.",
            value=health.oldest_due_seconds,
        ),
        GaugeMetricFamily(
            "loopguard_alert_destinations_paused",
            "Destinations that are paused.",
            value=health.paused_destinations,
        ),
    ]


class DiskCollector(Collector):
    """The disk of the database, if it is on this machine."""

    def collect(self) -> Iterator[Metric]:
        """Report free space and the limit below which no events are accepted."""
        usage = disk_monitor.usage()
        if usage is None:
            return
        yield GaugeMetricFamily(
            "loopguard_storage_free_bytes", "Free space on the database's disk.", value=usage.free
        )
        yield GaugeMetricFamily(
            "loopguard_storage_min_free_bytes",
            "Below this, the events and guard routes respond with 503.",
            value=usage.min_free,
        )
        yield GaugeMetricFamily(
            "loopguard_storage_full",
            "Whether the events and guard routes currently respond with 503.",
            value=usage.is_full,
        )


REGISTRY.register(DatabaseCollector())
REGISTRY.register(DiskCollector())


def count_events(done: Accepted) -> None:
    """Count valid events by outcome."""
    EVENTS.labels("accepted", "").inc(done.accepted)
    if done.duplicate:
        EVENTS.labels("duplicate", "").inc(done.duplicate)
    for mark, number in Counts(mark for item in done.altered for mark in item["marks"]).items():
        EVENTS.labels("altered", mark).inc(number)


def exposition() -> bytes:
    """Return all metrics in the text format of Prometheus."""
    _update_publish_failures()
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not folder:
        return generate_latest(REGISTRY) + process_metrics.exposition()
    process_metrics.forget_ended_processes(folder)
    shared = CollectorRegistry()
    MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    shared.register(DatabaseCollector())
    shared.register(DiskCollector())
    for _ in range(_READS):
        try:
            return generate_latest(shared)
        except struct.error:  # another process is making its file, which is empty for a moment
            time.sleep(_READ_PAUSE_SECONDS)
    return generate_latest(shared)


def _update_publish_failures() -> None:
    """Copy the counts of this process's background publishers."""
    for publisher in (jobs.publisher, stream.publisher):
        _PUBLISH_FAILURES.labels(publisher.name, "failed").set(publisher.failed)
        _PUBLISH_FAILURES.labels(publisher.name, "dropped").set(publisher.dropped)
