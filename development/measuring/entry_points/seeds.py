"""Plays the scenarios of the five known systems through the guard of an installation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from typing import Any

from development.measuring import seed_scenarios as seeds
from development.measuring.differences import Played
from development.measuring.entry_points.installation import Json, Refused
from development.measuring.entry_points.sessions import (
    GuardedSession,
    ReportedSession,
    sent_call,
    sent_result,
)
from development.measuring.entry_points.stage import Stage

_UNSEEN = {
    "tracked": "asks how many calls the engine remembers, which no interface tells",
    "log": "asks for a line of the log, which no interface shows",
    "counts": "asks for counts of calls that nothing was found about, which no interface tells",
}

_ENDING = frozenset(("halt", "stop", "terminate"))
_OF_RESULTS = frozenset(("repetitive_results",))
_WINDOWED = {"windowed_repeat": "consecutive_repeat"}
"""Kinds that an incident does not tell apart: the same detector, counting in another way."""


def obstacle(scenario: Json, stage: Stage) -> str:
    """Return why a scenario cannot be played on an installation, empty if it can."""
    config, expect = scenario.get("config", {}), scenario.get("expect", {})
    if "on_loop_detected" in config:
        return "asks a callback in the agent's process"
    for name, reason in _UNSEEN.items():
        if name in expect or any(name in one for one in expect.get("detections", ())):
            return reason
    wanted = seeds.settings_of(scenario).environment
    if wanted != stage.environment:
        if not wanted:
            return "needs an installation without settings in its environment"
        variables = ", ".join(f"{name}={_text(value)}" for name, value in wanted.items())
        return f"needs an installation with the settings {variables} in its environment"
    if any(one.get("action") == "judge" for one in expect.get("detections", ())) and stage.judge is None:
        return "needs a judge: an installation with LOOPGUARD_JUDGE_URL, and its port as --judge-port"
    if _span(scenario) > stage.clock.longest_seconds:
        return "takes longer than --longest without a test clock"
    return ""


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _span(scenario: Json) -> float:
    times = [one["t"] for one in seeds.expand(scenario.get("calls", [])) if "t" in one]
    return max(times, default=0.0) - min(times, default=0.0)


class SeedGuardPlay:
    """A scenario on its way through the guard; `played` is set when it is over.

    Parameters
    ----------
    scenario
        One without an `obstacle`.
    """

    _led: type[GuardedSession] = GuardedSession

    def __init__(self, scenario: Json, stage: Stage) -> None:
        self._scenario, self._stage = scenario, stage
        self._system: str = scenario["system"]
        self._config: Json = scenario.get("config", {})
        self._entries = [*seeds.expand(scenario.get("calls", []))]
        self._settings = seeds.settings_of(scenario)
        self._sessions: dict[str, GuardedSession] = {}
        self._ended: set[str] = set()
        self._choices = iter(self._config.get("user_choices", ()))
        self._detections: list[Json] = []
        self._now = self._later = 0.0
        self._backend = ""
        self.mark = f"{stage.prefix}/{scenario['id']}"
        self.played = Played(scenario["id"], {}, ("it was not played to its end",))

    def steps(self) -> Iterator[float]:
        """Play; yield the time of each step before it is taken."""
        try:
            self._backend = self._stage.backend(self._settings.own, self._settings.model)
        except Refused as error:
            self.played = seeds.compared(
                self._scenario, seeds.rejected(self._scenario, error.path.removeprefix("values."))
            )
            return
        try:
            yield from self._calls()
            self.played = self._compared()
        except Refused as error:
            self.played = Played(self._scenario["id"], {"detections": self._detections}, (str(error),))

    def _session(self, name: str) -> GuardedSession:
        if name in self._sessions:
            return self._sessions[name]
        session = self._led(self._stage, f"{self._scenario['id']}/{name or 'only'}", self._backend)
        self._sessions[name] = session
        if self._settings.session:
            # A session that exists can have settings; what the system says begins nothing.
            session.tell({"type": "message", "role": "system", "content": self.mark}, -1)
            session.set(self._settings.session)
        if self._stage.judge is not None and "judge_replies" in self._config:
            self._stage.judge.expect(self.mark, self._config["judge_replies"])
            request = f"{self._config.get('original_request', 'Do it.')} ({self.mark})"
            session.tell({"type": "message", "role": "user", "content": request}, -1)
        return session

    def _calls(self) -> Iterator[float]:
        index, position = 0, 0
        while position < len(self._entries):
            entry = self._entries[position]
            name = str(entry.get("session", ""))
            if "control" in entry:
                self._control(entry, self._session(name), index)
                position += 1
                continue
            request = self._request(position)
            position += len(request)
            self._now = float(request[0].get("t", index)) + self._later
            yield self._now
            session = self._session(name)
            # Integrations of the original system never send streamed responses.
            is_unseen = self._system == "000" and entry.get("stream")
            if not is_unseen and name not in self._ended:
                yield from self._played_request(request, index, name, session)
            index += len(request)

    def _request(self, position: int) -> list[Json]:
        """Return the calls of one response of the model, if they are made at one time; else a call alone."""
        first = self._entries[position]
        request = [first]
        if "batch" not in first:
            return request
        shared = ("batch", "t", "run", "session", "stream")
        for entry in self._entries[position + 1 :]:
            if "control" in entry or any(entry.get(name) != first.get(name) for name in shared):
                break
            request.append(entry)
        return request

    def _control(self, entry: Json, session: GuardedSession, index: int) -> None:
        if entry["control"] == "command":
            session.tell({"type": "message", "role": "user", "content": entry["text"]}, index)
        else:
            session.set({"enabled": entry["control"] == "enable"})

    def _played_request(
        self, request: Sequence[Json], index: int, name: str, session: GuardedSession
    ) -> Iterator[float]:
        indexes = [*range(index, index + len(request))]
        sent = [
            sent_call(f"call-{number}", entry, round=_name(entry.get("batch")), run=_name(entry.get("run")))
            for number, entry in zip(indexes, request, strict=True)
        ]
        for number, verdict in zip(indexes, session.guard(sent, indexes), strict=True):
            yield from self._note(number, verdict, name, session)
        results = {n: one for n, one in zip(indexes, request, strict=True) if "result" in one}
        if results:
            given = [sent_result(f"call-{number}", entry) for number, entry in results.items()]
            for notice in session.report(given, [*results]):
                yield from self._note(int(notice["call_id"].removeprefix("call-")), notice, name, session)

    def _note(self, index: int, verdict: Json, name: str, session: GuardedSession) -> Iterator[float]:
        finding = verdict["finding"]
        if finding is None or verdict["rung"] is None or verdict["duplicate"]:
            return
        detected = seeds.SeedDetection(
            kind=finding["kind"],
            scope=verdict["policy"].get("repeat_scope", {}).get("value", ""),
            rung=verdict["rung"],
            decision=verdict["decision"],
            count=finding["count"],
            confidence=finding["confidence"],
            number=verdict["detection_number"],
            message=verdict["message"],
            pattern_length=len(finding["pattern"]),
            laps=finding["laps"],
        )
        choices = (verdict.get("rendered") or {}).get("choices")
        got = {
            "i": index,
            **seeds.in_their_words(self._system, detected),
            "session": name,
            "finish_reason": choices[0]["finish_reason"] if choices else None,
        }
        self._detections.append(got)
        approval = verdict.get("approval")
        # A hold without an approval is decided already: the verdict says how.
        if approval and verdict["rung"] in ("ask", "judge"):
            got |= yield from self._held(approval, verdict["rung"], session)
        if seeds.ends_session(self._system, got):
            self._ended.add(name)

    def _held(self, approval: Json, rung: str, session: GuardedSession) -> Generator[float, None, Json]:
        """Let the judge or a person decide a held call, and return how it ended."""
        if rung == "judge":
            decided = session.decided(approval["id"])
            ruling = session.ruling(approval["id"])
            request = self._stage.judge.request_of(self.mark) if self._stage.judge else {}
            got: Json = {
                "judge_called": bool(request),
                "judge_request": {
                    "temperature": request.get("temperature"),
                    "max_tokens": request.get("max_tokens"),
                    "prompt": request["messages"][-1]["content"] if request else "",
                },
                "verdict": seeds.VERDICTS.get(ruling["outcome"], ruling["outcome"]),
            }
        else:
            choice = next(self._choices, "keep_enabled")
            if choice in seeds.CHOICES:
                decided = session.decide(approval["id"], seeds.CHOICES[choice])
            else:  # no answer: the time for one passes
                seconds = _seconds_between(session.approval(approval["id"]))
                self._later += seconds + 1
                yield self._now + seconds + 1
                decided = session.decided(approval["id"])
            got = {"choice": choice}
            if decided["state"] == "decided":
                got["choice"] = seeds.CHOICE_NAMES.get(decided["choice"], choice)
        return got | seeds.after_decision(decided["decision"], decided["message"])

    def _compared(self) -> Played:
        return seeds.compared(self._scenario, self._got())

    def _got(self) -> Json:
        expect = self._scenario.get("expect", {})
        self._detections.sort(key=lambda one: int(one["i"]))
        got: Json = {
            "first": self._detections[0]["i"] if self._detections else None,
            "detections": self._detections,
        }
        if "notices" in expect:
            got["notices"] = [one for session in self._sessions.values() for one in _notices(session)]
        if "effective" in expect:
            got["effective"] = self._session("").policy()
        if "final" in expect:
            got["final"] = self._final()
        return got

    def _final(self) -> str:
        """Request one more round, as an unfinished agent would."""
        session = [*self._sessions.values()][-1]
        last = self._entries[-1]
        call = sent_call(
            "call-last",
            {"tool": last["tool"], "args": {"next": True}},
            round="next",
            run=_name(last.get("run")),
        )
        decision: str = session.guard([call], [len(self._entries)])[0]["decision"]
        return "answer_without_tools" if decision == "block" else decision


def obstacle_of_reports(scenario: Json, stage: Stage) -> str:
    """Return why a scenario cannot be played by reports of what has run, empty if it can."""
    expect = scenario.get("expect", {})
    if any(one.get("action") in ("prompt", "judge") for one in expect.get("detections", ())):
        return "needs a decision before a call runs, and reported calls have run"
    if "final" in expect:
        return "asks what becomes of a further call, and reported calls have run"
    return obstacle(scenario, stage)


class SeedReportPlay(SeedGuardPlay):
    """A scenario whose calls are reported; the findings that workers store are compared.

    A worker stores of each finding its detector, how often it was detected, and its last count, and of each call its
    decision. The calls after one that ends a session are not sent: no agent of the original systems would make them.
    """

    _led = ReportedSession

    def __init__(self, scenario: Json, stage: Stage) -> None:
        super().__init__(scenario, stage)
        last = next(
            (
                one["i"]
                for one in self._expected
                if one["action"] in _ENDING and self._system not in ("000", "001")
            ),
            None,
        )
        if last is not None:
            self._entries = self._entries[: last + 1]

    @property
    def _expected(self) -> list[Json]:
        found: list[Json] = self._scenario.get("expect", {}).get("detections", [])
        return found

    def _compared(self) -> Played:
        got = {name: value for name, value in self._got().items() if name not in ("first", "detections")}
        expect = {name: value for name, value in self._scenario.get("expect", {}).items() if name in got}
        same = seeds.compared({**self._scenario, "expect": expect}, {**got, "detections": []})
        problems = [*same.problems, *self._differences(got)]
        return Played(self._scenario["id"], got, tuple(problems))

    def _differences(self, got: Json) -> Iterator[str]:
        """Add the stored findings to what was got, and yield their differences."""
        decided: list[int] = []
        kinds: dict[str, int] = {}
        counts: dict[str, int] = {}
        for session in self._sessions.values():
            decisions, findings = session.stored()
            decided += decisions
            for one in sorted(findings, key=lambda one: int(one["last_seq"])):
                kind = seeds.kind_in_their_words(self._system, one["kind"], "")
                kinds[kind] = kinds.get(kind, 0) + one["detections"]
                counts[kind] = one["count"]
        got |= {"decided": sorted(decided), "kinds": kinds, "counts": counts}
        wanted = Counter(_WINDOWED.get(one["kind"], one["kind"]) for one in self._expected)
        # Without a kind, either is right.
        if wanted != kinds and (None not in wanted or sum(wanted.values()) != sum(kinds.values())):
            yield f"findings: expected {dict(wanted)}, got {kinds}"
        # Findings about results stand with no call, and those that change nothing leave the call as it is.
        expected = [
            one["i"]
            for one in self._expected
            if one["kind"] not in _OF_RESULTS and one["action"] != "continue"
        ]
        # The other calls of a response share the decision about one of them.
        rounds = {self._round_of(index) for index in expected} - {None}
        got["decided"] = [
            one for one in got["decided"] if one in expected or self._round_of(one) not in rounds
        ]
        if expected != got["decided"]:
            yield f"decided calls: expected {expected}, got {got['decided']}"
        last = {_WINDOWED.get(one["kind"], one["kind"]): one for one in self._expected}
        for name, one in last.items():
            if "count" in one and name in counts and counts[name] != one["count"]:
                yield f"count of {name}: expected {one['count']}, got {counts[name]}"

    def _round_of(self, index: int) -> Any:
        calls = [entry for entry in self._entries if "control" not in entry]
        return calls[index].get("batch")


def _notices(session: GuardedSession) -> Iterator[Json]:
    for notice in session.evaluated()["limit_notices"]:
        yield {
            "i": session.calls[notice["call_number"] - 1],
            "kind": "limit_approaching",
            "used": int(notice["used"]),
            "limit": int(notice["limit"]),
        }


def _seconds_between(approval: Json) -> float:
    """Return how long a held call waits for a decision."""
    begin, end = (datetime.fromisoformat(approval[name]) for name in ("requested_at", "deadline"))
    return (end - begin).total_seconds()


def _name(given: Any) -> str | None:
    return None if given is None else str(given)
