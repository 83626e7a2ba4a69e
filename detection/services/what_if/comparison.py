"""Compares the incidents of a session: those recorded, those found again, and those found under the changed policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypedDict, cast

from detection.engine.calls import DECISIONS
from detection.engine.detectors import detector_for
from detection.engine.fields import FIELDS
from detection.engine.memory import BLOCKING
from detection.models.incidents import IncidentLabel
from detection.services.ingestion.ingest import COST_DECIMALS
from detection.services.what_if.replay import Detected

MAX_ITEMS = 100
"""Maximum number of incidents in a list of the result; the counts are exact."""
Difference = Literal["weaker", "stricter", "later", "earlier", "costlier", "cheaper"]
_LABELS = ("true_loop", "false_alarm", "")


def is_same_loop(one: Detected, other: Detected) -> bool:
    """Return whether two incidents are about the same loop: at the same place, with calls in common.

    Another detector may have acted. Those that stand alone, such as limits, are about one only if they are of one kind.
    """
    return (
        _sort_of(one) == _sort_of(other)
        and one.first_seq <= other.last_seq
        and other.first_seq <= one.last_seq
        and not (one.digests.isdisjoint(other.digests) and one.seqs.isdisjoint(other.seqs))
    )


def _sort_of(one: Detected) -> str:
    return one.kind if detector_for(one.kind).stands_alone else ""


def matches(ones: Iterable[Detected], others: Iterable[Detected]) -> list[tuple[Detected, Detected | None]]:
    """Return each incident of the first list with the one of the second about the same loop, if there is one."""
    by_sort: defaultdict[str, list[Detected]] = defaultdict(list)
    for other in others:
        by_sort[_sort_of(other)].append(other)
    return [(one, _best(one, by_sort[_sort_of(one)])) for one in ones]


def _best(one: Detected, others: list[Detected]) -> Detected | None:
    found = [other for other in others if is_same_loop(one, other)]
    return next(
        (other for other in found if not other.digests.isdisjoint(one.digests)), found[0] if found else None
    )


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """What was found in one session.

    Attributes
    ----------
    recorded
        The stored incidents.
    before, after
        Those of the replays under the current and the changed policy; the same object where both policies treat every
        call alike.
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


class Stops(TypedDict):
    """Loops that one of two policies blocks, holds or stops and the other does not."""

    count: int
    cost_usd: float
    false_stops: int


def _no_stops() -> Stops:
    return {"count": 0, "cost_usd": 0.0, "false_stops": 0}


@dataclass(slots=True)
class Findings:
    """The result of a what-if so far, as it is stored.

    Attributes
    ----------
    incidents, decisions, endings
        Incidents, calls by decision, and blocked calls by their ending, before and after the change.
    spent_usd
        Cost of the incidents before and after the change, without those labelled "not a loop", as in statistics:
        before, less the lost ones, plus the gained ones, plus what the changed ones cost more, is after.
    gained, lost, changed
        Incidents that only the changed policy finds, that only the current one finds, and that both find with another
        decision, at another call or at another cost: how many of which kind, their cost, and the first `MAX_ITEMS`.
    replayed
        Sessions and calls that were replayed, how many sessions the change cannot affect, and how many calls of the
        period were counted when it began (`counted_before`), and when that was, in Unix seconds (`began_at`).
    missing
        Sessions and calls that could not be replayed, by reason.
    recorded
        How far the replay under the current policy reproduces what is recorded.
    stops
        Loops that only the current policy blocks, holds or stops (`lost`), and only the changed one (`gained`): how
        many, what they cost, and how many of them a person labelled "not a loop".
    days
        Such loops of each policy by the day on which they were found (``2026-11-20``, UTC): before and after.
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
    stops: dict[str, Stops] = field(default_factory=lambda: {"lost": _no_stops(), "gained": _no_stops()})
    days: dict[str, list[int]] = field(default_factory=dict)

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
            stops=document["stops"],
            days=document["days"],
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
        self._add_recorded(outcome, before, since)
        self._add_days(before, after, since)
        if after is before:
            for one in before:
                if one.opened_at >= since:
                    self._spend(one.loop_cost, one.loop_cost)
            return
        found = matches(before, after)
        again = matches(after, before)
        continued = _continued_costs(found, again)
        for place, (one, other) in enumerate(found):
            if one.opened_at < since:
                continue
            self._add_stop(one, other)
            if other is None:
                self._count("lost", outcome.name, one)
                self._spend(one.loop_cost, 0.0)
            else:
                cost_after = continued.get(place, 0.0)
                self._spend(one.loop_cost, cost_after if one.is_loop else 0.0)
                self._add_change(outcome.name, one, other, cost_after)
        for one, other in again:
            if other is None and one.opened_at >= since:
                self._count("gained", outcome.name, one)
                self._spend(0.0, one.loop_cost)
                self._add_stop(None, one)

    def _add_days(self, before: Iterable[Detected], after: Iterable[Detected], since: datetime) -> None:
        for place, found in enumerate((before, after)):
            for one in found:
                if one.opened_at >= since and one.decision in BLOCKING:
                    self.days.setdefault(f"{one.opened_at:%Y-%m-%d}", [0, 0])[place] += 1

    def _add_stop(self, before: Detected | None, after: Detected | None) -> None:
        """Count a loop that one of the policies blocks, holds or stops and the other does not."""
        was, is_now = (
            one if one is not None and one.decision in BLOCKING else None for one in (before, after)
        )
        if (was is None) == (is_now is None):
            return
        one = cast("Detected", was or is_now)
        stops = self.stops["lost" if was else "gained"]
        stops["count"] += 1
        stops["cost_usd"] = round(stops["cost_usd"] + one.loop_cost, COST_DECIMALS)
        stops["false_stops"] += one.label == IncidentLabel.FALSE_ALARM

    def _spend(self, before: float, after: float) -> None:
        _sum(self.spent_usd, before=before, after=after)

    def _count(self, name: Literal["gained", "lost"], session: str, one: Detected) -> None:
        group = getattr(self, name)
        group["count"] += 1
        group["by_kind"][one.kind] = group["by_kind"].get(one.kind, 0) + 1
        _sum(group, cost_usd=one.loop_cost)
        self.labels[name].update({one.label: 1} if one.label else {})
        _keep(group["items"], item_of(session, one))

    def _add_change(self, session: str, one: Detected, other: Detected, cost_after: float) -> None:
        """Add an incident that both policies find, if they differ."""
        difference = _difference(one, other) or _difference_in_cost(one.cost_usd, cost_after)
        if difference is None:
            return
        group = self.changed
        _sum(group, cost_usd=one.loop_cost, cost_usd_after=cost_after if one.is_loop else 0.0)
        group["count"] += 1
        group["by_difference"][difference] = group["by_difference"].get(difference, 0) + 1
        _keep(
            group["items"],
            item_of(session, one)
            | {
                "difference": difference,
                "decision_after": other.decision,
                "kind_after": other.kind,
                "limit_after": other.limit,
                "found_at_call_after": other.found_at_call,
                "reacted_at_call_after": other.reacted_at_call,
                "cost_usd_after": round(cost_after, COST_DECIMALS),
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
    """Return why a recorded incident is not found again: other settings, a person's decision, or something else."""
    now = outcome.settings_now.get(one.public_id, {})
    if any(name in FIELDS and then.get("value") != now.get(name) for name, then in one.policy.items()):
        return "settings"
    return "people" if outcome.is_touched_by_people else "other"


