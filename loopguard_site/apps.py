"""The site as a Django app: it has commands, and loads Celery with Django."""

from django.apps import AppConfig


class SiteConfig(AppConfig):
    """The site as a Django app."""

    name = "loopguard_site"

    def ready(self) -> None:
        """Make our Celery application the current one, for everything that enqueues tasks."""
        from . import celery  # noqa: F401  (imported for its effect)
