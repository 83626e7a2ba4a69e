"""Operational records: heartbeats of parts, processes of beat, failed sign-ins, and short-lived outcomes."""

from __future__ import annotations

from django.db import models


class PartHeartbeat(models.Model):
    """When a part of the installation last finished its work."""

    part = models.CharField(max_length=16, primary_key=True)
    at = models.DateTimeField()
    by = models.CharField(max_length=300, help_text="Host and process.")

    def __str__(self) -> str:
        return self.part


class BeatProcess(models.Model):
    """A process of beat, of which one sends tasks. The processes write its rows, and remove old ones."""

    id = models.CharField(max_length=32, primary_key=True, help_text="Random; new at each start.")
    by = models.CharField(max_length=300, help_text="Host and process.")
    started_at = models.DateTimeField()
    at = models.DateTimeField(help_text="When it last showed that it runs.")

    def __str__(self) -> str:
        return self.by


class FailedSignIns(models.Model):
    """Failed sign-ins of one account, address, or account at an address. Housekeeping deletes expired rows."""

    place = models.CharField(
        max_length=64, primary_key=True, help_text="Keyed digest of account and address."
    )
    count = models.PositiveIntegerField()
    not_before = models.DateTimeField(help_text="Earlier attempts are rejected unread.")
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.place[:8]}: {self.count}"


class BriefRecord(models.Model):
    """A record that is kept for a few minutes: the outcome of a form, or the objects that an action changed."""

    key = models.CharField(max_length=64, primary_key=True, help_text="Keyed digest of person and subject.")
    value = models.JSONField(null=True, help_text="Empty while a request is at work.")
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key
