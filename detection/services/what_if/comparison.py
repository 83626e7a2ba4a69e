"""Compares the incidents of a session: those recorded, those found again, and those found under the changed policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from detection.engine.calls import DECISIONS
from detection.engine.fields import FIELDS
from detection.services.ingestion.ingest import COST_DECIMALS
from detection.services.what_if.replay import Detected

MAX_ITEMS = 100
"""Maximum number of incidents in a list of the result; the counts are exact."""
Difference = Literal["weaker", "stricter", "later", "earlier"]
Cause = Literal["settings", "people", "other"]
CAUSES: tuple[Cause, ...] = ("settings", "people", "other")
_LABELS = ("true_loop", "false_alarm", "")


def is_same_loop(one: Detected, other: Detected) -> bool:
    """Return whether two incidents are about the same loop: of one kind, at the same place, with calls in common."""
    return (
        one.kind == other.kind
        and one.first_seq <= other.last_seq
        and other.first_seq <= one.last_seq
        and (one.loop_id == other.loop_id or not one.seqs.isdisjoint(other.seqs))
    )


def matches(ones: Iterable[Detected], others: Iterable[Detected]) -> list[tuple[Detected, Detected | None]]:
    """Return each incident of the first list with the one of the second that is about the same loop, if there is one."""
    by_kind: defaultdict[str, list[Detected]] = defaultdict(list)
    for other in others:
        by_kind[other.kind].append(other)
    return [(one, _best(one, by_kind[one.kind])) for one in ones]


def _best(one: Detected, others: list[Detected]) -> Detected | None:
    found = [other for other in others if is_same_loop(one, other)]
    return next((other for other in found if other.loop_id == one.loop_id), found[0] if found else None)


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """What was found in one session.

    Attributes
    ----------
    recorded
        The stored incidents.
    before, after
        Those of the replays under the current and the changed policy; the same object where both policies treat every call
        alike.
    settings_now
        The settings of the current policy by recorded incident (`Detected.public_id`), for those not found again.
    is_touched_by_people
        Whether a person decided about its calls, stopped or resumed it.
    policy_changed_at
        When a setting was changed last, if ever.
    """

    name: str
    recorded: Sequence[Detected]
    before: Sequence[Detected]
    after: Sequence[Detected]
    settings_now: Mapping[str, Mapping[str, Any]]
    is_touched_by_people: bool
    policy_changed_at: datetime | None


@dataclass(slots=True)
class Findings:
    """The result of a what-if so far, as it is stored.

    Attributes
    ----------
    incidents, decisions, endings
        Incidents, calls by decision, and blocked calls by their ending, before and after the change.
    spent_usd
        Cost of the incidents before and after the change, without those labelled "not a loop", as in statistics.
    gained, lost, changed
        Incidents that only the changed policy finds, that only the current one finds, and that both find with another
        decision or at another call: how many of which kind, and the first `MAX_ITEMS`.
    replayed
        Sessions and calls that were replayed, and how many sessions the change cannot affect.
    missing
        Sessions and calls that could not be replayed, by reason.
    recorded
        How far the replay under the current policy reproduces what is recorded.
    """

    incidents: Counter[str] = field(default_factory=Counter)
    decisions: dict[str, Counter[str]] = field(
        default_factory=lambda: {"before": Counter(), "after": Counter()}
    )
    endings: dict[str, Counter[str]] = field(
        default_factory=lambda: {"before": Counter(), "after": Counter()}
    )
    gained: dict[str, Any] = field(default_factory=lambda: {"count": 0, "by_kind": {}, "items": []})
    lost: dict[str, Any] = field(default_factory=lambda: {"count": 0, "by_kind": {}, "items": []})
    changed: dict[str, Any] = field(default_factory=lambda: {"count": 0, "by_difference": {}, "items": []})
    spent_usd: dict[str, float] = field(default_factory=lambda: {"before": 0.0, "after": 0.0})
    labels: dict[str, Counter[str]] = field(default_factory=lambda: {"gained": Counter(), "lost": Counter()})
    replayed: Counter[str] = field(default_factory=Counter)
    missing: dict[str, Counter[str]] = field(default_factory=dict)
    recorded: dict[str, Any] = field(
        default_factory=lambda: {"incidents": 0, "reproduced": 0, "not_found": {}, "not_recorded": {}}
    )

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Findings:
        """Return the findings as `dump` returned them; none of an empty document."""
        if not document:
            return cls()
        return cls(
            incidents=Counter(document["incidents"]),
            decisions={name: Counter(counts) for name, counts in document["decisions"].items()},
            endings={
                name: Counter(document.get("endings", {}).get(name, {})) for name in ("before", "after")
            },
            gained=document["gained"],
            lost=document["lost"],
            changed=document["changed"],
            spent_usd=document.get("spent_usd", {"before": 0.0, "after": 0.0}),
            labels={name: Counter(counts) for name, counts in document["labels"].items()},
            replayed=Counter(document["replayed"]),
            missing={name: Counter(counts) for name, counts in document["missing"].items()},
            recorded=document["recorded"],
        )

    def dump(self) -> dict[str, Any]:
        """Return the findings as JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def miss(self, reason: str, *, sessions: int = 0, calls: int = 0) -> None:
        """Count a session that could not be replayed."""
        self.missing.setdefault(reason, Counter()).update(sessions=sessions, calls=calls)

    def add(self, outcome: SessionOutcome, since: datetime) -> None:
        """Add the incidents of a session that were opened at `since` or later."""
        before = _labelled(outcome.before, outcome.recorded)
        after = before if outcome.after is outcome.before else _labelled(outcome.after, outcome.recorded)
        self.incidents.update(before=_recent(before, since), after=_recent(after, since))
        for name, found in (("before", before), ("after", after)):
            spent = sum(one.cost_usd for one in found if one.opened_at >= since and one.is_loop)
            self.spent_usd[name] = round(self.spent_usd[name] + spent, COST_DECIMALS)
        self._add_recorded(outcome, before, since)
        if after is before:
            return
        for one, other in matches(before, after):
            if one.opened_at < since:
                continue
            if other is None:
                self._count("lost", outcome.name, one)
            else:
                self._add_change(outcome.name, one, other)
        for one, other in matches(after, before):
            if other is None and one.opened_at >= since:
                self._count("gained", outcome.name, one)

    def _count(self, name: Literal["gained", "lost"], session: str, one: Detected) -> None:
        group = getattr(self, name)
        group["count"] += 1
        group["by_kind"][one.kind] = group["by_kind"].get(one.kind, 0) + 1
        cost = one.cost_usd if one.is_loop else 0.0
        group["cost_usd"] = round(group.get("cost_usd", 0.0) + cost, COST_DECIMALS)
        self.labels[name].update({one.label: 1} if one.label else {})
        _keep(group["items"], item_of(session, one))

    def _add_change(self, session: str, one: Detected, other: Detected) -> None:
        difference = _difference(one, other)
        if difference is None:
            return
        group = self.changed
        group["count"] += 1
        group["by_difference"][difference] = group["by_difference"].get(difference, 0) + 1
        _keep(
            group["items"],
            item_of(session, one)
            | {
                "difference": difference,
                "decision_after": other.decision,
                "limit_after": other.limit,
                "found_at_call_after": other.found_at_call,
                "reacted_at_call_after": other.reacted_at_call,
            },
        )

    def _add_recorded(self, outcome: SessionOutcome, before: Sequence[Detected], since: datetime) -> None:
        """Count how far the replay agrees with the recorded incidents, and the causes of differences."""
        for one, other in matches(outcome.recorded, before):
            if one.opened_at < since:
                continue
            self.recorded["incidents"] += 1
            if other is not None:
                self.recorded["reproduced"] += 1
            else:
                _note(self.recorded["not_found"], _cause_of_loss(one, outcome))
        for one, other in matches(before, outcome.recorded):
            if other is None and one.opened_at >= since:
                changed_at = outcome.policy_changed_at
                has_changed = changed_at is not None and changed_at > one.opened_at
                people = "people" if outcome.is_touched_by_people else "other"
                _note(self.recorded["not_recorded"], "settings" if has_changed else people)


