"""Suggestions: policy changes that labelled incidents support. They are computed whenever they are read."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from detection.engine.detectors import detector_for
from detection.engine.fields import FIELDS
from detection.engine.identity import Keyer
from detection.engine.policy import Policy, ToolRule, stored_values
from detection.engine.scopes import Scope
from detection.models import Incident, Project, Suggestion, SuggestionDecision, ToolOverride
from detection.selectors.policies import effective, rows_at, tool_rule
from detection.services.exceptions.exceptions import exactly, is_of_one_tool, raised_settings
from detection.services.learning import labelled
from detection.services.what_if.changes import PolicyChange

MIN_LABELS: Final = 5
"""Labelled incidents of a tool or model from which a limit is suggested."""
MIN_ALIKE: Final = 3
"""Labelled incidents that must show the same before a fact about a tool is suggested."""
AVOIDED_SHARE: Final = 0.8
"""A raised limit is the lowest one that avoids this share of the false alarms."""
_FACTS: Final = {"volatile_argument": "ignore_arguments", "volatile_result": "volatile_result_fields"}
MAX_NEAREST: Final = 3
MAX_INCIDENTS_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class OpenSuggestion:
    """A suggestion that waits for a decision.

    Attributes
    ----------
    id
        The same whenever it is computed: of the project, the kind, the scope and what is changed in which direction,
        without limits.
    kind
        ``limit``, ``poll``, ``volatile_argument`` or ``volatile_result``.
    words, reason
        What it changes, and why it is suggested.
    change
        The whole override or tool rule of the scope with the suggestion; other values are unchanged.
    labels
        Labelled incidents behind it.
    incidents
        Ids of some of them, the newest first.
    """

    id: str
    kind: str
    words: str
    reason: str
    change: PolicyChange
    labels: int
    incidents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MissingLabels:
    """A tool without enough labels for a limit yet."""

    tool: str
    labels: int

    @property
    def missing(self) -> int:
        """Labels that are missing."""
        return MIN_LABELS - self.labels


@dataclass(frozen=True, slots=True)
class Learned:
    """Suggestions from the labels of a project.

    Attributes
    ----------
    labels
        Labelled incidents that were read.
    nearest
        Tools that are closest to the number of labels for a limit.
    """

    suggestions: tuple[OpenSuggestion, ...]
    labels: int
    nearest: tuple[MissingLabels, ...]


def learn(project: Project) -> Learned:
    """Return the suggestions of a project that nobody has rejected, those with most labels first.

    An accepted one is in effect and therefore not found, until it expires or newer labels support another value.
    Reads at most 300 labelled incidents of the last 90 days, four queries in all, and a tenth of a second.
    """
    incidents = labelled.labelled_incidents(project.pk)
    rejected = [*Suggestion.objects.filter(project=project, decision=SuggestionDecision.REJECTED)]
    ids = {one.public_id for one in rejected}
    found = [one for one in _Learner(project, rejected).suggestions(incidents) if one.id not in ids]
    counts = Counter(incident.tool for incident in incidents if is_of_one_tool(incident))
    nearest = [MissingLabels(tool, count) for tool, count in counts.most_common() if count < MIN_LABELS]
    return Learned(
        tuple(sorted(found, key=lambda one: (-one.labels, one.id))),
        len(incidents),
        tuple(nearest[:MAX_NEAREST]),
    )


class _Learner:
    """Finds the suggestions of one project."""

    def __init__(self, project: Project, rejected: Sequence[Suggestion]) -> None:
        self._project = project
        self._rejected = rejected
        self._keyer = Keyer(bytes(project.digest_secret))
        rows = ToolOverride.objects.filter(project=project).in_effect()
        self._rules = {row.pattern: tool_rule(row) for row in rows}

    def suggestions(self, incidents: Sequence[Incident]) -> Iterator[OpenSuggestion]:
        by_tool: defaultdict[str, list[Incident]] = defaultdict(list)
        by_model: defaultdict[tuple[str, str], list[Incident]] = defaultdict(list)
        for incident in incidents:
            if is_of_one_tool(incident):
                by_tool[incident.tool].append(incident)
            if incident.backend and incident.model:
                by_model[incident.backend, incident.model].append(incident)
        for tool, own in by_tool.items():
            policy = effective(self._project, tool=tool)
            yield from self._facts(tool, own, policy)
            for kind, alike in _by_kind(own):
                yield from self._limit(self._tool_change(tool), kind, alike, policy)
        for (backend, model), own in by_model.items():
            scope = Scope.of(backend=backend, model=model)
            policy = effective(self._project, backend=backend, model=model)
            for kind, alike in _by_kind(own):
                if len({incident.tool for incident in alike}) > 1:  # else it is a matter of the tool
                    yield from self._limit(self._model_change(scope), kind, alike, policy)

    def _facts(self, tool: str, own: Sequence[Incident], policy: Policy) -> Iterator[OpenSuggestion]:
        """Suggest the class of a tool, and its volatile arguments and result fields."""
        traits, change = policy.traits, self._tool_change(tool)
        rule = change.rule or ToolRule("")
        loops = sum(map(labelled.is_loop, own))
        polls = [incident for incident in own if labelled.behaves_like_poll(incident)]
        if len(polls) >= MIN_ALIKE and len(polls) > loops and traits.tool_class not in ("poll", "exempt"):
            reason = f"{len(polls)} of {len(own)} labelled incidents look like polling."
            yield self._of(
                "poll", f"Treat {tool} as polling", reason, replace(rule, tool_class="poll"), change, polls
            )
        known = {*rule.ignore_arguments, *self._rejected_names("volatile_argument", change.scope)}
        arguments = _named(own, lambda one: labelled.volatile_arguments(one), known)
        if arguments:
            names = (*rule.ignore_arguments, *arguments)
            yield self._of(
                "volatile_argument",
                f"Ignore the argument{'s' * (len(arguments) > 1)} {', '.join(arguments)} of {tool}",
                f"In {_count(arguments)} labelled incidents the calls "
                "differ in what looks like an id, a time or a cursor.",
                replace(rule, ignore_arguments=names),
                change,
                _of_any(arguments),
                arguments,
            )
        known = {*traits.volatile_result_fields, *self._rejected_names("volatile_result", change.scope)}
        fields = _named(own, lambda one: labelled.volatile_result_fields(one, traits, self._keyer), known)
        if fields:
            names = (*rule.volatile_result_fields, *fields)
            yield self._of(
                "volatile_result",
                f"Ignore the field{'s' * (len(fields) > 1)} {', '.join(fields)} in results of {tool}",
                f"In {_count(fields)} labelled loops the results of identical calls differ in nothing else.",
                replace(rule, volatile_result_fields=names),
                change,
                _of_any(fields),
                fields,
            )

    def _rejected_names(self, kind: str, scope: Scope) -> set[str]:
        """Return the arguments or fields of rejected suggestions, which are not suggested again in any company."""
        changes = [one.change for one in self._rejected if one.kind == kind]
        return {name for one in changes if one["scope"] == str(scope) for name in one[_FACTS[kind]]}

    def _limit(
        self, change: PolicyChange, kind: str, alike: Sequence[Incident], policy: Policy
    ) -> Iterator[OpenSuggestion]:
        """Suggest a different limit for a detector if enough labels agree."""
        loops = [incident for incident in alike if labelled.is_loop(incident)]
        alarms = [incident for incident in alike if not labelled.is_loop(incident)]
        if len(alike) < MIN_LABELS:
            return
        label = detector_for(kind).label.lower()
        if len(alarms) >= MIN_ALIKE and len(alarms) >= len(loops):
            needed = sorted(map(_needed, alarms))
            limit = needed[ceil(AVOIDED_SHARE * len(needed)) - 1]
            highest = max(alarms, key=lambda incident: incident.count)
            values = {
                name: value
                for name, value in raised_settings(
                    highest, kind, highest.limit, limit, reached=highest.count
                ).items()
                if FIELDS[name].effective(policy.values) < value and not _is_off(name, policy)
            }
            avoided = sum(one <= limit for one in needed)
            kept = sum(incident.count >= limit for incident in loops)
            direction: tuple[str, ...] = ()
            words = "Raise", f"to {limit:,}"
            reason = f"It avoids {avoided} of {len(alarms)} false alarms"
            reason += (
                f", and {kept} of {len(loops)} loops went that far."
                if loops
                else "; no labelled incident was a loop."
            )
        else:
            name = detector_for(kind).limit_setting
            current = policy.values.get(name)
            if alarms or name not in FIELDS or not isinstance(current, int):
                return
            # Labels of incidents under another limit say nothing about this one.
            alike = [one for one in loops if one.policy.get(name, {}).get("value") == current]
            values = {name: current - 1}
            if len(alike) < MIN_LABELS or current - 1 < max(FIELDS[name].minimum, MIN_ALIKE):
                return
            direction = ("lower",)
            words = "Lower", f"to {current - 1:,}"
            reason = f"All {len(alike)} labelled incidents under this limit were loops."
        if change.rule is not None:
            values = {name: value for name, value in values.items() if "tool" in FIELDS[name].scopes}
        if not values:
            return
        wider = {**change.values, **values}
        rule = replace(change.rule, values=wider) if change.rule is not None else None
        changed = PolicyChange(change.scope, wider, rule=rule)
        where = change.scope.label.replace("Tools ", "").replace("Model ", "model ", 1)
        yield OpenSuggestion(
            _id(self._project.pk, "limit", str(change.scope), kind, *direction),
            "limit",
            f"{words[0]} the limit for {label} of {where} {words[1]}"[:300],
            reason,
            changed,
            len(alike),
            _ids(alike),
        )

    def _of(
        self,
        kind: str,
        words: str,
        reason: str,
        rule: ToolRule,
        change: PolicyChange,
        incidents: Sequence[Incident],
        names: Iterable[str] = (),
    ) -> OpenSuggestion:
        changed = replace(change, rule=rule)
        public_id = _id(self._project.pk, kind, str(change.scope), *sorted(names))
        return OpenSuggestion(public_id, kind, words[:300], reason, changed, len(incidents), _ids(incidents))

    def _tool_change(self, tool: str) -> PolicyChange:
        pattern = exactly(tool)
        rule = self._rules.get(pattern) or ToolRule(pattern)
        return PolicyChange(Scope("tool", pattern=pattern), rule.values, rule=rule)

    def _model_change(self, scope: Scope) -> PolicyChange:
        row = rows_at(self._project.pk, scope).in_effect().first()
        return PolicyChange(scope, stored_values(row.values) if row else {})


def _by_kind(incidents: Iterable[Incident]) -> Iterator[tuple[str, list[Incident]]]:
    found: defaultdict[str, list[Incident]] = defaultdict(list)
    for incident in incidents:
        found[incident.kind].append(incident)
    yield from found.items()


def _is_off(name: str, policy: Policy) -> bool:
    """Return whether a limit is 0 and thereby off: any other value would turn it on."""
    return FIELDS[name].zero_is_off and not FIELDS[name].effective(policy.values)


def _needed(incident: Incident) -> int:
    """Return the limit under which a false alarm would not have occurred; an estimate if a block ended it."""
    return incident.count + (incident.limit if incident.calls_blocked else 1)


def _named(own: Iterable[Incident], names_of: Any, known: Collection[str]) -> Mapping[str, list[Incident]]:
    """Return the names that enough incidents show, with these."""
    found: defaultdict[str, list[Incident]] = defaultdict(list)
    for incident in own:
        for name in names_of(incident):
            found[name].append(incident)
    return {
        name: rows for name, rows in sorted(found.items()) if len(rows) >= MIN_ALIKE and name not in known
    }


def _of_any(named: Mapping[str, Sequence[Incident]]) -> list[Incident]:
    found = {incident.pk: incident for rows in named.values() for incident in rows}
    return sorted(found.values(), key=lambda incident: -incident.pk)


def _count(named: Mapping[str, Sequence[Incident]]) -> int:
    return len(_of_any(named))


def _ids(incidents: Sequence[Incident]) -> tuple[str, ...]:
    return tuple(incident.public_id for incident in incidents[:MAX_INCIDENTS_NAMED])


def _id(project_id: int, *parts: str) -> str:
    text = "\n".join((str(project_id), *parts))
    return f"sug_{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"
