"""An alert route as a sentence, and the choices of its form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from detection.engine.detectors import DETECTORS
from detection.engine.durations import exact
from detection.models import AlertEventType, AlertRoute, Severity

EVENT_TYPES = tuple(
    (value, words) for value, words in AlertEventType.choices if value != AlertEventType.STILL_OPEN
)
"""Types that a route can select; `still_open` follows from its repeat interval."""
CUSTOM = "custom"
WHEN: dict[str, tuple[tuple[str, ...], str]] = {
    "opens": (("opened",), "a loop opens"),
    "escalates": (("opened", "escalated"), "a loop opens or escalates"),
    "changes": (
        ("opened", "escalated", "ended", "approval.requested"),
        "a loop changes or a call is held",
    ),
    "approval": (("approval.requested",), "a call is held"),
    "containment": (
        ("containment.created", "containment.lifted", "containment.ended"),
        "everything of a scope is contained, or that ends",
    ),
    "judge": (("judge.disabled",), "the judge is disabled"),
    "limit": (("session.near_limit",), "a session has nearly reached a limit"),
    "report": (("report.weekly",), "a week is over: its report, on Mondays"),
    "anything": ((), "anything happens"),
}
"""The choices of the form: their event types, and the words of the sentence."""
AT_LEAST: dict[str, tuple[tuple[str, ...], str]] = {
    "any": ((), "any severity"),
    "warning": (("warning", "high", "critical"), "warning or above"),
    "high": (("high", "critical"), "high or above"),
    "critical": (("critical",), "critical"),
}
_SINGLE = {
    "tools": ("tool", "tools"), "agents": ("agent", "agents"), "backends": ("backend", "backends"),
    "model_names": ("model", "models"), "tags": ("tag", "tags"), "kinds": ("detector", "detectors"),
}  # fmt: skip
_DETECTOR_LABELS = {one.kind: one.label for one in DETECTORS}


def choice_of(choices: dict[str, tuple[tuple[str, ...], str]], values: Sequence[str]) -> str:
    """Return the choice with these values, or `CUSTOM`."""
    wanted = set(values)
    return next((name for name, (found, _) in choices.items() if set(found) == wanted), CUSTOM)


def route_sentence(row: AlertRoute) -> list[tuple[str, bool]]:
    """Return the sentence of a route as parts, each with whether it is a value."""
    parts: list[tuple[str, bool]] = [("When ", False), (_when(row), True)]
    if row.severities:
        parts += [(" at ", False), (_severities(row), True)]
    for column, words in _SINGLE.items():
        values = getattr(row, column)
        if values:
            labels = [_DETECTOR_LABELS.get(one, one) for one in values] if column == "kinds" else values
            parts += [(" for ", False), (f"{words[len(values) > 1]} {_listed(labels, 'or')}", True)]
    names = [one.name for one in row.destinations.all()] if row.pk else []
    parts += [(", send to ", False), (_listed(names, "and") or "nobody", True)]
    if row.group_wait_seconds or row.group_by:
        parts.append((", grouped", False))
    if row.group_wait_seconds:
        parts += [(" for ", False), (exact(row.group_wait_seconds), True)]
    if row.group_by:
        parts.append((f" by {_listed(row.group_by, 'and')}", False))
    return [*parts, *_more(row), (".", False)]


def _more(row: AlertRoute) -> Iterator[tuple[str, bool]]:
    if row.repeat_interval_hours:
        yield f", again every {exact(row.repeat_interval_hours * 3600)} while it is open", False
    if row.quiet_from and row.quiet_until:
        hours = f"{row.quiet_from:%H:%M} to {row.quiet_until:%H:%M} ({row.quiet_zone})"
        yield f", not from {hours}" + ("" if row.quiet_delays_critical else " unless it is critical"), False


def _when(row: AlertRoute) -> str:
    known = WHEN.get(choice_of(WHEN, row.event_types))
    if known:
        return known[1]
    labels = dict(EVENT_TYPES)
    return "an alert is " + _listed([str(labels.get(one, one)).lower() for one in row.event_types], "or")


def _severities(row: AlertRoute) -> str:
    known = AT_LEAST.get(choice_of(AT_LEAST, row.severities))
    order = Severity.values
    return known[1] if known else _listed(sorted(row.severities, key=order.index), "or")


def _listed(values: Sequence[str], joined_by: str) -> str:
    *first, last = values or [""]
    return f"{', '.join(first)} {joined_by} {last}" if first else last
