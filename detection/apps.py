"""The Django application."""

from django.apps import AppConfig


class DetectionConfig(AppConfig):
    """Registers models, admin and tasks under the label ``detection``."""

    name = "detection"
    verbose_name = "LoopGuard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the signal of sign-outs."""
        from detection.stream import sign_outs  # noqa: F401  (imported for its effect)
