"""Plays the scenarios of five known systems, each under its preset, and compares the detections.

Settings and terms of those systems are translated here and nowhere else: the engine has one set of limits ("fires on
the n-th call") and one set of rungs. Everything that is decided is decided by the code that runs in production:
detections by the engine, approvals and rulings of the judge by the services, with rows that are never stored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from django.utils import timezone

from detection.engine import commands, fold, wire_shapes
from detection.engine.calls import Call, Finding, Result, Step, Verdict
from detection.engine.detectors.base import SMALLER_STEPS
from detection.engine.identity import Keyer
from detection.engine.judge import Digest
from detection.engine.memory import BLOCKING, State
from detection.engine.policy import (
    ENVIRONMENT,
    FIELDS,
    SERVER,
    SESSION,
    Policy,
    PolicyError,
    Scope,
    ScopedValues,
    environment_override,
    resolve,
    validate,
)
from detection.engine.results import as_text
from detection.models import Approval, Choice, Decider, EventType, JudgeCall, Session
from detection.models.approvals import ApprovalState
from detection.services.approvals.judge_consultation import extension_cap_of
from detection.services.events.event_records import EventRecord
from detection.services.judging import judge
from detection.services.sessions.folding import detection_log_line
from detection.services.tracking import outcomes
from detection.services.tracking.open_approvals import new_approval
from development.measuring.differences import Played

Json = dict[str, Any]

_PRESETS = {"000": "proxy", "001": "balanced", "002": "advisory", "003": "interactive", "004": "justified"}

_KINDS: Mapping[str, Mapping[str, str]] = {
    "000": {"repeat": "consecutive_repeat", "repeat window": "windowed_repeat"},
    "001": {
        "repeat": "exact_duplicate",
        "cycle": "pattern",
        "similar": "similar_calls",
        "outcome": "repetitive_results",
    },
    "002": {"repeat": "repeat_warning", "budget": "step_limit"},
    "003": {"repeat": "signature_count", "budget": "step_limit"},
    "004": {"budget": "round_limit"},
}
_ACTIONS: Mapping[str, Mapping[str, str]] = {
    "000": {"stop": "break"},
    "001": {"observe": "continue", "stop": "terminate"},
    "002": {},
    "003": {"ask": "prompt", "stop": "halt"},
    "004": {},
}
_RUNGS = {"continue": "observe", "warn": "warn", "terminate": "stop", "stop": "stop"}
VERDICTS = {"unclear": "ambiguous", "failed": "error"}
_LEVELS = {"WARNING": "WARN"}
CHOICES = {
    "keep_enabled": Choice.SKIP,
    "escape": Choice.SKIP,
    "disable_for_session": Choice.DISABLE,
    "allow_once": Choice.ALLOW_ONCE,
}
CHOICE_NAMES = {
    Choice.SKIP: "keep_enabled",
    Choice.DISABLE: "disable_for_session",
    Choice.ALLOW_ONCE: "allow_once",
}
_CALLBACKS: Mapping[str, Literal["allow", "stop"]] = {
    "always_continue": "allow", "continue": "allow", "always_stop": "stop", "stop": "stop",
}  # fmt: skip

# The engine's name of a setting of 001, and by how many calls it fires later.
_LEVEL_NAMES: Mapping[str, tuple[str, int]] = {
    "window_size": ("window_calls", 0),
    "max_duplicates": ("max_repeats", 1),
    "max_exact_duplicates": ("max_repeats", 1),
    "min_pattern_length": ("cycle_min_length", 0),
    "max_pattern_length": ("cycle_max_length", 0),
    "min_pattern_repetitions": ("cycle_min_laps", 0),
    "similarity_threshold": ("similar_ratio", 0),
    "max_similar": ("similar_max_calls", 1),
    "result_similarity_threshold": ("outcome_ratio", 0),
    "max_similar_results": ("outcome_max_results", 1),
    "max_history": ("window_calls", 0),
}

_EXPECTED = frozenset(
    ("first", "detections", "notices", "config_error", "effective", "final", "tracked", "why", "note")
)
_EXPECTED_OF_DETECTION = frozenset((
    "i", "kind", "action", "count", "counts", "confidence", "detection_count", "pattern_length", "repetitions",
    "warning", "message_has", "finish_reason", "stopped", "session", "log", "choice", "executed", "verdict",
    "outcome", "judge_called", "judge_request", "guidance", "why", "note",
))  # fmt: skip
_EXPLAINING = frozenset(("why", "note"))


def play(scenario: Json) -> Played:
    """Play one scenario and compare.

    Parameters
    ----------
    scenario : dict
        As described by `about` in the file.

    Returns
    -------
    Played
        With one line per difference.
    """
    expect = scenario.get("expect", {})
    if any(_unknown(expect)):
        return compared(scenario, {})
    try:
        got = _Game(scenario).play()
    except PolicyError as error:
        got = rejected(scenario, error.field)
    return compared(scenario, got)


def rejected(scenario: Json, setting: str) -> Json:
    """Return what was got where a setting of the scenario is not allowed."""
    return {"first": None, "detections": [], "config_error": their_name(scenario, setting)}


def compared(scenario: Json, got: Json) -> Played:
    """Return a played scenario with its differences; a scenario with an unknown expectation fails."""
    expect = scenario.get("expect", {})
    return Played(scenario["id"], got, tuple(_unknown(expect)) or tuple(_problems(expect, got)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedDetection:
    """One detection, as the engine and the API name it."""

    kind: str
    scope: str
    rung: str
    decision: str
    count: int
    confidence: float
    number: int
    message: str
    pattern_length: int
    laps: int


def kind_in_their_words(system: str, kind: str, scope: str) -> str:
    """Return the kind of a detection in the terms of the system."""
    kinds = _KINDS[system]
    return kinds.get(f"{kind} {scope}") or kinds.get(kind, kind)


def in_their_words(system: str, detected: SeedDetection) -> Json:
    """Return a detection in the terms of the system."""
    got: Json = {
        "kind": kind_in_their_words(system, detected.kind, detected.scope),
        "action": _ACTIONS[system].get(detected.rung, detected.rung),
        "count": detected.count,
        "confidence": detected.confidence,
        "detection_count": detected.number,
        "warning": detected.decision == "warn",
        "stopped": detected.decision == "stop",
        "executed": detected.decision not in BLOCKING,
        "message": detected.message,
    }
    if detected.kind == "cycle":
        got |= {"pattern_length": detected.pattern_length, "repetitions": detected.laps}
    if detected.kind == "budget" and detected.decision != "hold":
        got |= {"outcome": "stop" if detected.decision in BLOCKING else "continue", "judge_called": False}
    return got


def after_decision(decision: str, message: str) -> Json:
    """Return how a held call ends, by the decision of a person or the judge."""
    is_allowed = decision == "allow"
    return {
        "executed": is_allowed,
        "stopped": decision == "stop",
        "outcome": "continue" if is_allowed else "stop",
        "guidance": SMALLER_STEPS in message or "Guidance: " in message,
    }


def ends_session(system: str, detection: Json) -> bool:
    """Return whether the agent makes no call after a detection. Those of the first two systems go on, on purpose."""
    return bool(detection["stopped"]) and system not in ("000", "001")


def expand(calls: list[Json]) -> Iterator[Json]:
    """Return the calls one by one: `n` copies with `{i}` replaced, `t` increased by `dt`, and their rounds."""
    for entry in calls:
        copies = entry.get("n", 1)
        for i in range(copies):
            one = {name: _filled(value, i) for name, value in entry.items() if name not in ("n", "dt")}
            if "t" in entry:
                one["t"] = entry["t"] + i * entry.get("dt", 0)
            batch = entry.get("batch")
            if batch == "each":
                one["batch"] = f"each-{i}"
            elif isinstance(batch, str) and batch.startswith("by") and batch[2:].isdigit():
                one["batch"] = f"{batch}-{i // int(batch[2:])}"
            yield one


def _filled(value: Any, i: int) -> Any:
    if isinstance(value, str):
        return value.replace("{i}", str(i))
    if isinstance(value, list):
        return [_filled(item, i) for item in value]
    if isinstance(value, dict):
        return {name: _filled(item, i) for name, item in value.items()}
    return value


_MODEL = Scope("model", backend="scenario", model="scenario")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a scenario under LoopGuard's names, not yet validated.

    Attributes
    ----------
    own
        With the preset of the system: those of its server, widest but for the environment.
    model, session
        Those of its model, and of each session from its start.
    environment
        Those of environment variables. Invalid ones are skipped: the original system ignored them.
    """

    own: Json
    model: Json
    session: Json
    environment: Json


