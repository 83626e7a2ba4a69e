"""What Celery workers do: thin doors over services. Any task may run twice or not at all; the sweeper covers for it."""

from detection.tasks import alerts, sweeper
from detection.tasks.doors import evaluate, housekeeping, sweep
from detection.tasks.judge import ask_judge, close_questions

__all__ = ["alerts", "ask_judge", "close_questions", "evaluate", "housekeeping", "sweep", "sweeper"]
