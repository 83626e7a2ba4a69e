"""The site as a Django app: it has commands, and loads Celery with Django."""

import gc

from django.apps import AppConfig

gc.disable()  # until `detection`, the last application, is ready: what is imported stays


class SiteConfig(AppConfig):
    """The site as a Django app."""

    name = "loopguard_site"

    def ready(self) -> None:
        """Make LoopGuard's Celery application the current one, for code that enqueues tasks; keep the static files."""
        from . import celery, collected_files  # noqa: F401  (the first is imported for its effect)

        collected_files.hold()
