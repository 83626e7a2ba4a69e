"""What Celery workers do: thin doors over services. Any task may run twice or not at all; the sweeper covers for it."""

from detection.tasks import alerts, sweeper
from detection.tasks.evaluation import evaluate, housekeeping, sweep
from detection.tasks.judge import ask_judge, close_approvals

__all__ = ["alerts", "ask_judge", "close_approvals", "evaluate", "housekeeping", "sweep", "sweeper"]
