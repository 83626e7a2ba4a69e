"""The lists that can be filtered: the fields of each, what words are searched for in, the time of its range, its orders."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from django.db.models import Q

from detection.engine.detectors import DETECTORS
from detection.models import Incident
from detection.models.incidents import IncidentLabel, IncidentStatus
from detection.selectors.filters import FieldChoice, FilterField, ListSpec
from detection.selectors.pages import SortKey


def _flag(name: str, help: str, yes: Q) -> FilterField:  # noqa: A002
    """Return a field with the values yes and no."""

    def always(condition: Q) -> Callable[[datetime], Q]:
        return lambda _: condition

    choices = (FieldChoice("yes", "", always(yes)), FieldChoice("no", "", always(~yes)))
    return FilterField(name=name, type="choice", help=help, choices=choices)


def _text(name: str, help: str, column: str = "", *, completes: bool = True) -> FilterField:  # noqa: A002
    return FilterField(name=name, type="text", help=help, column=column or name, completes=completes)


def _number(name: str, help: str, column: str = "", *, is_whole: bool = True) -> FilterField:  # noqa: A002
    return FilterField(name=name, type="number", help=help, column=column or name, is_whole=is_whole)


def _time(name: str, help: str, column: str) -> FilterField:  # noqa: A002
    return FilterField(name=name, type="time", help=help, column=column)


_KIND = FilterField(
    name="kind",
    type="choice",
    help="Detector",
    column="kind",
    choices=tuple(FieldChoice(one.kind, one.label) for one in DETECTORS),
)
_AGENT = _text("agent", "Agent")
_BACKEND = _text("backend", "LLM backend")
_MODEL = _text("model", "Model")

INCIDENTS: Final = ListSpec(
    name="incidents",
    words="incidents",
    model=Incident,
    fields=(
        FilterField(
            name="is",
            type="choice",
            help="Status, or labelled “not a loop”",
            column="status",
            choices=(
                *(FieldChoice(status.value, status.label) for status in IncidentStatus),
                FieldChoice(
                    "not_a_loop", "Labelled “not a loop”", lambda _: Q(label=IncidentLabel.FALSE_ALARM)
                ),
            ),
        ),
        _KIND,
        _text("tool", "Tool, or the tools of a cycle"),
        _AGENT,
        _text("session", "Session", "session_name"),
        _BACKEND,
        _MODEL,
        _text("pattern", "Id of the pattern: the same loop in other sessions", "loop_id", completes=False),
        FilterField(
            name="label",
            type="choice",
            help="Label",
            column="label",
            choices=(
                FieldChoice("true_loop", "A loop"),
                FieldChoice("false_alarm", "Not a loop"),
                FieldChoice("none", "Not labelled", lambda _: Q(label="")),
            ),
        ),
        FilterField(
            name="decision",
            type="choice",
            help="Strictest decision",
            column="decision",
            choices=tuple(FieldChoice(one, "") for one in ("allow", "warn", "block", "hold", "stop")),
        ),
        _flag("active", "Whether the loop continues", Q(ended_at=None)),
        _flag("recovered", "Whether the agent recovered after the last reaction", Q(recovered=True)),
        _flag("guarded", "Whether calls were sent to the guard", Q(was_guarded=True)),
        _flag("demo", "Whether the demo created it", Q(is_demo=True)),
        _number("count", "Highest count"),
        _number("calls", "Calls in the loop", "calls_in_loop"),
        _number("blocked", "Blocked calls", "calls_blocked"),
        _number("cost", "Cost of the calls in the loop, in US dollars", "cost_usd", is_whole=False),
        _number("confidence", "Confidence, 0 to 1", is_whole=False),
        _time("opened", "When it was opened", "opened_at"),
        _time("seen", "When the loop was last detected", "last_seen_at"),
    ),
    search=("tool", "session_name", "agent"),
    time="opened_at",
    time_words="Opened",
    also_since="last_seen_at",
    sorts=(
        SortKey("seen", "last_seen_at"),
        SortKey("opened", "opened_at"),
        SortKey("count", "count", "number"),
        SortKey("blocked", "calls_blocked", "number"),
        SortKey("cost", "cost_usd", "number"),
        SortKey("tool", "tool", "text"),
        SortKey("session", "session_name", "text"),
        SortKey("status", "status", "text"),
    ),
    default_text="is:open",
    example="kind:cycle agent:browser -tool:bash cost:>0.1",
)

LISTS: Final = {spec.name: spec for spec in (INCIDENTS,)}
"""All of them by name."""
