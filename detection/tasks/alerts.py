"""Threads of workers that need no broker: alerts, repeating them, bulk actions, counting, costs, indexing texts.

They find their work in the database. Any number of workers may run them: notifications and actions are claimed,
repeating, counting and indexing take a lock.
"""

from __future__ import annotations

from functools import partial

from celery.signals import worker_init

from detection.services.alerting import delivery, reminders
from detection.services.exceptions import fine
from detection.services.gateway import repricing
from detection.services.incidents import bulk_actions, loop_changes
from detection.services.maintenance import hourly_counts
from detection.services.search import indexing
from detection.tasks.periodic import Periodic

SEND_PERIOD_SECONDS = 1.0
REMIND_PERIOD_SECONDS = 60.0
COUNT_PERIOD_SECONDS = 15.0
ACTION_PERIOD_SECONDS = 0.5
RECALCULATION_PERIOD_SECONDS = 2.0
INDEX_PERIOD_SECONDS = 3.0
"""What has just happened can be searched for; a shorter period would rewrite the newest blocks more often."""


@worker_init.connect(dispatch_uid="detection.alerts")
def _start(**_: object) -> None:
    for thread in (
        Periodic("alerts", SEND_PERIOD_SECONDS, delivery.run),
        Periodic("reminders", REMIND_PERIOD_SECONDS, reminders.remind),
        Periodic(
            "bulk_actions", ACTION_PERIOD_SECONDS, partial(bulk_actions.carry_out_waiting, fine.ACTIONS)
        ),
        Periodic("loop_changes", ACTION_PERIOD_SECONDS, loop_changes.carry_out_waiting),
        Periodic("statistics", COUNT_PERIOD_SECONDS, hourly_counts.count_calls),
        Periodic("recalculation", RECALCULATION_PERIOD_SECONDS, repricing.recalculate_waiting),
        Periodic("search_index", INDEX_PERIOD_SECONDS, indexing.index_texts),
    ):
        thread.start()
