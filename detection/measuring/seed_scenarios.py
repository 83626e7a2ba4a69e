"""Plays the scenarios of five known systems, each under its preset, and compares the detections.

Settings and terms of those systems are translated here and nowhere else: the engine has one set of limits
("fires on the n-th call") and one set of rungs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from detection.engine import commands, fold
from detection.engine.calls import Call, Result, Step
from detection.engine.identity import Keyer
from detection.engine.judge import Ruling, parse_words
from detection.engine.memory import State
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
from detection.measuring.differences import Played

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
_VERDICTS = {"unclear": "ambiguous", "failed": "error"}

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

# Figures that the engine does not report, or that only explain.
_NOT_COMPARED = frozenset(("counts", "why", "note"))


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
    try:
        game = _Game(scenario)
        got = game.play()
    except PolicyError as error:
        got = {"first": None, "detections": [], "config_error": _their_name(scenario, error.field)}
    return Played(scenario["id"], got, tuple(_problems(expect, got)))


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


def overrides(system: str, config: Json) -> list[ScopedValues]:
    """Return a scenario's settings as overrides above the system's preset.

    Raises
    ------
    PolicyError
        For a setting of the scenario that is not allowed.
    """
    found: list[ScopedValues] = [(SERVER, {"preset": _preset(system, config)})]
    if "env" in config:
        found.append((ENVIRONMENT, _environment(config["env"])))
    translate = _TRANSLATE[system]
    found.append((SERVER, validate(SERVER, translate(config))))
    found += [
        (scope, validate(scope, translate(config[name])))
        for name, scope in (("server", SERVER), ("model", _MODEL), ("session", SESSION))
        if isinstance(config.get(name), dict)
    ]
    return found


def _environment(variables: Json) -> Json:
    """Read variables like the original system, which ignored invalid ones."""
    found: Json = {}
    for name, text in variables.items():
        with suppress(PolicyError):
            found |= environment_override({name: text})
    return found


def _their_name(scenario: Json, name: str) -> str:
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
    """Return the settings that have our own names, with or without the prefix of the original's."""
    found: Json = {}
    for name, value in config.items():
        bare = name.removeprefix("tool_loop_detection_").removeprefix("tool_loop_")
        bare = _OTHER_NAMES.get(bare, bare)
        if bare in FIELDS:
            found[bare] = value
    return found


def _proxy(config: Json) -> Json:
    return _known({name: value for name, value in config.items() if name != "env"})


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
    if config.get("on_loop_detected") in ("continue", "stop"):
        found["graduated_rungs"] = [_RUNGS[config["on_loop_detected"]]]
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
    return found


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
        found |= {
            "budget_enabled": True,
            "budget_soft_rounds": False,
            "budget_max_rounds": config["max_tool_loops"] + 1,
            "budget_ladder": "break",
        }
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

    state: State = field(default_factory=fold.new_state)
    own: Json = field(default_factory=dict)
    rounds: set[str] = field(default_factory=set)