def settings_of(scenario: Json) -> Settings:
    """Return the settings of a scenario."""
    system, config = scenario["system"], scenario.get("config", {})
    translate = _TRANSLATE[system]
    by_scope = [
        translate(config[name]) if isinstance(config.get(name), dict) else {}
        for name in ("server", "model", "session")
    ]
    own = {"preset": _preset(system, config), **translate(config), **by_scope[0]}
    return Settings(own, by_scope[1], by_scope[2], _environment(config.get("env", {})))


def _overrides(given: Settings) -> list[ScopedValues]:
    """Return settings as overrides.

    Raises
    ------
    PolicyError
        For a setting of the scenario that is not allowed.
    """
    return [
        (ENVIRONMENT, given.environment),
        (SERVER, validate(SERVER, given.own)),
        (_MODEL, validate(_MODEL, given.model)),
    ]


def _environment(variables: Json) -> Json:
    """Read variables like the original system, which ignored invalid ones."""
    found: Json = {}
    for name, text in variables.items():
        with suppress(PolicyError):
            found |= environment_override({name: text})
    return found


def their_name(scenario: Json, name: str) -> str:
    """Return the scenario's own name of a setting, if it has one."""
    names = {own: theirs for theirs, (own, _) in _LEVEL_NAMES.items() if theirs in scenario.get("config", {})}
    if scenario["system"] == "001":
        names["graduated_rungs"] = "actions"
    if scenario["system"] == "003":
        names["max_repeats"] = "loop_detection_threshold"
    if scenario["system"] == "004":
        names |= {"budget_max_rounds": "max_rounds", "budget_max_extensions": "max_extensions"}
    return names.get(name, name)


