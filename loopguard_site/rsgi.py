"""Entry point of ``web``: the front, which serves API, pages and admin."""

import signal
import threading

if threading.current_thread() is threading.main_thread():
    # The process inherits a handler that does nothing here. Until Granian sets another one, there is nothing to finish.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

from loopguard_site.wsgi import application as wsgi  # isort: skip - sets Django up, which the front needs

import os
from pathlib import Path

from django.conf import settings
from django.urls import get_resolver

from loopguard_site.front.server import Front

get_resolver().url_patterns  # noqa: B018 - imports the views before the front calls `gc.freeze`
_shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
application = Front(
    wsgi,
    settings.ENV.web_threads,
    Path(_shared) if _shared else None,
    settings.ENV.guard_seconds,
    settings.ENV.drain_seconds,
)