class _Game:
    """A scenario being played."""

    def __init__(self, scenario: Json) -> None:
        self.system: str = scenario["system"]
        self.config: Json = scenario.get("config", {})
        self.calls = list(expand(scenario.get("calls", [])))
        self.overrides = overrides(self.system, self.config)
        self.keyer = Keyer(b"scenario")
        self.sessions: dict[str, _Session] = {}
        self.choices = iter(self.config.get("user_choices", ()))
        self.replies = iter(self.config.get("judge_replies", ()))
        self.detections: list[Json] = []

    def play(self) -> Json:
        """Play all calls and return the detections."""
        index = 0
        for entry in self.calls:
            session = self.sessions.setdefault(str(entry.get("session", "")), _Session())
            if "control" in entry:
                self._control(entry, session)
                continue
            # The original never looks at streamed responses.
            if not (self.system == "000" and entry.get("stream")):
                self._call(entry, index, session)
            index += 1
        got: Json = {
            "first": self.detections[0]["i"] if self.detections else None,
            "detections": self.detections,
            "effective": {name: resolve(self.overrides).get(name) for name in FIELDS},
        }
        limit = self.config.get("max_iterations")
        if limit is not None and any(len(session.rounds) >= limit for session in self.sessions.values()):
            got["final"] = "answer_without_tools"
        return got

    def _policy(self, session: _Session) -> Policy:
        return resolve([*self.overrides, (SESSION, session.own)])

    def _control(self, entry: Json, session: _Session) -> None:
        if entry["control"] == "command":
            for command in commands.parse(entry["text"]):
                session.own = commands.apply(command, session.own)
                unset = {change.field for change in command.changes if change.value is commands.UNSET}
                self.overrides = [
                    (scope, {name: value for name, value in values.items() if name not in unset})
                    if scope == SESSION
                    else (scope, values)
                    for scope, values in self.overrides
                ]
        else:
            session.own["enabled"] = entry["control"] == "enable"

    def _call(self, entry: Json, index: int, session: _Session) -> None:
        policy = self._policy(session)
        batch = entry.get("batch")
        if batch is not None:
            session.rounds.add(str(batch))
        call = Call(
            seq=index,
            tool=entry["tool"],
            arguments=entry.get("args"),
            at=float(entry.get("t", index)),
            call_id=f"call-{index}",
            round=None if batch is None else str(batch),
            run=None if entry.get("run") is None else str(entry["run"]),
        )
        step = fold.observe_call(session.state, call, policy, self.keyer)
        self._report(step, index, session, policy)
        if "result" in entry:
            result = Result(call.call_id, as_text(entry["result"]), entry.get("is_error"), call.at, index)
            self._report(
                fold.observe_result(session.state, result, policy, self.keyer), index, session, policy
            )

    def _report(self, step: Step, index: int, session: _Session, policy: Policy) -> None:
        verdict, finding = step.verdict, step.verdict.finding
        if step.duplicate or finding is None or verdict.rung is None or finding.detail.get("notice"):
            return
        kinds = _KINDS[self.system]
        kind = kinds.get(f"{finding.kind} {finding.detail.get('scope')}") or kinds.get(
            finding.kind, finding.kind
        )
        got: Json = {
            "i": index,
            "kind": kind,
            "action": _ACTIONS[self.system].get(verdict.rung, verdict.rung),
            "count": finding.count,
            "confidence": finding.confidence,
            "detection_count": verdict.detection_number,
            "warning": verdict.decision == "warn",
            "executed": verdict.decision in ("allow", "warn"),
            "message": verdict.message,
        }
        if finding.kind == "cycle":
            got |= {"pattern_length": finding.period, "repetitions": finding.count}
        if verdict.rung == "ask":
            got |= self._ask(session, policy)
        elif finding.kind == "budget":
            got |= (
                self._judge(session, policy)
                if verdict.rung == "judge"
                else {"outcome": "stop", "judge_called": False}
            )
        self.detections.append(got)

    def _ask(self, session: _Session, policy: Policy) -> Json:
        choice = next(self.choices, "keep_enabled")
        disables = choice == "disable_for_session" or (
            choice == "prompt_error" and policy.get("unattended_reaction") == "disable"
        )
        if disables:
            session.own["enabled"] = False
        return {"choice": choice, "executed": disables}

    def _judge(self, session: _Session, policy: Policy) -> Json:
        reply = next(self.replies, {"error": "no reply"})
        ruling = parse_words(reply) if isinstance(reply, str) else Ruling("failed")
        if ruling.accepted:
            fold.grant_rounds(session.state, policy.get("budget_extension_rounds"))
        return {
            "verdict": _VERDICTS.get(ruling.decision, ruling.decision),
            "outcome": "continue" if ruling.accepted else "stop",
            "executed": ruling.accepted,
            "judge_called": True,
            "guidance": True,
        }


def _problems(expect: Json, got: Json) -> Iterator[str]:
    if "config_error" in expect or "config_error" in got:
        if expect.get("config_error") != got.get("config_error"):
            yield f"config_error: expected {expect.get('config_error')}, got {got.get('config_error')}"
        return
    for name in ("first", "final"):
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
            if name == "message_has":
                missing = [part for part in value if part.lower() not in other["message"].lower()]
                if missing:
                    yield f"call {one['i']} message: {missing} missing in {other['message']!r}"
            elif (
                name not in _NOT_COMPARED
                and not (name == "kind" and value is None)
                and other.get(name) != value
            ):
                yield f"call {one['i']} {name}: expected {value}, got {other.get(name)}"
