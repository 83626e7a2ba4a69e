"""Sessions and the tracker state that detection keeps for each."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from detection.engine.detectors import detector_for
from detection.integrations.hosts import can_end_run
from detection.integrations.labels import MAX_LABELS, MAX_TAG_CHARACTERS, Labels
from detection.integrations.reach import NEWEST_CALLS, REACH_WORDS, WATCH_ONLY
from detection.models.projects import Project
from detection.models.session_state import RARE_STATES, STORED_STATES, SessionState, StoppedByKind
from detection.models.tenants import ProjectKey, TenantModel, TenantOneToOneField

NEW_SESSION_ID = RawSQL(
    "(floor(extract(epoch from now()) / 86400)::bigint << 32) | (nextval('detection_session_counter') & 4294967295)",
    (),
)
"""A session's id is the day of its start (days since 1970) above 32 bits of a counter."""

IMPORTED = "import/"
"""How the integration of an imported session begins."""
HOOKS = "hooks/"
"""How that of a session with hooks begins, before the name of the host."""
OTLP = "otlp"
"""The integration of sessions that are known by their telemetry alone."""
MAX_COST_USD = 99_999_999.0
"""The highest cost that a session or an incident shows: their columns hold no more. More costs are not added."""
_RANKS = {"": 0, OTLP: 1, "events": 2}
"""Integrations that cannot block a call; all others rank above."""


def cost_with(cost_usd: Decimal | float, more_usd: Decimal | float) -> float:
    """Return a cost with another one, at most `MAX_COST_USD`."""
    return min(float(cost_usd) + float(more_usd), MAX_COST_USD)


class SessionKey(NamedTuple):
    """The key of a session's row, with which those of all that belongs to the session begin."""

    project_id: int
    session_id: int