def _preset(system: str, config: Json) -> str:
    return "similarity" if system == "001" and config.get("level", 0) >= 3 else _PRESETS[system]


_OTHER_NAMES: Mapping[str, str] = {
    "detection": "enabled",
    "repeats": "max_repeats",
    "ttl": "ttl_seconds",
    "count_batch_once": "once_per_round",
    "max_extensions": "budget_max_extensions",
}


def _known(config: Json) -> Json:
    """Return the settings under LoopGuard's names, with or without the prefix of the original's."""
    found: Json = {}
    for name, value in config.items():
        bare = name.removeprefix("tool_loop_detection_").removeprefix("tool_loop_")
        bare = _OTHER_NAMES.get(bare, bare)
        if bare in FIELDS:
            found[bare] = value
    return found


def _proxy(config: Json) -> Json:
    found = _known({name: value for name, value in config.items() if name != "env"})
    if config.get("count_interleaved"):
        found |= {"repeat_scope": "window", "window_calls": FIELDS["window_calls"].maximum}
    return found


def _levels(config: Json) -> Json:
    found: Json = _known({"enabled": config["enabled"]} if "enabled" in config else {})
    for name, (own, more) in _LEVEL_NAMES.items():
        if name in config:
            found[own] = config[name] + more
    if "cycle_min_laps" in found:
        found["cycle_unknown_laps"] = found["cycle_min_laps"]
    if "outcome_max_results" in found:
        found["outcome_max_errors"] = found["outcome_max_results"]
    if "window_calls" in found and "level" in config:
        found["similar_window_calls"] = found["window_calls"]
    if config.get("normalise_volatile"):
        found["outcome_method"] = "literal_masked"
    if "actions" in config:
        found["graduated_rungs"] = [_RUNGS.get(action, action) for action in config["actions"]]
    level = config.get("level")
    if level:
        # A scenario of one level is about that level alone.
        found |= {
            "repeat_enabled": level == 1,
            "cycle_enabled": level == 2,
            "similar_enabled": level == 3,
            "outcome_enabled": level == 4,
        }
    return found


def _advisory(config: Json) -> Json:
    found = _known({name: value for name, value in config.items() if name != "scope"})
    if config.get("scope") in ("run", "session"):
        found["counting_scope"] = config["scope"]
    if config.get("canonical") or config.get("canonicalise"):
        found["identity"] = "canonical"
    if "max_iterations" in config:
        found |= _round_limit(config["max_iterations"], ["block"])
    return found


def _round_limit(rounds: int, ladder: str | list[str]) -> Json:
    return {
        "budget_enabled": True,
        "budget_soft_rounds": False,
        "budget_max_rounds": rounds + 1,
        "budget_max_calls": 0,
        "budget_ladder": ladder,
    }


