"""Exceptions created from an incident: narrow policy changes under which it would not have happened.

Options are shown narrowest scope first: the one with the fewest sessions. Each is a `PolicyChange`, so it can be tried
as a what-if before it is saved, and is saved by the service of its scope, optionally with an expiry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, Q
from django.utils import timezone

from detection.engine import durations
from detection.engine.detectors import DETECTORS, detector_for
from detection.engine.fields import FIELDS
from detection.engine.memory import BLOCKING
from detection.engine.policy import ToolRule, stored_values
from detection.engine.scopes import PROJECT, SESSION, Scope
from detection.models import (
    AuditEntry,
    Incident,
    IncidentActivity,
    Session,
    SessionTool,
    ToolOverride,
)
from detection.models.incidents import (
    EXCEPTED,
    EXCEPTION_ACTIONS,
    EXCEPTION_UNDONE,
    IncidentLabel,
    LabelReason,
)
from detection.selectors.policies import overrides_of, rows_at, tool_rule
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound, found
from detection.services.policies import overrides
from detection.services.policies.documents import settings_at, settings_of, without_change
from detection.services.sessions import actions
from detection.services.what_if.changes import PolicyChange
from detection.services.what_if.what_ifs import save_change
from detection.strict_json import JsonProblem, loads

PLACES: Final[Mapping[str, str]] = {
    "run": "session", "tool": "tool", "agent": "agent", "model": "model", "everywhere": "project",
}  # fmt: skip
"""Where something is fine, and the scope of its exception."""
MAX_ARGUMENTS: Final = 20
REACH_DAYS: Final = 30
ALLOWED_AGAIN: Final = 100
"""Repetitions that an exception allows at least: how often an agent would have repeated what was blocked is not known,
and one that never ends is still found. A judgement."""
MAX_REACH: Final = 2_000
"""Sessions that are looked at, the newest ones."""
_USUAL = ("session:raise", "tool:raise", "agent:raise", "model:raise", "project:raise")
_BEST: Mapping[str, tuple[str, ...]] = {
    LabelReason.POLL: ("tool:poll",),
    LabelReason.VOLATILE_ARGUMENT: ("tool:ignore", "session:raise", "tool:raise"),
    LabelReason.BROKEN_TOOL: ("tool:fallible",),
}
"""Options that fit a reason, best first. For other reasons the usual ones, and if there is none, the narrowest."""


@dataclass(frozen=True, slots=True)
class ExceptionOption:
    """One exception that an incident suggests.

    Attributes
    ----------
    id
        Stable: the kind of scope and the effect, such as ``tool:poll``.
    words
        What it does.
    change
        The whole override or tool rule of the scope with the exception; other values are unchanged.
    settings
        The settings that it sets with their values, where the words do not name them.
    sessions
        How many sessions of the last `REACH_DAYS` its scope has, as `narrowest_first` counts them.
    sets
        The settings that it adds to those of the scope; None for facts about a tool.
    """

    id: str
    words: str
    change: PolicyChange
    settings: tuple[str, ...] = ()
    sessions: int = 1
    sets: Mapping[str, Any] | None = None

    @property
    def where(self) -> str:
        """The scope for people."""
        if self.change.session:
            return "This session"
        label = self.change.scope.label
        return label if self.change.rule is None else label.replace("Tools", "Tool", 1)


def varying_arguments(incident: Incident) -> list[str]:
    """Return the names of the arguments that differ between the calls of the evidence."""
    calls = [_object(call.get("arguments")) for call in incident.evidence.get("calls", ())]
    known = [call for call in calls if call is not None]
    names = dict.fromkeys(name for call in known for name in call)
    return [name for name in names if any(call.get(name) != known[0].get(name) for call in known[1:])][
        :MAX_ARGUMENTS
    ]


def _object(text: str | None) -> dict[str, object] | None:
    try:
        value = loads(text or "")
    except JsonProblem:  # cut, or no JSON
        return None
    return value if isinstance(value, dict) else None


def options(
    incident: Incident, arguments: Sequence[str] | None = None, *, everywhere: bool = False
) -> list[ExceptionOption]:
    """List the exceptions that fit an incident, by scope.

    Parameters
    ----------
    arguments
        Names of arguments for the option to ignore them; None for those that vary.
    everywhere
        Whether to list those for the whole project, too.
    """
    arguments = varying_arguments(incident) if arguments is None else arguments
    if not can_ignore_arguments(incident):
        arguments = ()
    raised = _raised_of_all(incident)
    off = {detector_for(incident.kind).switch: False}
    label = detector_for(incident.kind).label.lower()
    effects: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = []
    if raised:
        effects.append(("raise", _raise_words(incident, raised), raised, _labels(incident, raised)))
    if f"{incident.kind}_enabled" in FIELDS:
        effects.append(("off", f"Do not detect {label}", off, ()))
    found: list[ExceptionOption] = []
    session = incident.session
    if session is not None and session.ended_at is None:
        stored = stored_values(session.policy_values)
        found += [
            ExceptionOption(
                f"session:{name}",
                words,
                PolicyChange(SESSION, {**stored, **values}, session.external_id),
                labels,
                sets=values,
            )
            for name, words, values, labels in effects
        ]
    found += _of_tool(incident, raised, arguments)
    for scope in (*_scopes(incident), *((PROJECT,) if everywhere else ())):
        row = rows_at(incident.project_id, scope).in_effect().first()
        stored = stored_values(row.values) if row else {}
        found += [
            ExceptionOption(
                f"{scope.kind}:{name}", words, PolicyChange(scope, {**stored, **values}), labels, sets=values
            )
            for name, words, values, labels in effects
        ]
    return found


def narrowest_first(incident: Incident, found: Sequence[ExceptionOption]) -> list[ExceptionOption]:
    """Sort options by the sessions of their scopes; one query of the newest sessions."""
    named = {
        option.where: {
            name: value
            for name in ("agent", "backend", "model")
            if option.change.rule is None and (value := getattr(option.change.scope, name))
        }
        for option in found
        if not option.change.session
    }
    called = SessionTool.objects.filter(
        project_id=incident.project_id, session_id=OuterRef("pk"), tool=incident.tool
    )
    since = timezone.now() - timedelta(days=REACH_DAYS)
    newest = Session.objects.filter(project_id=incident.project_id, last_event_at__gte=since)
    rows = newest.order_by("-last_event_at", "-id").annotate(is_of_tool=Exists(called))
    scopes = [*named]
    counts = rows.values("pk", "agent", "backend", "model", "is_of_tool")[:MAX_REACH].aggregate(
        **{
            f"scope_{place}": Count("pk", filter=Q(**(named[where] or {"is_of_tool": True})))
            for place, where in enumerate(scopes)
        }
    )
    # Tools are counted some seconds after their calls, and the session of the incident is one.
    reach = {where: max(1, counts[f"scope_{place}"]) for place, where in enumerate(scopes)}
    counted = [replace(option, sessions=reach.get(option.where, 1)) for option in found]
    return sorted(counted, key=lambda option: (not option.change.session, option.sessions))


def _raised(incident: Incident) -> dict[str, float]:
    """Return the limits of the detector, raised so that it would not have found the loop."""
    # An exception does not block what the limit blocked, so those results will count, too.
    whole = incident.count + uncounted_calls(incident) // max(1, incident.evidence.get("period", 1))
    return raised_settings(
        incident, incident.kind, incident.limit, whole + incident.limit, reached=incident.count
    )


def _raised_of_all(incident: Incident) -> dict[str, Any]:
    """Return settings under which no detector finds as many such calls.

    These are higher limits, or the detector's switch where no limit is high enough.

    Another detector would find them in place of this one, and one that found nothing because the calls were blocked
    may find something in their results.
    """
    own, raised = detector_for(incident.kind), _raised(incident)
    if not own.is_of_calls:
        return raised
    session = incident.session
    policy = (
        overrides_of(incident.project)
        .policy_for(
            incident.agent,
            incident.backend,
            incident.model,
            session.policy_values if session is not None else {},
        )
        .for_tool(incident.tool)
    )
    # What suits the longest run of the loop suits the others.
    runs = Incident.objects.filter(project_id=incident.project_id, loop_id=incident.loop_id)
    calls = max(runs.aggregate(calls=Max("calls_in_loop"))["calls"] or 0, incident.count)
    found: dict[str, Any] = {}
    for detector in DETECTORS:
        is_other = detector.judges_texts or detector.stands_alone or detector.needs_family
        if detector is not own and (
            is_other or not detector.is_of_calls or not policy.values[detector.switch]
        ):
            continue
        values: dict[str, Any] = {}
        for name in (detector.limit_setting, *detector.same_calls_limits, *detector.further_limits):
            value = policy.values[name]
            if not isinstance(value, int):
                continue  # a word instead of the count of the first warning
            most = calls // 2 if detector.spans_tools else calls  # a lap has two calls at least
            if 0 < value <= most:
                values[name] = 2 * most + value  # some way off, as the first warning may come early
        if values.get(detector.limit_setting, 0) > FIELDS[detector.limit_setting].maximum:
            values = {detector.switch: False}
        for name, value in values.items():
            found[name] = min(max(value, ALLOWED_AGAIN), FIELDS[name].maximum) if value else value
    if own.switch not in found:
        # Its limit may be another one by now.
        ints = {name: value for name, value in raised.items() if isinstance(policy.values[name], int)}
        found |= {name: max(value, found.get(name, value)) for name, value in ints.items()}
    return found


def uncounted_calls(incident: Incident) -> int:
    """Return how many calls of a loop are not in its count of results, as they were blocked or would have been."""
    known = incident.evidence.get("results") != "unknown"
    is_blocked = incident.calls_blocked > 0 if incident.was_guarded else incident.decision in BLOCKING
    if not (detector_for(incident.kind).counts_results and known and is_blocked):
        return 0
    counted = int(incident.evidence.get("detail", {}).get("calls", incident.count))
    return max(0, incident.calls_in_loop - counted)


def can_ignore_arguments(incident: Incident) -> bool:
    """Return whether ignoring arguments can prevent an incident: not where its calls were identical anyway.

    It makes more calls identical, so it does not help with honest repetition either.
    """
    if not detector_for(incident.kind).judges_arguments:
        return False
    if incident.label == IncidentLabel.FALSE_ALARM and incident.label_reason:
        return incident.label_reason == LabelReason.VOLATILE_ARGUMENT
    calls = [call.get("arguments") for call in incident.evidence.get("calls", ())]
    return len(set(calls)) == len(calls)


def _raise_words(incident: Incident, raised: Mapping[str, Any]) -> str:
    detector = detector_for(incident.kind)
    if raised.get(detector.switch) is False:
        return f"Do not detect {detector.label.lower()}"
    unit = str(incident.evidence.get("detail", {}).get("unit") or detector.unit)
    limits = {name: value for name, value in raised.items() if value is not False}
    own = {name: value for name, value in limits.items() if FIELDS[name].group == incident.kind}
    limit = own.get(detector.limit_setting) or max((own or limits).values(), default=0)
    return f"Raise the limit to {durations.amount(limit, unit)}" if limit else "Do not detect such calls"


def _labels(incident: Incident, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of the incident's detector in words, and how many others there are."""
    own = [(FIELDS[name], value) for name, value in settings.items() if FIELDS[name].group == incident.kind]
    words = [
        f"{field.label}: {'off' if value is False else durations.amount(value, field.unit)}"
        for field, value in own
    ]
    others = len(settings) - len(own)
    return (*words, *([f"{others} more so that no other detector finds the same calls"] if others else ()))