def _cause_of_loss(one: Detected, outcome: SessionOutcome) -> str:
    """Return why a recorded incident is not found again: other settings than then, a person's decision, or something else."""
    now = outcome.settings_now.get(one.public_id, {})
    if any(name in FIELDS and then.get("value") != now.get(name) for name, then in one.policy.items()):
        return "settings"
    return "people" if outcome.is_touched_by_people else "other"


def _note(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _recent(incidents: Iterable[Detected], since: datetime) -> int:
    return sum(one.opened_at >= since for one in incidents)


def _labelled(found: Sequence[Detected], recorded: Sequence[Detected]) -> list[Detected]:
    """Give replayed incidents the id and the label of the recorded one about the same loop."""
    return [one if other is None else _with_record(one, other) for one, other in matches(found, recorded)]


def _with_record(one: Detected, recorded: Detected) -> Detected:
    return replace(one, public_id=recorded.public_id, label=recorded.label)


def _difference(one: Detected, other: Detected) -> Difference | None:
    """Return how the changed policy reacts differently to a loop that both find; None if it reacts the same."""
    strength = DECISIONS.index(other.decision) - DECISIONS.index(one.decision)
    if strength:
        return "stricter" if strength > 0 else "weaker"
    calls, calls_after = ((each.found_at_call, each.reacted_at_call) for each in (one, other))
    if calls == calls_after:
        return None
    return "later" if calls_after > calls else "earlier"


def item_of(session: str, one: Detected) -> dict[str, Any]:
    """Return an incident as the result lists it; it has no text of the agent."""
    return {
        "session": session,
        "incident": one.public_id or None,
        "label": one.label,
        "kind": one.kind,
        "tool": one.tool,
        "agent": one.agent,
        "backend": one.backend,
        "model": one.model,
        "decision": one.decision,
        "count": one.count,
        "limit": one.limit,
        "calls": one.calls,
        "cost_usd": round(one.cost_usd, COST_DECIMALS),
        "first_seq": one.first_seq,
        "found_at_call": one.found_at_call,
        "reacted_at_call": one.reacted_at_call,
        "opened_at": one.opened_at.isoformat(),
    }


def _keep(items: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Keep an item if it is among the first: labelled ones, then the strictest, then the newest."""
    items.append(item)
    items.sort(key=lambda one: one["opened_at"], reverse=True)
    items.sort(key=lambda one: (_LABELS.index(one["label"]), -DECISIONS.index(one["decision"])))
    del items[MAX_ITEMS:]