def _interactive(config: Json) -> Json:
    config = {**config, **config.get("tools", {}), **config.get("model", {})}
    # A prompt that cannot be shown fails open in the original: the call runs, detection stays off.
    found: Json = {"unattended_reaction": "disable"}
    if "skip_loop_detection" in config:
        found["enabled"] = not config["skip_loop_detection"]
    if "loop_detection_threshold" in config:
        found["max_repeats"] = config["loop_detection_threshold"] + 1
    if "loop_detection_interactive" in config:
        found["mode"] = "ask" if config["loop_detection_interactive"] else "break"
    if "max_repeated_tool_calls" in config:
        found |= {"max_repeats": config["max_repeated_tool_calls"] + 1, "mode": "break"}
    if "max_tool_loops" in config:
        found |= _round_limit(config["max_tool_loops"], "break")
    return found


def _justified(config: Json) -> Json:
    found = _known({name: value for name, value in config.items() if name == "max_extensions"})
    if "max_rounds" in config:
        found |= {
            "budget_max_rounds": config["max_rounds"] + 1,
            "budget_extension_rounds": config["max_rounds"],
        }
    return found


_TRANSLATE: Mapping[str, Callable[[Json], Json]] = {
    "000": _proxy,
    "001": _levels,
    "002": _advisory,
    "003": _interactive,
    "004": _justified,
}


@dataclass(slots=True)
class _Session:
    """A session of the scenario with its own settings."""

    row: Session
    state: State = field(default_factory=fold.new_state)
    calls: list[tuple[Call, Step]] = field(default_factory=list)
    is_ended: bool = False