def best(found: Sequence[ExceptionOption], reason: str) -> str:
    """Return the id of the option to preselect for a reason: the best that fits, otherwise the narrowest."""
    ids = [option.id for option in found]
    return next((one for one in (*_BEST.get(reason, ()), *_USUAL) if one in ids), ids[0] if ids else "")


def reason_of(incident: Incident) -> str:
    """Return the reason for an exception that the label gives; empty without the label "not a loop"."""
    if incident.label != IncidentLabel.FALSE_ALARM:
        return ""
    label = LabelReason(incident.label_reason).label.partition(":")[0]
    return f"Not a loop: {label.lower()}" if incident.label_reason else "Not a loop"


def find(incident: Incident, option_id: str, arguments: Sequence[str] | None = None) -> ExceptionOption:
    """Return an option of an incident; `Invalid` for one that it does not have."""
    found = {option.id: option for option in options(incident, arguments, everywhere=True)}
    if option_id not in found:
        names = ", ".join(found) or "none; this incident has no exceptions"
        raise Invalid(f"`option` must be one of {names}.", field="option", code="invalid_value")
    return found[option_id]


def where(incident: Incident, place: str, reason: str = "") -> ExceptionOption | None:
    """Return the exception of an incident for a place that fits a reason best; None if it has none there.

    Parameters
    ----------
    place
        One of `PLACES`.
    reason
        One of `LabelReason`.
    """
    kind = PLACES[place]
    found = [one for one in options(incident, everywhere=True) if one.id.partition(":")[0] == kind]
    chosen = best(found, reason)
    return next((one for one in found if one.id == chosen), None)


