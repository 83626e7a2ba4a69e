"""Agents that hand over to one another in a cycle.

    triage → billing → triage → billing → triage → billing

A hand-off is a call by another agent than the one before: the name of the agent changes within a session or, in a
family of sessions, the agent or session that makes the calls. Counts identical laps of two to six agents, and fires on
the lap `handoff_min_laps`, if the results since the first lap are known and none of them is new. Agents that hand work
over and make progress, such as a writer and a reviewer, are not a loop; the receipts of tools that only hand over, such
as `transfer_to_billing`, are not progress. A message of the user restarts the count.

In a family the session that started the others is the one that can change course: if it takes part in the lap, its call
gets the reaction; otherwise the call that completes the lap. The incident is one of the session at the top.

- **False alarms:** agents that take turns in waiting for the same state: declare their tool as `poll`.
- **Misses:** agents without a name within one session; laps of which results are never reported.
- **Tuning:** raise `handoff_min_laps` for agents that are meant to negotiate.
- **Cost:** constant per call. Across the sessions of a family, the same as `family`.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypedDict

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    MAX_EVIDENCE,
    QUIET,
    SURE,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
)
from detection.engine.family import MAX_HANDOFFS, Stretch
from detection.engine.field import NOT_OF_TOOLS, ladder, number, switch
from detection.engine.identity import digest_of_calls, smallest_rotation
from detection.engine.memory import Record, RunState, bounded_name
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome

# As many agents as `cycle_max_length` has calls, so that ten laps fit into the hand-offs that are kept.
_LONGEST_LAP: Final = 6
# Of the names of agents, what fits into a line of an incident; a judgement.
_MAX_AGENTS_CHARACTERS: Final = 200
_HANDS_OVER: Final = re.compile(
    r"(?i)(?:transfer|hand|delegate|escalate)(?:[ _-]?(?:off|over|back|to|task|work)(?![a-z])|$)|transferto"
)
"""Names of tools that pass the work to another agent and do nothing else."""


class HandoffState(TypedDict, total=False):
    """What the detector remembers of one session: its stretches, as the fields of `Stretch` in order."""

    has_begun: bool
    stretches: list[list[Any]]


class Handoff(BaseDetector):
    """Counts identical laps of agents that hand over to one another."""

    kind = "handoff"
    label = "Hand-offs"
    headline = "Hand-offs in a cycle"
    unit = "repetitions"
    sentence = "*$agents* handed over to one another *$count times* in the same order without a new result"
    recurrence = "Agents hand over to one another in a cycle"
    message = (
        "the same agents have handed over to one another $count times in the same order without a new result"
    )
    advice = "Do not hand over again: finish with what you have, or report what is missing."
    again = "The next hand-off"
    key_settings = ("handoff_ladder", "handoff_min_laps")
    limit_setting = "handoff_min_laps"
    spans_session = True
    spans_family = True
    describes_results = False
    settings = (
        switch(
            "handoff_enabled", False, "Detect cycles of hand-offs",
            "Detect agents that hand over to one another without a new result.", weakens="off", scopes=NOT_OF_TOOLS,
        ),
        # As `cycle_min_laps`; not measured, because no preset turns this detector on.
        number(
            "handoff_min_laps", 3, 2, 10, "Limit for hand-offs",
            "Fires on the n-th repetition of an order of agents without a new result.", unit="repetitions",
        ),
        ladder("handoff_ladder", "warn", "Reaction to hand-offs"),
    )  # fmt: skip
    examples = {
        "handoff": Example(
            "two agents, and neither can help",
            tuple(
                ExampleCall(letter, tool, {"case": n}, "not my department", agent=agent)
                for n in range(4)
                for letter, tool, agent in (
                    ("T", "find_customer", "triage"),
                    ("B", "find_invoice", "billing"),
                )
            ),
            values={"outcome_enabled": False, "stagnation_enabled": False, "similar_enabled": False},
        ),
        "handoff-progress": Example(
            "a writer and a reviewer who get further: not a loop",
            tuple(
                ExampleCall(letter, tool, {"draft": n}, f"{tool} of draft {n * 7}", agent=agent)
                for n in range(4)
                for letter, tool, agent in (("W", "edit_text", "writer"), ("R", "comment", "reviewer"))
            ),
            fires=False,
        ),
    }

    def on_call(
        self, own: HandoffState, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        family = run.family
        if not own.get("has_begun") and family is not None and not family.parent:
            family.handoffs.clear()
        own["has_begun"] = True
        # An agent without a name is known by its session, of which no other row is to contain the name.
        agent = bounded_name(call.agent) or (f"session {family.session}" if family else "")
        if not agent:
            return QUIET
        session = family.session if family else ""
        stretches = _stretches(own, run)
        latest = stretches[-1] if stretches else None
        if latest is not None and latest.agent == agent:
            return QUIET
        stretches.append(Stretch(agent, session, record.seq))
        del stretches[:-MAX_HANDOFFS]
        _store(own, run, stretches)
        limit = policy.values["handoff_min_laps"]
        for period in range(2, _LONGEST_LAP + 1):
            laps = _laps(stretches, period)
            lap = stretches[-period:]
            if laps >= limit:
                if family and family.parent and any(one.session == family.parent for one in lap):
                    return QUIET
                return self._found(run, record, stretches, period, laps, limit)
        return QUIET

    def on_result(
        self,
        own: HandoffState,
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Note whether the result is new for the agent whose turn it is."""
        stretches = _stretches(own, run)
        if stretches:
            # A hand-off with another note has another receipt, which is no progress.
            is_new = bool(record.is_new) and not _HANDS_OVER.match(record.tool)
            if is_new and run.family is not None and outcome.is_evidence:
                is_new = run.family.is_new(record.result)
            stretches[-1].results += 1
            stretches[-1].is_new = stretches[-1].is_new or is_new
            _store(own, run, stretches)
        return QUIET

    def on_message(self, own: HandoffState) -> None:
        """Start counting laps again: the user may send the agents the same way."""
        own["stretches"] = []
        own["has_begun"] = False

    def reset(self, own: HandoffState, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting laps again from zero."""
        self.on_message(own)

    def _found(
        self, run: RunState, record: Record, stretches: list[Stretch], period: int, laps: int, limit: int
    ) -> Reading:
        session = stretches[-1].session
        within = stretches[-laps * period :]
        agents = smallest_rotation([one.agent for one in within[-period:]])
        seqs = sorted({one.seq for one in within if one.session == session} | {record.seq})[-MAX_EVIDENCE:]
        finding = Finding(
            kind=self.kind,
            count=laps,
            limit=limit,
            confidence=SURE,
            calls_digest=digest_of_calls(self.kind, agents),
            call_keys=(record.key,),
            seqs=tuple(seqs),
            first_seq=seqs[0],
            results="equal",
            detail=detail(
                record.tool,
                agents=" → ".join(agents)[:_MAX_AGENTS_CHARACTERS],
                family=run.family is not None,
            ),
        )
        return Reading(laps, limit, finding)


def _laps(stretches: list[Stretch], period: int) -> int:
    """Return the number of laps of this many agents without a new result since the first, with the one about to end."""
    same, size = 0, len(stretches)
    while same + period < size and stretches[-1 - same].agent == stretches[-1 - same - period].agent:
        same += 1
    laps = (same + period) // period
    # The first lap may bring something new; what is in hand has no result yet.
    while laps > 1:
        later = stretches[-(laps - 1) * period : -1]
        if not any(one.is_new for one in later) and sum(one.results for one in later) >= laps - 1:
            break
        laps -= 1
    return laps


def _stretches(own: HandoffState, run: RunState) -> list[Stretch]:
    if run.family is not None:
        return run.family.handoffs
    return [Stretch(*row) for row in own.get("stretches", ())]


def _store(own: HandoffState, run: RunState, stretches: list[Stretch]) -> None:
    if run.family is None:
        own["stretches"] = [[one.agent, one.session, one.seq, one.results, one.is_new] for one in stretches]