class _Game:
    """A scenario being played."""

    def __init__(self, scenario: Json) -> None:
        self.system: str = scenario["system"]
        self.config: Json = scenario.get("config", {})
        self.calls = list(expand(scenario.get("calls", [])))
        self.expects_end = "final" in scenario.get("expect", {})
        settings = settings_of(scenario)
        self.overrides, self.session_values = _overrides(settings), validate(SESSION, settings.session)
        self.keyer = Keyer(b"scenario")
        self.sessions: dict[str, _Session] = {}
        self.choices = iter(self.config.get("user_choices", ()))
        self.replies = iter(self.config.get("judge_replies", ()))
        self.callback = _CALLBACKS.get(self.config.get("on_loop_detected", ""))
        self.detections: list[Json] = []
        self.notices: list[Json] = []

    def play(self) -> Json:
        """Play all calls and return the detections."""
        index = 0
        for entry in self.calls:
            session = self._session(str(entry.get("session", "")))
            if "control" in entry:
                self._control(entry, session)
                continue
            # Integrations of the original system never send streamed responses; the detector does not know about
            # streams.
            is_unseen = self.system == "000" and entry.get("stream")
            if not (is_unseen or session.is_ended):
                self._call(entry, index, session)
            index += 1
        got: Json = {
            "first": self.detections[0]["i"] if self.detections else None,
            "detections": self.detections,
            "notices": self.notices,
            "effective": dict(self._policy(self._session("")).values),
            "tracked": sum(
                len(run.records) for session in self.sessions.values() for run in session.state.runs.values()
            ),
        }
        if self.expects_end:
            got["final"] = self._final()
        return got

    def _session(self, name: str) -> _Session:
        if name not in self.sessions:
            self.sessions[name] = _Session(Session(external_id=name, policy_values=self.session_values))
        return self.sessions[name]

    def _policy(self, session: _Session) -> Policy:
        return resolve([*self.overrides, (SESSION, session.row.policy_values)])

    def _control(self, entry: Json, session: _Session) -> None:
        values = session.row.policy_values
        if entry["control"] == "command":
            for command in commands.parse(entry["text"]):
                values = commands.apply(command, values)
        else:
            values = {**values, "enabled": entry["control"] == "enable"}
        session.row.policy_values = values

    def _observed(self, entry: Json, index: int, session: _Session, policy: Policy) -> tuple[Call, Step]:
        batch = entry.get("batch")
        call = Call(
            seq=index,
            tool=entry["tool"],
            arguments=entry.get("args"),
            cwd=entry.get("cwd", ""),
            at=float(entry.get("t", index)),
            call_id=f"call-{index}",
            round=None if batch is None else str(batch),
            run=None if entry.get("run") is None else str(entry["run"]),
        )
        return call, fold.observe(
            session.state, call, policy, self.keyer, overrule=self._overrule if self.callback else None
        )

    def _overrule(self, _verdict: Verdict) -> Literal["allow", "stop"] | None:
        return self.callback

    def _call(self, entry: Json, index: int, session: _Session) -> None:
        policy = self._policy(session)
        counted = _totals(session.state)
        call, step = self._observed(entry, index, session, policy)
        session.calls.append((call, step))
        self._report(step, call, session, policy, counted)
        if "result" in entry:
            result = Result(call.call_id, as_text(entry["result"]), entry.get("is_error"), call.at, index)
            step = fold.observe(
                session.state, result, policy, self.keyer, overrule=self._overrule if self.callback else None
            )
            self._report(step, call, session, policy, counted)

    def _final(self) -> str:
        """Request one more round, as an unfinished agent would."""
        session = [*self.sessions.values()][-1]
        last = session.calls[-1][0]
        entry = {
            "tool": last.tool,
            "args": {"next": True},
            "t": last.at + 1,
            "batch": "next",
            "run": last.run,
        }
        verdict = self._observed(entry, last.seq + 1, session, self._policy(session))[1].verdict
        return "answer_without_tools" if verdict.decision == "block" else verdict.decision

    def _report(
        self, step: Step, call: Call, session: _Session, policy: Policy, counted: Mapping[str, int]
    ) -> None:
        self.notices += [
            {
                "i": call.seq,
                "kind": "limit_approaching",
                "used": int(finding.detail["used"]),
                "limit": int(finding.detail["allowed"]),
            }
            for finding in step.verdict.findings
            if finding.detail.get("notice")
        ]
        verdict, finding = step.verdict, step.verdict.finding
        line = detection_log_line(session.row.external_id, call.tool, step)
        if line is None or finding is None or verdict.rung is None:
            return
        level, _, fields = line
        level_name = logging.getLevelName(level)
        detected = SeedDetection(
            kind=finding.kind,
            scope=finding.detail.get("scope", ""),
            rung=verdict.rung,
            decision=verdict.decision,
            count=finding.count,
            confidence=finding.confidence,
            number=verdict.detection_number,
            message=verdict.message,
            pattern_length=len(finding.pattern),
            laps=finding.laps,
        )
        got: Json = {
            "i": call.seq,
            **in_their_words(self.system, detected),
            "counts": {
                _signature(other): counted.get(known.call_key or "", 0) for other, known in session.calls[:-1]
            },
            "session": session.row.external_id,
            "finish_reason": _finish_reason(verdict),
            "log": {
                "level": _LEVELS.get(level_name, level_name),
                "toolName": fields["tool"],
                "callCount": fields["count"],
            },
        }
        if verdict.decision == "hold":
            got |= self._held(step, call, session, policy)
        session.is_ended = ends_session(self.system, got)
        self.detections.append(got)

    def _held(self, step: Step, call: Call, session: _Session, policy: Policy) -> Json:
        """Decide a held call as a person or the judge does, and apply the outcome to the session."""
        finding = step.verdict.finding
        if finding is None:
            return {}
        event = EventRecord(
            type=EventType.CALL, call_id=call.call_id, tool=call.tool, run=call.run or "", seq=call.seq,
            call_key=step.call_key or "",
        )  # fmt: skip
        decider = Decider.JUDGE if step.verdict.rung == "judge" else Decider.PERSON
        approval = new_approval(session.row, event, finding, policy, decider)
        if decider == Decider.JUDGE:
            got, outcome = self._ruling(approval, finding, session, policy)
        else:
            choice = next(self.choices, "keep_enabled")
            if choice in CHOICES:
                outcome = outcomes.person_outcome(approval, CHOICES[choice], 0, "ana")
            else:
                outcome = outcomes.unattended_outcome(approval)
            is_decided = outcome.state == ApprovalState.DECIDED
            got = {"choice": CHOICE_NAMES.get(Choice(outcome.choice), choice) if is_decided else choice}
        outcomes.apply_outcome(approval, outcome, session.row, session.state)
        return got | after_decision(outcome.decision, outcome.message)

    def _ruling(
        self, approval: Approval, finding: Finding, session: _Session, policy: Policy
    ) -> tuple[Json, outcomes.ApprovalOutcome]:
        max_rounds = extension_cap_of(policy, approval.kind)
        steps = [step for _, step in session.calls]
        digest = Digest(
            rounds=finding.count,
            limit=finding.limit,
            calls=len(steps),
            distinct_calls=len({step.call_key for step in steps}),
            new_results=sum(run.new_results for run in session.state.runs.values()),
            errors=0,
            tools=Counter(call.tool for call, _ in session.calls),
            grantable=max_rounds,
        )
        request = self.config.get("original_request", "")
        body = judge.request_body(
            digest,
            request,
            model="scenario",
            answers="words",
            temperature=float(policy.values["judge_temperature"]),
        )
        call = JudgeCall(at=timezone.now(), outcome="")
        judge.take_answer(call, self._answer, max_rounds, answers="words")
        got: Json = {
            "judge_called": True,
            "judge_request": {
                "temperature": body["temperature"],
                "max_tokens": body["max_tokens"],
                "prompt": body["messages"][-1]["content"],
            },
            "verdict": VERDICTS.get(call.outcome, str(call.outcome)),
        }
        return got, outcomes.judge_outcome(approval, call)

    def _answer(self) -> bytes:
        reply = next(self.replies, None)
        if not isinstance(reply, str):
            raise judge.Unanswered("status_500")
        message = {"role": "assistant", "content": reply}
        return orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})


