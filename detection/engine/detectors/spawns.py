"""Trees of sub-agents that repeat or outgrow themselves.

    session ── "Research PayPal" ── "Research PayPal" ── "Research PayPal" ── "Research PayPal"

Each sub-agent looks healthy by itself, and the tree as a whole does the same work again or grows without an end. A
sub-agent is seen when a call starts it (`Task`, `Agent`, `spawn_agent` and the like, see `tables/spawns.toml`), and
otherwise with the first call of a session that names a `parent_session`. Fires when a tree of sessions reaches one of
these limits:

- `spawns_max_repeats`: the same prompt, whatever its spelling, in the whole tree;
- `spawns_max_depth`: sub-agents that start sub-agents, the level below the session at the top being the first;
- `spawns_max_children`: sub-agents that one session starts;
- `spawns_max_per_minute` and `spawns_max_total`: sub-agents of the whole tree. None is set by default.

A message of the user to the session at the top starts all of them over but `spawns_max_total`. The session whose call
fires gets the reaction, and that at the top the one incident; with the default ladder, nothing is held, and the
warning comes again when the count has doubled.

- **False alarms:** several samples of one prompt, whose answers are compared or voted on.
- **Misses:** prompts that differ by a number or a name, below the limits of size; sessions beyond 200 of one tree.
- **Tuning:** raise `spawns_max_children` for fleets; set `spawns_max_total` and a stricter ladder to end runaway trees.
- **Cost:** nothing for sessions that start no sub-agent and are none. One locked row for the whole tree with a call
  that starts a sub-agent, and with the first call of a sub-agent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypedDict

from detection.engine.calls import Finding, FindingDetail, ObservedCall
from detection.engine.detectors.base import QUIET, BaseDetector, Example, ExampleCall, Reading, detail
from detection.engine.detectors.limits import limit_templates
from detection.engine.field import NOT_OF_TOOLS, ladder, number, switch
from detection.engine.identity import digest_of_calls
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.spawning import prompts_of

_ABOUT: Final = {
    "repeats": "sub-agents of one tree got the same prompt",
    "depth": "levels of sub-agents started one another",
    "children": "sub-agents were started by one session",
    "per_minute": "sub-agents of one tree were started within a minute",
    "total": "sub-agents of one tree were started",
}
"""What is counted, by limit: the rest of a sentence that begins with the number."""


def _spawn(number: int, prompt: str) -> ExampleCall:
    arguments = {"description": f"part {number * 37}", "prompt": prompt}
    return ExampleCall(prompt[-1], "Agent", arguments, f"{prompt}: source {number * 53}", session="lead")


class SpawnsState(TypedDict, total=False):
    """What the detector remembers: the key of the latest finding, and whether counting begins anew."""

    key: str
    has_begun: bool
    is_over: bool


class Spawns(BaseDetector):
    """Counts the sub-agents of a tree, their levels and their prompts."""

    kind = "spawns"
    label = "Trees of sub-agents"
    headline = "Limit of a tree of sub-agents reached"
    unit = "sub-agents"
    sentence = "*$count $about*"
    recurrence = "Trees of sub-agents reach a limit: *$detail*"
    message = "$count $about"
    advice = (
        "Use what the sub-agents of this task have reported, and start another one only for something that none of "
        "them was asked."
    )
    templates = limit_templates("Finish with what the sub-agents have reported.")
    stands_alone = True
    needs_family = True
    again = "The next sub-agent"
    presets = ("standard",)
    key_settings = ("spawns_ladder", "spawns_max_repeats", "spawns_max_children", "spawns_max_depth")
    limit_setting = "spawns_max_children"
    spans_session = True
    spans_family = True
    describes_results = False
    settings = (
        switch(
            "spawns_enabled", False, "Watch trees of sub-agents",
            "Detect trees of sub-agents that repeat their prompts or grow beyond limits.",
            weakens="off", scopes=NOT_OF_TOOLS,
        ),
        # As `max_repeats`; not measured. Three samples of one prompt may be a vote.
        number(
            "spawns_max_repeats", 4, 2, 1000, "Limit for prompts of sub-agents",
            "Fires on the n-th sub-agent of a tree with the same prompt.",
        ),
        # A judgement, not measured: three levels below the session at the top are helpers of helpers of helpers.
        number(
            "spawns_max_depth", 4, 0, 8, "Maximum depth of a tree",
            "Fires on a sub-agent of the n-th level below the session at the top. 0 means no limit.", unit="levels",
        ),
        # A judgement, not measured: up to 30 are a fleet that was planned.
        number(
            "spawns_max_children", 31, 0, 10_000, "Maximum sub-agents of one session",
            "Fires on the n-th sub-agent that one session starts. 0 means no limit.", unit="sub-agents",
        ),
        number(
            "spawns_max_per_minute", 0, 0, 200, "Maximum sub-agents per minute",
            "Fires on the n-th sub-agent of a tree within a minute. 0 means no limit.", unit="sub-agents",
        ),
        number(
            "spawns_max_total", 0, 0, 100_000, "Maximum sub-agents of a tree",
            "Fires on the n-th sub-agent of a tree in its whole life. 0 means no limit.", unit="sub-agents",
        ),
        ladder("spawns_ladder", "warn", "Reaction to trees of sub-agents"),
    )  # fmt: skip
    examples = {
        "spawns": Example(
            "four sub-agents with the same prompt",
            tuple(_spawn(number, "Research payment options for group A") for number in range(4)),
            values={"similar_enabled": False},
        ),
        "spawns-parts": Example(
            "eight sub-agents, each with a part of its own: not a loop",
            tuple(
                _spawn(number, f"Research payment options for group {'ABCDEFGH'[number]}")
                for number in range(8)
            ),
            fires=False,
        ),
    }

    def on_call(
        self, own: SpawnsState, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        family = run.family
        if family is None:
            return QUIET
        is_first, family.has_joined = family.has_joined, False
        prompts = prompts_of(call.tool, call.arguments) if policy.traits.starts_agents else []
        if not prompts and not (is_first and family.parent):
            return QUIET
        tree, values = family.tree, policy.values
        counts: dict[str, int] = {}
        if is_first and family.parent and tree.add_session(family.parent, record.at):
            counts = {"depth": family.level, "children": tree.children_of(family.parent)}
        if prompts:
            is_told = not family.parent and tree.has_begun and not own.get("has_begun")
            if own.pop("is_over", False) or is_told:
                tree.begin_anew()
            own["has_begun"] = True
            tree.has_begun = tree.has_begun or not family.parent
            counts["repeats"] = tree.add_spawns(family.session, prompts, record.at)
            counts["depth"] = family.level + 1
            counts["children"] = max(counts.get("children", 0), tree.children_of(family.session))
        if not counts:
            # It was judged when it was started.
            return QUIET
        counts |= {"per_minute": tree.within_a_minute(record.at), "total": tree.total}
        allowance = run.allowances.get(self.kind, 0)
        limits = [
            (count, limit + allowance, name)
            for name, count in counts.items()
            if (limit := values[f"spawns_max_{name}"])
        ]
        count, limit, name = max(limits, key=lambda one: one[0] / one[1], default=(0, 1, ""))
        if count < limit:
            return Reading(count, limit)
        own["key"] = record.key
        return Reading(count, limit, self._finding(record, count, limit, name, values[self.ladder]))

    def on_message(self, own: SpawnsState) -> None:
        """Begin anew with the next sub-agent if the session is at the top: the user may ask for the same again."""
        own["has_begun"] = False

    def reset(self, own: SpawnsState, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting again from zero with the next sub-agent, if the loop is one of this detector."""
        if own.get("key") in keys:
            own["is_over"] = True

    def raised_setting(self, unit: str) -> str:
        """Return the setting that an operator raises where findings count this unit."""
        return f"spawns_max_{unit}" if unit in _ABOUT else self.limit_setting

    def describe(self, finding: Finding, *, in_seconds: bool = False) -> str:
        """Return the finding in words."""
        about: FindingDetail = {"about": _ABOUT["total"], **finding.detail}
        return super().describe(replace(finding, detail=about), in_seconds=in_seconds)

    def _finding(
        self, record: Record, count: int, limit: int, name: str, rungs: str | tuple[str, ...]
    ) -> Finding:
        # A large tree that is meant reads the warning again when it has doubled, not with each further sub-agent.
        only_warns = {rungs} if isinstance(rungs, str) else {*rungs}
        return Finding(
            kind=self.kind,
            count=count,
            limit=limit,
            calls_digest=digest_of_calls(self.kind, (name,)),
            call_keys=(record.key,),
            seqs=(record.seq,),
            first_seq=record.seq,
            detail=detail(
                record.tool,
                unit=name,
                about=_ABOUT[name],
                family=True,
                advisory=only_warns <= {"warn", "observe"},
            ),
        )
