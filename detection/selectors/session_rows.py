"""The row of a session: what lists, exports, the API and filters have of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from detection.integrations.reach import REACHES
from detection.models import Session, SessionState, StoppedByKind
from detection.models.session_state import is_in_loop, shown_state
from detection.selectors.row_fields import Shown


@dataclass(frozen=True, slots=True)
class MeterRow:
    """How close a session is to its next finding."""

    # fmt: off
    kind: Annotated[str, Shown("Detector.")]
    count: Annotated[int, Shown("Current count.")]
    limit: Annotated[int, Shown(
        "The count at which the detector fires; of a budget, what it allows: of rounds and calls, one less than the "
        "setting.",
    )]
    # fmt: on


@dataclass(frozen=True, slots=True)
class SessionStop:
    """Who stopped a session, why, and what has come of it."""

    # fmt: off
    kind: Annotated[str, Shown(
        "Whether a person, detection or a containment stopped it.", choices=("person", "detection", "containment"),
    )]
    at: Annotated[datetime, Shown("When it was recorded.")]
    by: Annotated[str, Shown("A user name, `key:<id>`, or the detector that decided.")]
    reason: Annotated[str, Shown("The reason given, or the finding in words.")]
    refused: Annotated[int, Shown("Calls and requests that were blocked since then.")]
    ran: Annotated[int, Shown("Calls that ran since then.")]
    # fmt: on


def _state(row: SessionRow | Session) -> str:
    return shown_state(row)


def _in_loop(row: SessionRow | Session) -> bool:
    return is_in_loop(row)


def _meter(row: SessionRow | Session) -> MeterRow | None:
    return MeterRow(row.meter_kind, row.meter_count, row.meter_limit) if row.meter_kind else None


def _stop(row: SessionRow | Session) -> SessionStop | None:
    if row.stopped_at is None:
        return None
    return SessionStop(
        row.stopped_by_kind,
        row.stopped_at,
        row.stopped_by,
        row.stop_reason,
        row.refused_since_stop,
        row.ran_since_stop,
    )


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as lists show it."""

    # fmt: off
    id: int
    project_id: int
    external_id: Annotated[str, Shown(
        "Your name for the session.", name="session", filter="session", help="Session", sort="session",
    )]
    state: Annotated[str, Shown(
        "State: `looping` (a call of its loop within two minutes), `silent` (in a loop, but without a call of it "
        "since), `held`, `running`, `idle` (no event for 10 minutes), `ended` (reported, or no event for an hour "
        "while no call is open or held). Of a session that is to be stopped: `stopping` (nothing was refused yet), "
        "`stopped` (a call was), `calls_blocked` (the same where the run cannot be ended), `stop_unenforced` (it only"
        " reports its calls, or ran some and is silent) or `still_calling` (it was refused, and a call ran "
        "nevertheless).",
        choices=SessionState, show=_state,
    )]
    last_loop_call_at: Annotated[datetime | None, Shown(
        "Whether it is in a loop, whatever its state.", name="in_loop", show=_in_loop,
    )]
    has_open_call: bool
    outcome: Annotated[str, Shown(
        "`completed`, `failed` or `cancelled`, once it has ended.", is_optional=True,
    )]
    agent: Annotated[str, Shown("Agent.", filter="agent", sort="agent")]
    backend: Annotated[str, Shown("LLM backend.", filter="backend")]
    model: Annotated[str, Shown("Model.", filter="model")]
    parent_external_id: Annotated[str, Shown(
        "Session of the agent that started this one.", name="parent_session", is_optional=True, filter="parent",
        help="Session that started it",
    )]
    is_demo: Annotated[bool, Shown("Whether the demo created it.", filter="demo")]
    integration: Annotated[str, Shown(
        "How its first event arrived: `guard`, `events`, `client` (the clients), `mcp`, `gateway`, `litellm`, `otlp`, "
        "`hooks/<host>` or `import/<form>`. For `gateway`, `backend` is the gateway's backend.", filter="integration",
        help="How its first event arrived",
    )]
    reach: Annotated[str, Shown(
        "What can be done to it, by the weakest of its newest ten calls and by the outcome of a stop: it `can_stop` "
        "(no further call runs and the run ends), its calls `can_block` one by one while the agent continues, or "
        "`watch_only`: calls are reported after they ran, or run although they were refused.",
        choices=REACHES, filter="reach", help="What can be done to it",
    )]
    tags: Annotated[list[str], Shown("Tags that clients gave it.")]
    metadata: Annotated[dict[str, str], Shown("Metadata that clients gave it.")]
    started_at: Annotated[datetime, Shown(
        "When the first event was received.", filter="started", help="When it started", sort="started",
    )]
    last_event_at: Annotated[datetime, Shown(
        "When the last event was received.", filter="last", help="Last event", sort="last",
    )]
    ended_at: Annotated[datetime | None, Shown("When its end was reported.")]
    packed_at: Annotated[datetime | None, Shown(
        "When its events were packed, as `pack_after_days` of the project says. They are read as before, and the next "
        "event or change of the session unpacks them.",
    )]
    call_count: Annotated[int, Shown(
        "Number of calls.", name="calls", filter="calls", help="Calls", sort="calls",
    )]
    blocked_count: Annotated[int, Shown(
        "Number of blocked calls.", name="blocked", filter="blocked", help="Blocked calls", sort="blocked",
    )]
    warned_count: Annotated[int, Shown(
        "Number of calls with a warning.", name="warned", filter="warned", help="Calls with a warning",
    )]
    token_count: Annotated[int, Shown("Tokens used.", name="tokens", filter="tokens", help="Tokens")]
    cost_usd: Annotated[Decimal, Shown("Cost in US dollars.", filter="cost", sort="cost")]
    last_tool: Annotated[str, Shown("Tool of the last call.", sort="tool")]
    meter_kind: Annotated[str, Shown(
        "How close the session is to its next finding.", name="meter", show=_meter,
    )]
    meter_count: int
    meter_limit: int
    last_seq: int
    evaluated_seq: Annotated[int, Shown(
        "Events that are not evaluated yet.", name="pending_events", show=lambda row: row.last_seq - row.evaluated_seq,
    )]
    pending_since: datetime | None
    strip: list[list[Any]]
    policy_values: dict[str, Any]
    stopped_by_kind: Annotated[str, Shown(
        "Set while the session is to be stopped: by a person until someone resumes it, by detection until its run is "
        "over or a later call is allowed. `state` says what has come of it.", name="stopped", show=_stop,
    )]
    stopped_at: datetime | None
    stopped_by: str
    stop_reason: str
    stop_reach: str
    refused_since_stop: int
    ran_since_stop: int
    has_run_last: bool
    would_have_stopped_at_call: Annotated[int | None, Shown(
        "Number of the first observed call that would have been stopped. Observed sessions keep running.",
    )]
    # fmt: on

    @property
    def is_stopped_by_person(self) -> bool:
        """Whether a person stopped the session and it was not resumed."""
        return self.stopped_by_kind == StoppedByKind.PERSON

    @property
    def shown_state(self) -> SessionState:
        """The state at this moment."""
        return shown_state(self)
