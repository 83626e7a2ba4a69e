"""Loops: the same loop across sessions and agents, with what people decided about it."""

from __future__ import annotations

from functools import partial

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from detection.models.incidents import IncidentLabel
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel, TenantOneToOneField


class LoopStatus(models.TextChoices):
    """Status of a loop: derived by `selectors.loops`, never stored."""

    OPEN = "open", "Open"
    LATER = "later", "Later"
    FINE = "fine", "Fine"
    DONE = "done", "Done"


class LoopForm(models.TextChoices):
    """What more there is to say of a loop's status; derived, never stored."""

    NONE = "", "None"
    RETURNED = "returned", "Returned"
    LOOPING_NOW = "looping_now", "Looping now"
    HELD = "held", "Held"
    NEW = "new", "New"
    WENT_SILENT = "went_silent", "Went silent"
    ENDED_BY_ITSELF = "ended_by_itself", "Ended by itself"


class Loop(TenantModel):
    """The same loop across sessions and agents.

    A row is created with the first incident of its identity (`detection.engine.loop_identity`) and never changed by
    detection, so that sessions that open incidents of one loop do not wait for one another. All figures are counted
    from the incidents. What people decide is stored: who takes care of it (`assignee`), and how it was closed
    (`done_at`, `label`). *Later* is an alert silence of the loop.

    The status is the first that applies:

    ======  ==========================================================================================
    status  when
    ======  ==========================================================================================
    later   a silence of the loop is active
    open    an incident is open
    fine    a person said so of the loop, or each of its incidents is labelled "not a loop"
    done    otherwise: a person closed it, or each of its incidents ended by itself
    ======  ==========================================================================================

    So a closed loop that is detected again is open: it has returned. An open loop has the first of five forms that
    applies, or none: it is looping now, it has returned, a session in it waits for the answer to a held call, it is new
    (no person has acted on it), it went silent (a session in it continues, without a call for two minutes).
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="loops")
    public_id = models.CharField(max_length=32, default=partial(new_id, "loop_", 15), editable=False)
    key = models.CharField(max_length=32, help_text="Digest of kind, tool, program, results and detail.")
    kind = models.CharField(max_length=16)
    tool = models.CharField(max_length=128, blank=True, help_text="Empty for loops of several tools.")
    program = models.CharField(max_length=64, blank=True, help_text="Program of a shell command.")
    results = models.CharField(max_length=16, blank=True, help_text="errors, empty, or nothing.")
    detail = models.CharField(
        max_length=32, blank=True, help_text="Trouble of a provider, or unit of a budget."
    )
    created_at = models.DateTimeField(db_default=Now())

    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    done_at = models.DateTimeField(null=True, blank=True)
    label = models.CharField(
        max_length=16, choices=IncidentLabel.choices, blank=True, default=IncidentLabel.NONE
    )

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="loop_id"),
            models.UniqueConstraint(fields=("project", "key"), name="one_loop_per_identity"),
            models.CheckConstraint(
                condition=models.Q(label__in=IncidentLabel.values), name="loop_label_known"
            ),
        )
        indexes = (
            models.Index(
                fields=("assignee",), name="loop_of_person", condition=models.Q(assignee__isnull=False)
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} of {self.tool or 'several tools'}"


class LoopActivity(TenantModel):
    """A person's action on a loop, or the end of *Later* by rule.

    An action on all incidents of the loop is carried out in steps: `done_up_to` is the last incident that it has
    reached, `last_incident` the newest incident when it was requested, and `finished_at` is empty until it has reached
    that. `reverts` is the action that an undo reverts.
    """

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    loop = TenantForeignKey(Loop, on_delete=models.CASCADE, related_name="activity")
    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=150, help_text="A user name, key:<id> or system.")
    actor_user_id = models.IntegerField(null=True)
    action = models.CharField(max_length=32)
    note = models.CharField(max_length=1000, blank=True, default="")
    before = models.JSONField(default=dict, help_text="Changed fields with their previous values, for undo.")
    reverts = TenantOneToOneField(
        "self", null=True, on_delete=models.CASCADE, related_name="reverted_by", help_text="For an undo."
    )
    bulk_action = TenantForeignKey(
        "BulkAction",
        null=True,
        on_delete=models.SET_NULL,
        related_name="loop_activity",
        help_text="The action on many loops that it is a part of.",
    )
    last_incident = models.BigIntegerField(default=0)
    done_up_to = models.BigIntegerField(default=0)
    changed = models.IntegerField(default=0, help_text="How many incidents it has changed.")
    claimed_until = models.DateTimeField(null=True, help_text="Until when a process carries it out.")
    finished_at = models.DateTimeField(null=True, db_default=Now())

    class Meta:
        ordering = ("at", "id")
        verbose_name_plural = "loop activity"
        constraints = (
            models.UniqueConstraint(fields=("project", "reverts"), name="loop_change_reverted_once"),
        )
        indexes = (
            models.Index(
                fields=("id",), name="loop_activity_unfinished", condition=models.Q(finished_at=None)
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"
