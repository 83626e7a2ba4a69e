"""What Celery workers do: thin doors over services. Any task may run twice or not at all; the sweeper covers for it."""

from detection.tasks import sweeper
from detection.tasks.doors import evaluate, housekeeping, sweep

__all__ = ["evaluate", "housekeeping", "sweep", "sweeper"]