@transaction.atomic
def create_exception(
    project_id: int,
    public_id: str,
    actor: Actor,
    option: str,
    *,
    arguments: Sequence[str] | None = None,
    note: str = "",
    expires_at: datetime | None = None,
) -> IncidentActivity:
    """Save an exception, and note it on the incident so that it can be undone there.

    Parameters
    ----------
    option
        The id of one of `options`.
    note
        Reason; the history keeps it with the incident's id. Empty for that of the label; a person must give one where
        there is no label.

    Raises
    ------
    NotFound, Invalid
        For another project's incident, an option that does not fit it, a time that is out of range, or `note_needed`.
    """
    incident = _incident(project_id, public_id)
    chosen = find(incident, option, arguments)
    change = chosen.change
    latest = AuditEntry.objects.filter(project_id=project_id).aggregate(pk=Max("pk"))["pk"] or 0
    if change.session and expires_at is not None:
        raise Invalid(
            "`expires_at` must be null: an exception for a session ends with the session.",
            field="expires_at",
            code="invalid_value",
        )
    words = note.strip() or reason_of(incident)
    if not words and actor.user_id is not None:
        raise Invalid("An exception weakens detection. Give a reason.", field="note", code="note_needed")
    origin = f" (from {public_id})"
    reason = f"{words[: overrides.MAX_NOTE_CHARACTERS - len(origin)] or overrides.NO_NOTE}{origin}"
    save_change(project_id, change, actor, reason, expires_at)
    subject = change.session or str(change.scope)
    entries = AuditEntry.objects.filter(project_id=project_id, subject=subject, pk__gt=latest)
    entry = entries.filter(actor=actor.name[:150]).order_by("-id").values_list("pk", flat=True).first()
    if entry is None:
        raise Conflict("This exception is already stored.", code="unchanged")
    before = {"entry": entry, "session": change.session, "reason": words}
    if expires_at is not None:
        before["expires_at"] = expires_at.isoformat()
    activity = IncidentActivity.objects.create(
        incident=incident,
        actor=actor.name[:150],
        action=EXCEPTED,
        note=f"{chosen.where}: {chosen.words}{until_words(expires_at)}"[:1000],
        before=before,
    )
    audit.record(
        actor, f"incident.{EXCEPTED}", public_id, project_id=project_id, after={"exception": activity.note}
    )
    return activity


