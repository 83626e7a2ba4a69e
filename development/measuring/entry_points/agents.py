"""Plays the situations of known agents through the guard of an installation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from development.measuring import agent_scenarios as agents
from development.measuring.differences import Played
from development.measuring.entry_points.installation import Json, Refused
from development.measuring.entry_points.sessions import (
    GuardedSession,
    ReportedSession,
    sent_call,
    sent_result,
)
from development.measuring.entry_points.stage import Stage

_EVENTS: dict[str, Json] = {
    "@message": {"type": "message", "role": "assistant"},
    "@user": {"type": "message", "role": "user"},
    "@condense": {"type": "compaction"},
    "@heartbeat": {"type": "heartbeat"},
    "@end": {"type": "end"},
}
_SPOKEN = frozenset(("@message", "@user", "@condense"))


def obstacle(scenario: Json, stage: Stage) -> str:
    """Return why a scenario cannot be played on an installation, empty if it can."""
    entries = scenario["calls"]
    if any(entry["tool"] == "@look" for entry in entries):
        return "looks for silence at a moment of its own, while workers look when they do"
    if stage.environment:
        return "needs an installation without settings in its environment"
    times = [float(entry.get("t", index)) for index, entry in enumerate(entries)]
    if max(times) - min(times) > stage.clock.longest_seconds:
        return "takes longer than --longest without a test clock"
    return ""


class AgentGuardPlay:
    """A scenario on its way through the guard; `played` is set when it is over."""

    _led: type[GuardedSession] = GuardedSession

    def __init__(self, scenario: Json, stage: Stage) -> None:
        self._scenario, self._stage = scenario, stage
        self._sessions: dict[str, GuardedSession] = {}
        self._sent: list[tuple[GuardedSession, Json, int]] = []
        self._backend = ""
        self._reactions: list[Json] = []
        self.played = Played(scenario["id"], {}, ("it was not played to its end",))

    def steps(self) -> Iterator[float]:
        """Play; yield the time of each step before it is taken."""
        try:
            self._backend = self._stage.backend(
                {"preset": "standard", **self._scenario.get("settings", {})}, {}
            )
            for index, entry in enumerate(self._scenario["calls"]):
                yield float(entry.get("t", index))
                self._play(index, entry)
            self._note_stored()
            self.played = agents.compared(
                self._scenario, sorted(self._reactions, key=lambda one: int(one["i"]))
            )
        except Refused as error:
            self.played = Played(self._scenario["id"], {"acted": self._reactions}, (str(error),))

    def _session(self, entry: Json) -> GuardedSession:
        name, parent = str(entry.get("session", "")), str(entry.get("parent", ""))
        if name not in self._sessions:
            folder = self._scenario["id"]
            self._sessions[name] = self._led(
                self._stage,
                f"{folder}/{name or 'only'}",
                self._backend,
                f"{folder}/{parent}" if parent else "",
            )
        return self._sessions[name]

    def _play(self, index: int, entry: Json) -> None:
        session, before = self._session(entry), entry.get("before", "")
        if before in agents.MESSAGES:
            session.tell({"type": "message", "role": "user", "content": f"Go on ({index})."}, index)
        if before == "stream_retry":
            for other, call, number in self._sent:
                if call.get("round") == agents.name(entry.get("round")):
                    self._note(other, number, other.guard([call], [number])[0])
        if entry["tool"] in _EVENTS:
            session.tell(self._event(index, entry), index)
        else:
            self._play_call(session, index, entry)

    def _event(self, index: int, entry: Json) -> Json:
        event = dict(_EVENTS[entry["tool"]])
        if event["type"] == "message":
            event["content"] = str(entry.get("args", {}).get("text", "")) or f"Message {index}."
        if event["type"] == "heartbeat":
            event["call_id"] = f"call-{entry['call']}"
        return event

    def _play_call(self, session: GuardedSession, index: int, entry: Json) -> None:
        call = sent_call(
            f"call-{index}",
            entry,
            entry.get("usage"),
            round=agents.name(entry.get("round")),
            run=agents.name(entry.get("run")),
            agent=entry.get("agent") or None,
        )
        self._sent.append((session, call, index))
        self._note(session, index, session.guard([call], [index])[0])
        if "result" in entry:
            for notice in session.report([sent_result(call["call_id"], entry)], [index]):
                self._note(session, index, notice)

    def _note(self, session: GuardedSession, index: int, verdict: Json) -> None:
        finding = verdict["finding"]
        if verdict["decision"] == "allow" or verdict["duplicate"] or finding is None:
            return
        reaction = _reaction(index, verdict["decision"], finding)
        if verdict["ending"]:
            reaction["ending"] = {"ending": verdict["ending"]}
            if verdict["retry_after_seconds"]:
                reaction["ending"]["pause_seconds"] = verdict["retry_after_seconds"]
            if verdict["reused"]:
                reaction["ending"]["reuses"] = session.entries[verdict["reused"]["seq"] - 1]
        self._reactions.append(reaction)

    def _note_stored(self) -> None:
        """Note what was found about messages and compactions: it is in no verdict, and an incident remains."""
        if not any(entry["tool"] in _SPOKEN for entry in self._scenario["calls"]):
            return
        noted = {one["kind"] for one in self._reactions}
        for session in self._sessions.values():
            for incident in session.evaluated()["incidents"]:
                if incident["kind"] not in noted and incident["decision"] != "allow":
                    index = session.entries[incident["last_seq"] - 1]
                    self._reactions.append(
                        _reaction(index, incident["decision"], {**incident, "results": None})
                    )


def obstacle_of_reports(scenario: Json, stage: Stage) -> str:
    """Return why a scenario cannot be played by reports of what has run, empty if it can."""
    if "endings" in scenario:
        return "asks how blocked calls end, and reported calls have run"
    if "first_at" in scenario:
        return "asks for the first reaction, of which an incident tells the last"
    if any("parent" in entry for entry in scenario["calls"]):
        return "asks about a family, whose incident does not tell the calls of each session"
    return obstacle(scenario, stage)


class AgentReportPlay(AgentGuardPlay):
    """A scenario whose calls are reported; the findings and decisions that workers store are compared."""

    _led = ReportedSession

    def _note_stored(self) -> None:
        for session in self._sessions.values():
            decisions, findings = session.stored()
            for one in findings:
                if one["decision"] != "allow":
                    index = session.entries[one["last_seq"] - 1]
                    self._reactions.append(_reaction(index, one["decision"], {**one, "results": None}))
            # A call of which no incident remains is a difference of its own.
            kind = {"kind": "no incident", "count": 0, "results": None}
            self._reactions += [
                _reaction(index, decision, kind) for index, decision in decisions.items() if not findings
            ]


def _reaction(index: int, decision: str, finding: dict[str, Any]) -> Json:
    named = {name: finding[name] for name in ("kind", "count", "results")}
    return {"i": index, "decision": decision, **named}
