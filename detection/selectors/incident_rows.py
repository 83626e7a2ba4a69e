"""The row of an incident: what lists, exports, the API and filters have of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final

from django.db.models import BooleanField, ExpressionWrapper, Q

from detection.engine.field import RUNGS
from detection.models.incidents import IncidentStatus, shown_end
from detection.selectors.row_fields import Shown

STATUSES: Final = tuple(IncidentStatus.values)
_IS_ACTIVE = ExpressionWrapper(Q(ended_at=None) & ~Q(status=IncidentStatus.ENDED), BooleanField())


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident as lists and exports show it."""

    # fmt: off
    id: int
    public_id: Annotated[str, Shown("Id of the incident.", name="id")]
    session_name: Annotated[str, Shown(
        "Your name for the session.", name="session", filter="session", help="Session", sort="session",
    )]
    agent: Annotated[str, Shown("Agent.", filter="agent")]
    backend: Annotated[str, Shown("LLM backend.", filter="backend")]
    model: Annotated[str, Shown("Model.", filter="model")]
    is_demo: Annotated[bool, Shown("Whether the demo created it.", filter="demo")]
    calls_digest: Annotated[str, Shown(
        "Digest of the loop's calls. Incidents of the same calls in other sessions share it.", filter="calls_digest",
        help="Digest of the calls: the same calls in other sessions", completes=False,
    )]
    loop_id: Annotated[str, Shown(
        "Id of the loop, which has the same loop in other sessions, whatever the arguments.", column="loop__public_id",
        filter="loop", help="Id of the loop, which other sessions have, too", completes=False,
    )]
    kind: Annotated[str, Shown("The detector that acted: the first with the strictest reaction.")]
    kinds: Annotated[list[str], Shown("All detectors that found the loop, that which acted first.", name="found_by")]
    tool: Annotated[str, Shown(
        "The tool, or the tools of a cycle.", filter="tool", help="Tool, or the tools of a cycle", sort="tool",
    )]
    count: Annotated[int, Shown("The highest count so far.", filter="count", help="Highest count", sort="count")]
    limit: Annotated[int, Shown("The count at which the detector fires.")]
    window_seconds: Annotated[float | None, Shown("Length of the time window in seconds, if any.")]
    confidence: Annotated[float, Shown(
        "Confidence of the finding, 0 to 1.", filter="confidence", help="Confidence, 0 to 1",
    )]
    is_recorded_only: Annotated[bool, Shown(
        "Whether the policy asks for no reaction of any of its detectors, so that nobody is alerted.",
        name="recorded_only", filter="recorded", help="Whether it is recorded only",
    )]
    decision: Annotated[str, Shown("The strictest decision so far.")]
    rung: Annotated[str, Shown(
        "The escalation ladder's reaction behind that decision, if there was one.", choices=RUNGS, is_optional=True,
    )]
    detections: Annotated[int, Shown("How often the loop was detected.")]
    was_guarded: Annotated[bool, Shown(
        "Whether calls were sent to the guard. If not, nothing was blocked.", filter="guarded",
        help="Whether calls were sent to the guard",
    )]
    calls_blocked: Annotated[int, Shown("Blocked calls.", filter="blocked", sort="blocked")]
    calls_in_loop: Annotated[int, Shown("Calls that belong to the loop.", filter="calls", help="Calls in the loop")]
    counted_calls: Annotated[int, Shown(
        "Calls of the loop that no earlier incident counts. Sums add these, so that each call counts once.",
    )]
    cost_usd: Annotated[Decimal, Shown(
        "Cost of the counted calls, in US dollars.", filter="cost",
        help="Cost of the calls that the incident counts, in US dollars", sort="cost",
    )]
    first_call_number: Annotated[int, Shown("Number of the call in the session at which the loop began, from 1.")]
    last_call_number: Annotated[int, Shown("Number of the call in the session at which the last finding was made.")]
    first_seq: Annotated[int, Shown("Sequence number of the first event of the loop.")]
    last_seq: Annotated[int, Shown("Sequence number of the last event of the loop.")]
    status: Annotated[str, Shown("Status.", choices=STATUSES, sort="status")]
    label: Annotated[str, Shown("`true_loop` or `false_alarm`, if a person labelled it.", is_optional=True)]
    label_reason: Annotated[str, Shown("Why it is not a loop, if a person gave a reason.", is_optional=True)]
    stays_open: Annotated[bool, Shown(
        "Whether it stays open until a person closes its loop, because it led to a stop or its approval was not "
        "answered.",
    )]
    is_active: Annotated[bool, Shown(
        "Whether the loop continues. False for the status `ended`, also while a loop that was labelled `false_alarm` "
        "continues.", column=_IS_ACTIVE,
    )]
    recovered: Annotated[bool | None, Shown("Whether the agent recovered. Null while unknown.")]
    opened_at: Annotated[datetime, Shown("When it was opened.", filter="opened", sort="opened")]
    last_seen_at: Annotated[datetime, Shown("When the loop was last detected.", filter="seen", sort="seen")]
    ended_at: Annotated[datetime | None, Shown(
        "When the loop ended, or the incident by the label `false_alarm`, whichever came first.", show=shown_end,
    )]
    done_at: Annotated[datetime | None, Shown("When a person closed it with its loop.")]
    program: Annotated[str, Shown(column="loop__program")]
    labelled_at: datetime | None
    # fmt: on

    @property
    def cost_note(self) -> str:
        """Why it has no cost of its own: ``shared``, if other incidents count all its calls; empty for others."""
        return "shared" if self.calls_in_loop and not self.counted_calls else ""