class Session(TenantModel):
    """One agent conversation, named by the client within its project.

    The row's lock orders everything that happens to a session. `last_seq` is the sequence number given last,
    `evaluated_seq` how far detection has come; a session with work to do is one where the two differ.
    `changed_xid` is the transaction that touched the row last: the live page's cursor, free of gaps.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="sessions")
    id = models.BigIntegerField(primary_key=True, db_default=NEW_SESSION_ID, editable=False)
    external_id = models.CharField(max_length=256)
    agent = models.CharField(max_length=128, blank=True, default="")
    backend = models.CharField(max_length=128, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    parent_external_id = models.CharField(max_length=256, blank=True, default="")
    is_demo = models.BooleanField(default=False)
    integration = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        help_text="How its first event came: guard, events, client, mcp, gateway, litellm, hooks/<host> or "
        "import/<form>.",
    )
    reach = models.CharField(
        max_length=10,
        choices=REACH_WORDS.items(),
        default=WATCH_ONLY,
        db_default=WATCH_ONLY,
        help_text="What can be done to it: by the weakest of its newest calls, or less if a stop showed that.",
    )
    call_reaches = models.CharField(
        max_length=NEWEST_CALLS,
        blank=True,
        default="",
        db_default="",
        help_text="The reach of its newest calls, a letter each, oldest first.",
    )

    api_key = models.CharField(
        max_length=16,
        blank=True,
        default="",
        db_default="",
        help_text="Readable part of the key that its newest events came with.",
    )
    tags = ArrayField(models.CharField(max_length=MAX_TAG_CHARACTERS), default=list, db_default=[])
    metadata = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))

    state = models.CharField(
        max_length=16,
        choices=[(state.value, state.label) for state in STORED_STATES],
        default=SessionState.RUNNING,
        help_text="As stored; time alone makes it silent, idle or ended.",
    )
    outcome = models.CharField(
        max_length=16, blank=True, default="", help_text="completed, failed or cancelled"
    )
    started_at = models.DateTimeField(db_default=Now())
    last_event_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When its end was reported.")
    has_open_call = models.BooleanField(
        default=False, db_default=False, help_text="Whether its newest call has no result yet."
    )
    last_loop_call_at = models.DateTimeField(
        null=True, blank=True, help_text="The newest call of the loop that it is in; null outside of a loop."
    )

    last_seq = models.IntegerField(default=0)
    evaluated_seq = models.IntegerField(default=0)
    pending_since = models.DateTimeField(
        null=True, blank=True, help_text="When the oldest unevaluated event was received."
    )
    call_count = models.IntegerField(default=0)
    blocked_count = models.IntegerField(default=0)
    warned_count = models.IntegerField(default=0, db_default=0)
    token_count = models.BigIntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=14, decimal_places=6, default=0)
    last_tool = models.CharField(max_length=128, blank=True, default="")
    meter_kind = models.CharField(max_length=16, blank=True, default="")
    meter_count = models.IntegerField(default=0)
    meter_limit = models.IntegerField(default=0)
    strip = models.JSONField(
        default=list,
        encoder=DjangoJSONEncoder,
        help_text="The last 60 calls as [seq, key, flags, number], oldest first.",
    )

    policy_values = models.JSONField(default=dict, help_text="Overrides of this session.")
    stopped_by_kind = models.CharField(
        max_length=16, choices=StoppedByKind.choices, blank=True, default="", db_default=""
    )
    stopped_at = models.DateTimeField(null=True, blank=True)
    stopped_by = models.CharField(
        max_length=150, blank=True, default="", help_text="The person, or the detector that decided."
    )
    stop_reason = models.CharField(max_length=300, blank=True, default="")
    stop_reach = models.CharField(
        max_length=10, blank=True, default="", db_default="", help_text="Its reach when it was to be stopped."
    )
    refused_since_stop = models.IntegerField(
        default=0, db_default=0, help_text="Calls and requests refused since then."
    )
    ran_since_stop = models.IntegerField(default=0, db_default=0, help_text="Calls that ran since then.")
    has_run_last = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the newest call since then ran, as far as is known.",
    )
    seen_reach = models.CharField(
        max_length=10,
        blank=True,
        default="",
        db_default="",
        help_text="The most that a stop was seen to do, if less.",
    )
    would_have_stopped_at_call = models.IntegerField(
        null=True, blank=True, help_text="Number of the first observed call that would have been stopped."
    )
    has_active_incident = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether an incident of the session has no end; healthy sessions cost no query.",
    )
    exempt_tools = models.JSONField(
        default=list,
        db_default=Value([], models.JSONField()),
        help_text="Tools that a person exempted in this session.",
    )
    silence_check_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When to look whether something of the session is stalled; null if nothing can be.",
    )
    packed_at = models.DateTimeField(
        null=True, blank=True, help_text="When its events were packed; null if they are rows."
    )
    unpacked_at = models.DateTimeField(
        null=True, blank=True, help_text="When packed events became rows again last."
    )
    changed_xid = models.BigIntegerField(
        db_default=RawSQL("pg_current_xact_id()::text::bigint", ()), editable=False
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("project", "external_id"), name="session_named_once"),
            models.CheckConstraint(
                condition=models.Q(evaluated_seq__gte=0) & models.Q(evaluated_seq__lte=models.F("last_seq")),
                name="evaluated_within_received",
            ),
            # PostgreSQL reads the text of a condition anew for every statement that writes the table. An array in one
            # literal takes a third of the time of Django's list of values.
            models.CheckConstraint(
                condition=RawSQL(  # noqa: S611 - of our own values
                    f"state = ANY ('{{{','.join(STORED_STATES)}}}'::text[])", (), models.BooleanField()
                ),
                name="session_state_known",
            ),
            models.CheckConstraint(
                condition=RawSQL(
                    "(stopped_by_kind = '') = (stopped_at IS NULL)"
                    " AND stopped_by_kind = ANY ('{\"\",person,detection,containment}'::text[])",
                    (),
                    models.BooleanField(),
                ),
                name="session_stop_has_kind_and_time",
            ),
        )
        indexes = (
            # Statistics counts the sessions of a range without reading their rows, which are wide.
            models.Index(
                fields=("project", "-last_event_at", "-id"),
                name="session_by_time",
                include=("blocked_count", "warned_count"),
            ),
            models.Index(fields=("project", "changed_xid"), name="session_changes"),
            models.Index(
                fields=("pending_since",),
                name="session_pending",
                condition=models.Q(evaluated_seq__lt=models.F("last_seq")),
            ),
            # Of few sessions each, so that every other call keeps no more than the indexes above.
            models.Index(
                fields=("project", "-last_event_at", "-id"),
                name="session_remarkable",
                condition=models.Q(state__in=[state.value for state in RARE_STATES]),
            ),
            models.Index(
                fields=("last_event_at",),
                name="session_with_active_incident",
                condition=models.Q(has_active_incident=True),
            ),
            models.Index(
                fields=("silence_check_at",),
                name="session_silence",
                condition=models.Q(silence_check_at__isnull=False),
            ),
            models.Index(
                fields=("project", "parent_external_id"),
                name="session_of_parent",
                condition=~models.Q(parent_external_id=""),
            ),
            # Sessions without tags or metadata cost these two nothing.
            GinIndex(fields=("tags",), name="session_with_tags", condition=~models.Q(tags=[])),
            GinIndex(
                OpClass("metadata", name="jsonb_path_ops"),
                name="session_with_metadata",
                condition=~models.Q(metadata={}),
            ),
            models.Index(
                fields=("project", "-last_event_at", "-id"),
                name="session_of_demo",
                condition=models.Q(is_demo=True),
            ),
        )

    def __str__(self) -> str:
        return self.external_id

    @property
    def key(self) -> SessionKey:
        """The key of the row."""
        return SessionKey(self.project_id, self.id)

    @property
    def is_imported(self) -> bool:
        """Whether the session was imported and therefore sends no alerts."""
        return self.integration.startswith(IMPORTED)

    def note_sender(
        self, integration: str, agent: str, backend: str, model: str, parent_session: str, api_key: str = ""
    ) -> None:
        """Record what sent an event or a request, and those of its names that are not empty.

        The first integration is kept, unless it only observes and the new one can block calls.
        """
        self.api_key = api_key or self.api_key
        self.agent, self.backend = agent or self.agent, backend or self.backend
        self.model = model or self.model
        self.parent_external_id = parent_session or self.parent_external_id
        if _RANKS.get(integration, len(_RANKS)) > _RANKS.get(self.integration, len(_RANKS)):
            self.integration = integration

    def note_labels(self, labels: Labels) -> None:
        """Add tags and metadata that a client sent, as far as they fit; a known key gets its new value."""
        if any(labels):
            known = Labels(tuple(self.tags), self.metadata).joined(labels)
            self.tags = [*known.tags][:MAX_LABELS]
            self.metadata = dict([*known.metadata.items()][:MAX_LABELS])

    @property
    def is_stopped_by_person(self) -> bool:
        """Whether a person stopped the session and it was not resumed."""
        return self.stopped_by_kind == StoppedByKind.PERSON

    @property
    def is_refused(self) -> bool:
        """Whether detection stopped a session in a loop whose run continues after a stop: all its calls are blocked.

        It lasts until the run is over, see `Folding.begin_run`, or a person resumes the session. A limit that is
        reached refuses calls by itself, until it is raised.
        """
        continues = bool(self.seen_reach) or not can_end_run(self.integration)
        return continues and self.is_ended_by_loop

    @property
    def is_ended_by_loop(self) -> bool:
        """Whether detection stopped the session in a loop, and not because a limit was reached."""
        return (
            self.stopped_by_kind == StoppedByKind.DETECTION and not detector_for(self.stopped_by).is_run_limit
        )


class TrackerState(TenantModel):
    """The engine's snapshot of one session: versioned, bounded, and rebuilt from the stored events when outdated."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantOneToOneField(Session, primary_key=True, on_delete=models.CASCADE, related_name="tracker")
    version = models.PositiveSmallIntegerField()
    snapshot = models.BinaryField()
    updated_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"state of {self.session_id}"


class ReadMessages(TenantModel):
    """Memory of the message lists read in a session: a bounded number of keyed digests."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantOneToOneField(
        Session, primary_key=True, on_delete=models.CASCADE, related_name="read_messages"
    )
    digests = models.BinaryField()

    def __str__(self) -> str:
        return f"messages of {self.session_id}"
