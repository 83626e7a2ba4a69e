"""Incidents: the stored life of one loop in one session."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final, Protocol

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Now

from detection.engine.calls import DECISIONS
from detection.engine.policy import ExplainedSetting
from detection.models.evidence import Evidence, IncidentFinding
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.sessions import Session
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class IncidentStatus(models.TextChoices):
    """What is left to do about an incident; see `Incident` for the transitions."""

    OPEN = "open", "Open"
    ENDED = "ended", "Ended"
    DONE = "done", "Done"


class IncidentLabel(models.TextChoices):
    """A person's verdict on an incident."""

    NONE = "", "Not labelled"
    TRUE_LOOP = "true_loop", "A loop"
    FALSE_ALARM = "false_alarm", "Not a loop"


class LabelReason(models.TextChoices):
    """Why an incident is not a loop, in a person's view."""

    NONE = "", "No reason given"
    POLL = "poll", "Polling: it waits for a state to change"
    VOLATILE_ARGUMENT = "volatile_argument", "A volatile argument, such as a cursor or a nonce"
    HONEST_REPETITION = "honest_repetition", "Honest repetition: the work repeats itself"
    BROKEN_TOOL = "broken_tool", "A broken tool: the agent is right to try again"
    OTHER = "other", "Something else"


class ReactionOutcome(models.TextChoices):
    """What an agent did after a reaction to its loop."""

    CHANGED = "changed", "Changed course"
    WENT_ON = "went_on", "Continued"
    ASKED = "asked", "Left it to a person"
    ENDED = "ended", "Ended or was blocked"


IS_LOOP: Final = ~models.Q(label=IncidentLabel.FALSE_ALARM)
"""What calls and money in loops are summed over: all incidents except those labelled "not a loop"."""


