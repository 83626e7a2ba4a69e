"""The Celery application of ``worker`` and ``beat``. Tasks live in ``detection.tasks``."""

import contextlib
import os
from pathlib import Path

from celery import Celery
from celery.schedules import crontab, schedule
from celery.signals import setup_logging, worker_init

_NICENESS = 10

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
app = Celery("loopguard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["detection"])
app.conf.beat_scheduler = "detection.tasks.schedule:ElectedScheduler"
app.conf.beat_schedule = {
    "signal": {"task": "detection.signal", "schedule": schedule(60.0), "options": {"expires": 60}},
    "sweep": {"task": "detection.sweep", "schedule": schedule(5.0), "options": {"expires": 5}},
    "close_approvals": {
        "task": "detection.close_approvals",
        "schedule": schedule(2.0),
        "options": {"expires": 2},
    },
    "housekeeping": {
        "task": "detection.housekeeping",
        "schedule": schedule(300.0),
        "options": {"expires": 300},
    },
    "weekly_reports": {
        "task": "detection.weekly_reports",
        "schedule": crontab(minute="5", hour="6-23", day_of_week="mon"),
        "options": {"expires": 3600},
    },
}


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Keep Django's LOGGING in workers: with this signal connected, Celery does not install its own."""


@worker_init.connect
def _yield_to_requests(**_: object) -> None:
    """Let the worker use the processor time that `web` and `live` leave, because agents wait for those.

    Where Linux schedules sessions of processes as groups, niceness counts within a session only, so its group gets it,
    too.
    """
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")
