"""Browsers in which people are signed in."""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.models import Session as BrowserSession
from django.db import models


class SignIn(models.Model):
    """A browser in which a person is signed in. It ends with the session of Django that it describes.

    Pages name it by `public_id`, as the key of the session is a secret.
    """

    session = models.OneToOneField(
        BrowserSession, on_delete=models.CASCADE, primary_key=True, editable=False, related_name="sign_in"
    )
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sign_ins")
    agent = models.CharField(max_length=300, blank=True, default="", help_text="As the browser names itself.")
    address = models.GenericIPAddressField(null=True)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(help_text="Within a minute.")

    class Meta:
        ordering = ("-last_seen_at", "public_id")

    def __str__(self) -> str:
        return f"{self.user} on {self.agent[:40]}"
