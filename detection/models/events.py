"""Events of agents, one row each, ordered within their session.

The table is partitioned by session id. The id contains the day on which the session started, so all events of a session
are in one partition, the primary key is unique across the table, and retention drops whole partitions. Event ids of
clients have a narrow table with its own retention. See docs/decisions/0024-keys-begin-with-the-project.md.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from detection.models.projects import Project
from detection.models.sessions import Session
from detection.models.stored_verdict import VerdictField
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel, TenantOneToOneField

DAYS_PER_PARTITION = 7


def oldest_kept_day() -> int:
    """Return the first day, since 1970, whose partition is kept even if it is empty."""
    return int(timezone.now().timestamp()) // 86_400 - 2 * DAYS_PER_PARTITION


class EventType(models.TextChoices):
    """The kinds of event."""

    CALL = "call", "Call"
    RESULT = "result", "Result"
    MESSAGE = "message", "Message"
    END = "end", "End"
    COMPACTION = "compaction", "Compaction"
    USAGE = "usage", "Usage"
    HEARTBEAT = "heartbeat", "Heartbeat"


class MessageRole(models.TextChoices):
    """Who wrote a message. Only a person's (`USER`) begin runs, reset counters and contain in-chat commands.

    `PROGRAM` is what a program wrote in a person's place; see `integrations.people`.
    """

    USER = "user", "User"
    ASSISTANT = "assistant", "Assistant"
    SYSTEM = "system", "System"
    PROGRAM = "program", "Program"


class Event(TenantModel):
    """A call, a result, a message, the end of a session, a compaction, the usage of a model response, or a heartbeat.

    `content` is the text of the result or message, cut to the published limit; `content_length` is its full length in
    characters. `verdict` is null for a plain allow, else everything needed to repeat it for a resent call.
    """

    pk = models.CompositePrimaryKey("project_id", "session_id", "seq")
    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(
        Session, on_delete=models.DO_NOTHING, db_constraint=False, related_name="events"
    )
    seq = models.IntegerField()
    type = models.CharField(max_length=16, choices=EventType.choices)
    call_id = models.CharField(max_length=256, default="")
    tool = models.CharField(max_length=128, default="")
    cwd = models.CharField(
        max_length=1024, default="", help_text="Of a call: the working directory, if known."
    )
    arguments = models.TextField(null=True)  # noqa: DJ001 - null: not stored
    content = models.TextField(null=True)  # noqa: DJ001 - null: not stored
    content_length = models.IntegerField(default=0)
    tail_digest = models.CharField(
        max_length=32, default="", help_text="Keyed digest of a result that was cut."
    )
    arguments_digest = models.CharField(
        max_length=16, default="", help_text="Keyed digest of the arguments of a call."
    )
    closes = models.IntegerField(
        default=0,
        help_text="Of a result or heartbeat: the sequence number of its call; "
        "of a usage: of the first call of its round; 0 if there is none.",
    )
    is_error = models.BooleanField(null=True)
    role = models.CharField(
        max_length=16, default="", help_text="Of a message: who wrote it; empty is the user."
    )
    round = models.CharField(max_length=256, default="")
    run = models.CharField(max_length=256, default="")
    backend = models.CharField(max_length=128, default="")
    model = models.CharField(max_length=200, default="")
    agent = models.CharField(max_length=128, default="")
    tokens = models.IntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=12, decimal_places=6, default=0)
    occurred_at = models.DateTimeField(null=True)
    received_at = models.DateTimeField(db_default=Now())
    altered = models.CharField(
        max_length=120, default="", help_text="Comma-separated marks of what was altered."
    )
    call_key = models.CharField(max_length=32, default="")
    result_digest = models.CharField(max_length=32, default="")
    flags = models.CharField(max_length=12, default="", help_text="Flags of the cell in the loop strip.")
    decision = models.CharField(max_length=8, default="allow")
    call_number = models.IntegerField(
        default=0, help_text="Which call of its session it is, from 1; 0 until it is evaluated."
    )
    reply = models.TextField(
        default="", help_text="Of a message: the replies to its in-chat commands, one a line."
    )
    verdict = VerdictField(null=True)

    class Meta:
        managed = False  # created by hand in the first migration: Django cannot declare partitions
        db_table = "detection_event"

    def __str__(self) -> str:
        return f"{self.session_id}/{self.seq} {self.type}"


class EventKey(TenantModel):
    """An event id that a client has used. It is accepted once per project, however often it is sent.

    The gateway keeps ids of responses here, too, with the session that a later request continues by naming one.
    """

    pk = models.CompositePrimaryKey("project_id", "digest")
    project = ProjectKey(Project, on_delete=models.CASCADE)
    digest = models.BinaryField(max_length=16)
    session_id = models.BigIntegerField()
    received_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=("received_at",), name="event_key_age"),)

    def __str__(self) -> str:
        return f"{self.project_id}/{self.session_id}"


class PackedEvents(TenantModel):
    """All events of a session that has rested for long, column by column and compressed, in place of their rows.

    Written by `services.sessions.packing` and read by `selectors.packed_events`; deleted with the session.
    """

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantOneToOneField(Session, primary_key=True, on_delete=models.CASCADE, related_name="+")
    events = models.IntegerField()
    agents = ArrayField(models.CharField(max_length=128), help_text="Agents that the events name, sorted.")
    row_bytes = models.BigIntegerField(help_text="Size that the rows had, without their indexes.")
    columns = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.events} events of {self.session_id}"