def until_words(expires_at: datetime | None) -> str:
    """Return the end of the note of an exception that expires."""
    return f" until {audit.noted(expires_at)}" if expires_at else ""


def current(incident: Incident) -> IncidentActivity | None:
    """Return the latest exception of an incident that was not undone."""
    last = incident.activity.filter(action__in=EXCEPTION_ACTIONS).order_by("-id").first()
    return last if last is not None and last.action == EXCEPTED else None


@transaction.atomic
def undo_exception(project_id: int, public_id: str, actor: Actor) -> IncidentActivity:
    """Restore what the latest exception of an incident has set; settings that were changed since stay.

    Raises
    ------
    NotFound
        For another project's incident, or if the change can no longer be found.
    Conflict
        ``nothing_to_undo``; ``changed_since`` when nothing of the exception is left; or the previous values have
        expired.
    """
    incident = _incident(project_id, public_id)
    last = current(incident)
    if last is None:
        raise Conflict("This incident has no exception to undo.", code="nothing_to_undo")
    if last.before.get("session"):
        entry = AuditEntry.objects.filter(project_id=project_id, pk=last.before["entry"]).first()
        name = last.before["session"]
        row = Session.objects.filter(project_id=project_id, external_id=name).first()
        if entry is None or row is None:
            raise NotFound
        stored = settings_of(row.policy_values)
        restored = without_change(entry, stored)
        if restored is None:
            raise _changed_since("on the page of the session")
        values = {**dict.fromkeys(stored), **restored}
        actions.set_policy(project_id, name, values, actor, version=actions.policy_version(row))
    elif not overrides.undo(project_id, last.before["entry"], actor):
        raise _changed_since("in Policies")
    audit.record(
        actor,
        f"incident.{EXCEPTION_UNDONE}",
        public_id,
        project_id=project_id,
        before={"exception": last.note},
    )
    return IncidentActivity.objects.create(
        incident=incident, actor=actor.name[:150], action=EXCEPTION_UNDONE, note=last.note
    )


def _changed_since(where: str) -> Conflict:
    words = f"The settings were changed since the exception was saved; change them {where}."
    return Conflict(words, code="changed_since")


def changed_since(project_id: int, saved: Iterable[IncidentActivity]) -> set[int]:
    """Return the primary keys of those exceptions of which nothing is left to undo.

    Reads the settings of all of them in at most four queries.
    """
    by_entry = {one.before.get("entry"): one for one in saved}
    entries = AuditEntry.objects.filter(project_id=project_id, pk__in=[pk for pk in by_entry if pk])
    of_sessions: list[AuditEntry] = []
    of_scopes: dict[AuditEntry, Scope] = {}
    for entry in entries:
        if by_entry[entry.pk].before.get("session"):
            of_sessions.append(entry)
        else:
            of_scopes[entry] = Scope.parse(entry.subject)
    at_scope = settings_at(project_id, {*of_scopes.values()})
    stored = {entry: at_scope.get(scope, {}) for entry, scope in of_scopes.items()}
    if of_sessions:
        names = [by_entry[entry.pk].before["session"] for entry in of_sessions]
        sessions = Session.objects.filter(project_id=project_id, external_id__in=names)
        values = dict(sessions.values_list("external_id", "policy_values"))
        stored |= {entry: settings_of(values.get(entry.subject)) for entry in of_sessions}
    return {
        by_entry[entry.pk].pk for entry, settings in stored.items() if without_change(entry, settings) is None
    }