def _note(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _recent(incidents: Iterable[Detected], since: datetime) -> int:
    return sum(one.opened_at >= since for one in incidents)


def _sum(sums: dict[str, Any], **amounts: float) -> None:
    for name, amount in amounts.items():
        sums[name] = round(sums.get(name, 0.0) + amount, COST_DECIMALS)


def _continued_costs(
    found: Sequence[tuple[Detected, Detected | None]], again: Sequence[tuple[Detected, Detected | None]]
) -> dict[int, float]:
    """Return what the incidents of the current policy cost under the changed one, by their place in `found`.

    Both lists are those of `matches`. Where several incidents continue one, or one continues several, each costs once.
    """
    place_of: dict[int, int] = {}
    for place, (_, other) in enumerate(found):
        if other is not None:
            place_of.setdefault(id(other), place)
    places = {id(one): place for place, (one, _) in enumerate(found)}
    costs: dict[int, float] = {}
    for one, other in again:
        if other is not None:
            place = place_of.get(id(one), places[id(other)])
            costs[place] = costs.get(place, 0.0) + one.cost_usd
    return costs


def _labelled(found: Sequence[Detected], recorded: Sequence[Detected]) -> list[Detected]:
    """Give replayed incidents the id and the label of the recorded one about the same loop.

    Others get the label of the recorded one with the most calls in common: a label is about the calls, whichever
    detector finds them.
    """
    return [
        replace(one, public_id=other.public_id, label=other.label) if other else _with_label(one, recorded)
        for one, other in matches(found, recorded)
    ]


def _with_label(one: Detected, recorded: Sequence[Detected]) -> Detected:
    if detector_for(one.kind).is_run_limit:
        return one
    others = [other for other in recorded if not detector_for(other.kind).is_run_limit]
    nearest = max(others, key=lambda other: len(one.seqs & other.seqs), default=None)
    return one if nearest is None or one.seqs.isdisjoint(nearest.seqs) else replace(one, label=nearest.label)


def _difference(one: Detected, other: Detected) -> Difference | None:
    """Return how the changed policy reacts differently to a loop that both find; None if it reacts the same."""
    strength = DECISIONS.index(other.decision) - DECISIONS.index(one.decision)
    if strength:
        return "stricter" if strength > 0 else "weaker"
    calls, calls_after = ((each.found_at_call, each.reacted_at_call) for each in (one, other))
    if calls == calls_after:
        return None
    return "later" if calls_after > calls else "earlier"


def _difference_in_cost(before: float, after: float) -> Difference | None:
    more = round(after - before, COST_DECIMALS)
    return None if not more else "costlier" if more > 0 else "cheaper"


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