def _totals(state: State) -> dict[str, int]:
    """Return how often each call was counted so far, by its key."""
    counted: Counter[str] = Counter()
    for run in state.runs.values():
        counted.update(run.detectors["repeat"].totals if "repeat" in run.detectors else {})
    return dict(counted)


def _signature(call: Call) -> str:
    arguments = call.arguments
    if isinstance(arguments, dict):
        arguments = "{" + ",".join(f"{name}:{value}" for name, value in arguments.items()) + "}"
    return f"{call.tool}{arguments}"


def _finish_reason(verdict: Verdict) -> str | None:
    """Return how a response ends that carries the verdict to a client of the OpenAI API."""
    rendered = wire_shapes.render("openai", verdict.decision, verdict.message)
    choices = rendered.get("choices") if isinstance(rendered, dict) else None
    return choices[0]["finish_reason"] if isinstance(choices, list) and choices else None


def _unknown(expect: Json) -> Iterator[str]:
    """Return one line per expectation that this module does not compare."""
    for name in expect.keys() - _EXPECTED:
        yield f"unknown expectation {name!r}"
    for one in expect.get("detections", []):
        for name in one.keys() - _EXPECTED_OF_DETECTION:
            yield f"unknown expectation {name!r} of call {one.get('i')}"


def _problems(expect: Json, got: Json) -> Iterator[str]:
    if "config_error" in expect or "config_error" in got:
        if expect.get("config_error") != got.get("config_error"):
            yield f"config_error: expected {expect.get('config_error')}, got {got.get('config_error')}"
        return
    for name in ("first", "final", "notices", "tracked"):
        if name in expect and expect[name] != got.get(name):
            yield f"{name}: expected {expect[name]}, got {got.get(name)}"
    for name, value in expect.get("effective", {}).items():
        effective = got["effective"].get(name)
        if effective != value:
            yield f"effective {name}: expected {value}, got {effective}"
    yield from _detection_problems(expect.get("detections", []), got["detections"])


def _detection_problems(wanted: list[Json], found: list[Json]) -> Iterator[str]:
    if [one["i"] for one in wanted] != [one["i"] for one in found]:
        yield f"detections at {[one['i'] for one in wanted]} expected, got {[one['i'] for one in found]}"
        return
    for one, other in zip(wanted, found, strict=True):
        for name, value in one.items():
            if name in _EXPLAINING or (name == "kind" and value is None):
                continue
            for problem in _value_problems(name, value, other):
                yield f"call {one['i']} {problem}"


def value_problems(expected: Json, got: Json) -> Iterator[str]:
    """Return the differences between the expected values of a detection and what was found."""
    for name, value in expected.items():
        yield from _value_problems(name, value, got)


def _value_problems(name: str, value: Any, other: Json) -> Iterator[str]:
    """Compare one expected value of a detection with what was found."""
    if name == "message_has":
        yield from _missing_parts("message", value, other["message"])
    elif name == "judge_request":
        request = other.get(name, {})
        yield from _missing_parts("judge_request", value.get("prompt_has", ()), request.get("prompt", ""))
        for key in value.keys() - {"prompt_has"}:
            if request.get(key) != value[key]:
                yield f"judge_request {key}: expected {value[key]}, got {request.get(key)}"
    elif name == "counts":
        for signature, count in value.items():
            if other[name].get(signature) != count:
                yield f"counts of {signature}: expected {count}, got {other[name].get(signature)}"
    elif other.get(name) != value:
        yield f"{name}: expected {value}, got {other.get(name)}"


def _missing_parts(name: str, parts: Any, text: str) -> Iterator[str]:
    missing = [part for part in parts if part.lower() not in text.lower()]
    if missing:
        yield f"{name}: {missing} missing in {text!r}"