class Incident(TenantModel):
    """A loop in one session, from its first finding until it ends, whichever detectors see it.

    At most one incident per loop and session is active (`ended_at` null). `evidence` and `policy` are copies, so an
    incident stays readable after its calls were deleted and its settings changed.

    `findings` are what its detectors found. It is named after one of them, the first whose reaction was the strictest
    so far: `calls_digest`, `kind`, `tool`, `count`, `limit`, `window_seconds` and `confidence` are of that finding.

    People act on its `Loop`; an incident has no actions of its own. Its loop in the session is active or ended
    (`ended_at`), and the status follows from that and from what was decided about the loop:

    ======  ====================================================================================================
    status  when
    ======  ====================================================================================================
    done    a person closed its loop while it was open
    ended   its loop has ended (the agent changed course, the session ended or was abandoned), or a person labelled
            it "not a loop"; not while `stays_open` is set
    open    otherwise
    ======  ====================================================================================================

    `stays_open` is set when a guarded call of it was answered `stop`, or its approval expired or ended in a stop: it
    needs attention. *Done* and *This is fine* of its loop clear it. Removing the label of an active loop opens
    the incident again, and undo applies the rules to what it restores.

    A closed loop that continues, and an ended one that returns, is a new incident. An incident labelled "not a loop"
    keeps collecting the findings of its loop until that ends, and does not make its session looping.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="incidents")
    public_id = models.CharField(max_length=32, default=partial(new_id, "inc_", 15), editable=False)
    session = TenantForeignKey(Session, on_delete=models.SET_NULL, null=True, related_name="incidents")
    session_name = models.CharField(max_length=256)
    agent = models.CharField(max_length=128, blank=True, default="")
    backend = models.CharField(max_length=128, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    is_demo = models.BooleanField(default=False)
    is_of_family = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether it is about a whole family of sessions. It is reported at the session at the top, whose row "
        "says nothing about it; the evidence names the sessions.",
    )

    calls_digest = models.CharField(
        max_length=32,
        help_text="Digest of the detector and the calls of the finding that acted: the same calls in other sessions "
        "have the same.",
    )
    loop = TenantForeignKey(
        "detection.Loop",
        on_delete=models.CASCADE,
        db_index=False,
        related_name="incidents",
        help_text="The same loop in other sessions, whatever the arguments.",
    )
    findings: models.JSONField[dict[str, IncidentFinding], dict[str, IncidentFinding]] = models.JSONField(
        default=dict,
        db_default={},
        help_text="What each detector found of the loop, by the digest of its calls.",
    )
    kinds = ArrayField(
        models.CharField(max_length=16),
        default=list,
        db_default=[],
        help_text="The detectors of the findings, that which acted first.",
    )
    is_recorded_only = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the policy asks for no reaction of any of its detectors: nobody is alerted.",
    )
    kind = models.CharField(max_length=16, help_text="The detector that acted.")
    tool = models.CharField(max_length=128, help_text="The tool, or the tools of a cycle joined by arrows.")
    count = models.IntegerField()
    limit = models.IntegerField()
    window_seconds = models.FloatField(null=True, blank=True)
    confidence = models.FloatField(default=1.0)
    detections = models.IntegerField(default=1)
    was_guarded = models.BooleanField(
        default=False,
        help_text="Whether calls were sent to the guard. Observed calls are never blocked.",
    )
    calls_blocked = models.IntegerField(default=0)
    calls_in_loop = models.IntegerField(default=0)
    counted_calls = models.IntegerField(
        default=0,
        db_default=0,
        help_text="Calls of the loop that no earlier incident counts. Sums add these, so that each call counts once.",
    )
    cost_usd = models.DecimalField(
        max_digits=14, decimal_places=6, default=0, help_text="Cost of the counted calls."
    )
    decision = models.CharField(max_length=8, help_text="The strictest decision so far.")
    rung = models.CharField(max_length=16, blank=True, default="")
    first_seq = models.IntegerField()
    last_seq = models.IntegerField()
    first_call_number = models.IntegerField(
        default=0, db_default=0, help_text="Which call of the session the loop began with, from 1."
    )
    last_call_number = models.IntegerField(
        default=0, help_text="Number of calls in the session at the last finding."
    )
    evidence: models.JSONField[Evidence, Evidence] = models.JSONField(default=dict)
    reactions = models.GeneratedField(
        expression=KeyTransform("reactions", "evidence"),
        output_field=models.JSONField(null=True),
        db_persist=True,
        help_text="What the agent did after each reaction, of the evidence, which takes much longer to read.",
    )
    policy: models.JSONField[dict[str, ExplainedSetting], dict[str, ExplainedSetting]] = models.JSONField(
        default=dict
    )

    status = models.CharField(max_length=16, choices=IncidentStatus.choices, default=IncidentStatus.OPEN)
    label = models.CharField(
        max_length=16, choices=IncidentLabel.choices, blank=True, default=IncidentLabel.NONE
    )
    label_reason = models.CharField(
        max_length=20,
        choices=LabelReason.choices,
        blank=True,
        default=LabelReason.NONE,
        db_default="",
        help_text="Of the label “not a loop”.",
    )
    labelled_at = models.DateTimeField(null=True, blank=True)
    stays_open = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether it stays open until a person closes its loop, although it ended in the session.",
    )
    recovered = models.BooleanField(
        null=True, blank=True, help_text="Whether the agent recovered after the last reaction."
    )
    opened_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-last_seen_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="incident_id"),
            models.UniqueConstraint(
                fields=("project", "session", "calls_digest"),
                name="one_active_incident_per_loop",
                condition=models.Q(ended_at__isnull=True, is_of_family=False),
            ),
            models.UniqueConstraint(
                fields=("project", "session_name", "calls_digest"),
                name="one_active_incident_of_family",
                condition=models.Q(ended_at__isnull=True, is_of_family=True),
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=IncidentStatus.values), name="incident_status_known"
            ),
            models.CheckConstraint(
                condition=models.Q(label__in=IncidentLabel.values), name="incident_label_known"
            ),
        )
        indexes = (
            models.Index(fields=("project", "-last_seen_at", "-id"), name="incident_newest"),
            models.Index(fields=("project", "status", "-last_seen_at"), name="incident_by_status"),
            models.Index(fields=("project", "calls_digest"), name="incident_by_calls"),
            models.Index(fields=("loop", "-last_seen_at", "-id"), name="incident_in_loop"),
            models.Index(
                fields=("project", "status", "loop"),
                name="incident_at_work",
                condition=models.Q(status="open"),
            ),
            models.Index(fields=("project", "-id"), name="incident_labelled", condition=~models.Q(label="")),
            models.Index(fields=("session", "first_seq"), name="incident_in_session"),
            models.Index(fields=("project",), name="incident_of_demo", condition=models.Q(is_demo=True)),
        )

    def __str__(self) -> str:
        return f"{self.kind} of {self.tool} in {self.session_name}"

    @property
    def is_active(self) -> bool:
        """Whether its loop continues, and nobody labelled it "not a loop"."""
        return self.ended_at is None and self.status != IncidentStatus.ENDED

    @property
    def findings_by_weight(self) -> list[IncidentFinding]:
        """Its findings: that which acted, then the others, those with the strictest decision and found first before."""
        order = sorted(
            self.findings.items(),
            key=lambda item: (
                item[0] != self.calls_digest,
                -DECISIONS.index(item[1]["decision"]),
                item[1]["first_seq"],
            ),
        )
        return [finding for _, finding in order]

    @property
    def is_released(self) -> bool:
        """Whether its held call was allowed and the loop was not found again since: it is not active meanwhile."""
        return bool(self.evidence.get("released"))


class _HasEnd(Protocol):
    """The fields of an incident that its end depends on."""

    @property
    def label(self) -> str: ...
    @property
    def labelled_at(self) -> datetime | None: ...
    @property
    def ended_at(self) -> datetime | None: ...
    @property
    def is_active(self) -> bool: ...


def shown_end(incident: _HasEnd) -> datetime | None:
    """Return when an incident ended: with its loop, or earlier by the label "not a loop". None while it is active.

    `ended_at` is the end of the loop: an incident collects the findings of its loop after the label, too.
    """
    if incident.is_active or incident.label != IncidentLabel.FALSE_ALARM:
        return incident.ended_at
    return min(filter(None, (incident.labelled_at, incident.ended_at)), default=None)


EXCEPTION_ACTIONS = EXCEPTED, EXCEPTION_UNDONE = "excepted", "exception_undone"


class IncidentActivity(TenantModel):
    """What happened to an incident: by detection, by a verb of its loop, or by an exception; written once."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    incident = TenantForeignKey(Incident, on_delete=models.CASCADE, related_name="activity")
    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=150, help_text="A user name, key:<id> or system.")
    action = models.CharField(max_length=32)
    note = models.CharField(max_length=1000, blank=True, default="")
    before = models.JSONField(default=dict, help_text="Changed fields with their previous values, for undo.")
    loop_change = TenantForeignKey(
        "LoopActivity",
        null=True,
        on_delete=models.SET_NULL,
        related_name="incident_activity",
        db_index=False,
        help_text="The action on the loop that it is a part of.",
    )

    class Meta:
        ordering = ("at", "id")
        verbose_name_plural = "incident activity"
        indexes = (
            models.Index(
                fields=("loop_change",),
                name="activity_loop_change",
                condition=models.Q(loop_change__isnull=False),
            ),
            models.Index(
                fields=("incident", "-id"),
                name="activity_of_exceptions",
                condition=models.Q(action__in=EXCEPTION_ACTIONS),
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"
