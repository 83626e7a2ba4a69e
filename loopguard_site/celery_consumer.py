"""The link of a worker to the broker."""

from __future__ import annotations

from typing import Any

from celery.worker import consumer


class Consumer(consumer.Consumer):  # type: ignore[misc]  # Celery has no types
    """Celery's, which outlives the loss of the broker also with tasks in hand.

    Celery 5.7 acknowledges a task, or gives it back, over the connection that it was received by. If that was lost and
    is forgotten, the AttributeError ends the worker. Tasks in hand at that time need neither: they run, and a broker
    that is still there delivers them once more after its visibility timeout.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors: tuple[type[Exception], ...] = (
            *self.conninfo.connection_errors,
            AttributeError,
        )

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the lost connection without giving back what is in hand, so that the worker connects anew."""
        for channel in self.connection.transport.channels:
            channel.do_restore = False
        super().on_connection_error_after_connected(exc)
