"""Celery tasks and worker threads. Any task may run twice or not at all; the sweeper covers lost ones."""

from detection.tasks import alerts, erasure, imports, probes, sweeper, watchdog, what_if
from detection.tasks.evaluation import evaluate, housekeeping, sweep
from detection.tasks.judge import close_approvals, consult_judge

__all__ = [
    "alerts",
    "close_approvals",
    "consult_judge",
    "erasure",
    "evaluate",
    "housekeeping",
    "imports",
    "probes",
    "sweep",
    "sweeper",
    "watchdog",
    "what_if",
]
