"""The Celery application of ``worker`` and ``beat``. Tasks live in ``detection.tasks``."""

import os

from celery import Celery
from celery.schedules import schedule
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
app = Celery("loopguard")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["detection"])
app.conf.beat_schedule = {
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
}


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Keep Django's LOGGING in workers: with this signal connected, Celery does not install its own."""