def _incident(project_id: int, public_id: str) -> Incident:
    rows = Incident.objects.select_related("session")
    return found(rows.filter(project_id=project_id, public_id=public_id).first())


def _scopes(incident: Incident) -> list[Scope]:
    """Return the scopes of rows that the incident's call had, narrowest first."""
    found = []
    if incident.backend and incident.model:
        found.append(Scope.of(backend=incident.backend, model=incident.model))
    if incident.agent:
        found.append(Scope.of(agent=incident.agent))
    return found


def raised_settings(
    incident: Incident, kind: str, limit: int, amount: int, *, reached: int
) -> dict[str, float]:
    """Return the limits of a detector of an incident that a count reaches, raised to an amount above it."""
    detector = detector_for(kind)
    then = {name: setting.get("value") for name, setting in incident.policy.items()}
    then = {name: FIELDS[name].effective(then) if name in FIELDS else value for name, value in then.items()}
    if detector.is_run_limit:
        name = detector.raised_setting(str(incident.evidence.get("detail", {}).get("unit", "")))
        names = [name] if name in FIELDS else []
    else:
        names = [
            field.name
            for field in detector.settings
            if field.type == "int"
            and field.weakens == "up"
            and field.name in FIELDS
            and isinstance(value := then.get(field.name), int)
            and 0 < value <= reached
            and (
                value == limit
                or field.name in (detector.limit_setting, *detector.same_calls_limits)
                or field.name.endswith("warn_at")
            )
        ]
    return {name: type(FIELDS[name].default)(min(amount, FIELDS[name].maximum)) for name in names}


def is_of_one_tool(incident: Incident) -> bool:
    """Return whether all calls of an incident are of one tool; a lap of several is named by all of them."""
    several = detector_for(incident.kind).spans_tools and "→" in incident.tool
    return bool(incident.tool) and not several


def _of_tool(
    incident: Incident, raised: Mapping[str, Any], arguments: Sequence[str]
) -> list[ExceptionOption]:
    """Return the effects that a rule for exactly this tool can have; none for a loop of several tools."""
    if not is_of_one_tool(incident):
        return []
    pattern = exactly(incident.tool)
    scope = Scope("tool", pattern=pattern)
    row = ToolOverride.objects.filter(project_id=incident.project_id, pattern=pattern).in_effect().first()
    rule = tool_rule(row) if row else ToolRule(pattern)
    detector = detector_for(incident.kind)
    found: dict[str, tuple[str, ToolRule]] = {}
    tool_limits = {name: value for name, value in raised.items() if "tool" in FIELDS[name].scopes}
    rule = replace(rule, values={**rule.values, **tool_limits})
    if "poll" in detector.spared_classes and incident.evidence.get("results") != "errors":
        found["poll"] = ("Treat it as polling: higher limits apply", replace(rule, tool_class="poll"))
    only_warns = detector.only_warns_fallible and incident.decision in BLOCKING
    if only_warns or "fallible" in detector.spared_classes:
        found["fallible"] = (
            "Expect it to fail: warn, but never block",
            replace(rule, tool_class="fallible"),
        )
    if tool_limits:
        found["raise"] = (_raise_words(incident, tool_limits), rule)
    if arguments:
        names = [*dict.fromkeys((*rule.ignore_arguments, *arguments[:MAX_ARGUMENTS]))]
        words = (
            f"Ignore the arguments {', '.join(arguments[:3])}{' and others' if len(arguments) > 3 else ''}"
        )
        found["ignore"] = (words, replace(rule, ignore_arguments=tuple(names)))
    found["exempt"] = ("Exempt it from detection", replace(rule, exempt=True))
    return [
        ExceptionOption(
            f"tool:{name}",
            words,
            PolicyChange(scope, one.values, rule=one),
            _labels(incident, tool_limits) if name == "raise" else (),
            sets=tool_limits if name == "raise" else None,
        )
        for name, (words, one) in found.items()
    ]


def exactly(name: str) -> str:
    """Return the glob that matches only this name."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
