"""The Django application."""

from django.apps import AppConfig


class DetectionConfig(AppConfig):
    """Registers models, admin and tasks under the label ``detection``."""

    name = "detection"
    verbose_name = "LoopGuard"
    default_auto_field = "django.db.models.BigAutoField"
