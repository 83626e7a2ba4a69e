"""Plays runs that users reported, each through the entry point that its agent uses, as that agent would continue.

A blocked call does not run. After a stop nothing more is sent until a person writes or resumes, unless the host of the
case `goes_on`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from development.measuring import report_scenarios as reports
from development.measuring.differences import Played
from development.measuring.entry_points.gateway import chat_completion
from development.measuring.entry_points.installation import Json, Refused
from development.measuring.entry_points.stage import Stage

_BETWEEN_STEPS_SECONDS = 0.05
"""Between two steps of a case without a pause: about what a request takes, so that no two calls have the same time."""
_EVALUATED_WITHIN_SECONDS = 60.0
_APPEARS_WITHIN_SECONDS = 5.0
"""So long after all events are evaluated, an expected incident may be missing: that of a family is written later."""
_POLL_SECONDS = 0.05
_ACTS = ("api", "user", "assistant", "compaction")
_REACTIONS: Mapping[str, reports.Kind] = {"warn": "warn", "block": "block", "hold": "block", "stop": "stop"}
_HOOK_EVENTS: Mapping[str, Mapping[str, str]] = {
    "gemini-cli": {
        "PreToolUse": "BeforeTool",
        "PostToolUse": "AfterTool",
        "UserPromptSubmit": "BeforeAgent",
        "PreCompact": "PreCompress",
    },
    "opencode": {
        "PreToolUse": "tool.execute.before",
        "PostToolUse": "tool.execute.after",
        "UserPromptSubmit": "chat.message",
    },
}
"""Names of hook events of the hosts that do not use those of Claude Code."""
_NAME_CALLS = frozenset(("claude-code", "codex", "opencode"))
"""Hosts whose hooks name the id of the call."""
_REPORT_FAILURES = frozenset(("claude-code",))
"""Hosts with a hook of its own for a tool that failed."""
_TEXTS = ("stopReason", "permissionDecisionReason", "additionalContext", "reason", "message", "systemMessage")
"""Where the answer to a hook has its text."""


def obstacle(case: Json, stage: Stage) -> str:
    """Return why a case cannot be played on an installation, empty if it can."""
    if case.get("manual"):
        return "is judged by a person"
    entry_point = case["door"].partition("/")[0]
    if entry_point not in _AGENTS:
        return f"comes in through {entry_point}, which is not played"
    if entry_point == "gateway" and stage.model is None:
        return "needs a model server: an installation with LOOPGUARD_GATEWAY_UPSTREAMS, and its port as --model-port"
    if stage.environment:
        return "needs an installation without settings in its environment"
    pauses = sum(step.get("wait", 0) * step.get("times", 1) for step in case["steps"])
    if pauses > stage.clock.longest_seconds:
        return "takes longer than --longest without a test clock"
    for _, path, _ in case.get("setup", ()):
        if not _is_free(path, stage):
            return f"makes settings, and the project has some at {path} already"
    return ""


def _is_free(path: str, stage: Stage) -> bool:
    try:
        return not stage.installation.send("GET", path).get("items", True)
    except Refused as error:
        if error.status != 404:
            raise
        return True


class ReportPlay:
    """A case on its way; `played` is set when it is over."""

    def __init__(self, case: Json, stage: Stage) -> None:
        self._case, self._stage = case, stage
        self.played = Played(case["id"], {}, ("it was not played to its end",))

    def steps(self) -> Iterator[float]:
        """Play; yield the time of each step before it is taken. Settings of the case are removed in the end."""
        send, made = self._stage.installation.send, []
        try:
            for method, path, body in self._case.get("setup", ()):
                made.append(path)
                send(method, path, body)
            agent = _AGENTS[self._case["door"].partition("/")[0]](self._case, self._stage)
            yield from self._acts(agent)
            self.played = reports.compared(self._case, agent.run, self._incidents(agent))
        except Refused as error:
            self.played = Played(self._case["id"], {}, (str(error),))
        finally:
            for path in reversed(made):
                send("DELETE", path)

    def _acts(self, agent: _EventAgent) -> Iterator[float]:
        """Let the agent take the steps of the case."""
        clock = self._stage.clock
        for step in expanded(self._case["steps"]):
            for _ in range(step.get("times", 1)):
                act = next((name for name in _ACTS if name in step), "")
                if act in ("api", "user"):
                    agent.is_stopped = False
                if agent.is_stopped and not self._case.get("goes_on"):
                    continue
                yield clock.now() + step.get("wait", _BETWEEN_STEPS_SECONDS)
                if act:
                    getattr(agent, act)(step[act])
                elif "wait" not in step:
                    agent.reply(step.get("calls", [step]))
        yield clock.now() + _BETWEEN_STEPS_SECONDS
        agent.finish()

    def _is_pending(self, session: str) -> bool:
        """Return whether events of a session are still to be evaluated; one whose sub-agents alone act has none."""
        try:
            return bool(self._stage.installation.send("GET", f"sessions/{quote(session)}")["pending_events"])
        except Refused as error:
            if error.status != 404:
                raise
            return False

    def _incidents(self, agent: _EventAgent) -> list[Json]:
        """Return the incidents of the agent's sessions, once all that was sent is evaluated."""
        send = self._stage.installation.send
        deadline = time.monotonic() + _EVALUATED_WITHIN_SECONDS
        for session in sorted(agent.sessions):
            while self._is_pending(session) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _APPEARS_WITHIN_SECONDS
        while True:
            found = [
                one
                for name in sorted(agent.sessions)
                for one in send("GET", "incidents", session=name)["items"]
            ]
            if not reports.is_awaited(self._case, found) or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_SECONDS)


def expanded(value: Any) -> Any:
    """Return a value with its long texts: `{"$repeat": [before, unit, times, after]}` stands for one."""
    if isinstance(value, dict) and "$repeat" in value:
        before, unit, times, after = value["$repeat"]
        return before + unit * times + after
    if isinstance(value, dict):
        return {name: expanded(one) for name, one in value.items()}
    return [expanded(one) for one in value] if isinstance(value, list) else value


class _EventAgent:
    """An agent that only reports, after its calls have run; the others ask before.

    Attributes
    ----------
    sessions
        Names of its session and of those that it started.
    is_stopped
        Whether it was stopped, and not resumed.
    """

    def __init__(self, case: Json, stage: Stage) -> None:
        self._case, self._stage, self._send = case, stage, stage.installation.send
        self._agent = case.get("agent", "agent")
        self.session = f"{stage.prefix}/{case['id']}"
        self.sessions = {self.session}
        self.run = reports.ReportRun()
        self.is_stopped = False

    def reply(self, calls: list[Json]) -> None:
        """Make the calls of one reply of the model."""
        first = self.run.calls + 1
        self.run.calls += len(calls)
        self._make(dict(enumerate(calls, first)))

    def _make(self, calls: Mapping[int, Json]) -> None:
        for number, call in calls.items():
            self.run.ran.append(number)
            cwd = {"cwd": call["cwd"]} if "cwd" in call else {}
            self._report(type="call", call_id=f"c{number}", tool=call["tool"], arguments=call["args"], **cwd)
        for number, call in calls.items():
            result = {"content": call.get("content", ""), "is_error": call.get("is_error")}
            self._report(type="result", call_id=f"c{number}", **result)

    def _report(self, **event: Any) -> None:
        self._send("POST", "events", {"session": self.session, "agent": self._agent, **event})

    def _note(self, number: int, decision: str, message: str) -> None:
        if decision != "allow":
            self.run.reactions.append(reports.ReportReaction(number, _REACTIONS[decision], message))
        self.is_stopped = self.is_stopped or decision == "stop"

    def api(self, request: list[Any]) -> None:
        """Let an operator send a request."""
        method, path, body = request
        self._send(method, path.replace("{session}", quote(self.session)), body)

    def user(self, text: str) -> None:
        """Report what the user writes."""
        self.finish()
        self._report(type="message", role="user", content=text)

    def assistant(self, text: str) -> None:
        """Report what the model writes."""
        self.finish()
        self._report(type="message", role="assistant", content=text)

    def compaction(self, _: Any) -> None:
        """Report that the context was condensed."""
        self.finish()
        self._report(type="compaction", content="summary")

    def finish(self) -> None:
        """Send what is left."""


class _GuardAgent(_EventAgent):
    """An agent that asks before each reply; its results travel with the next question, and so do notices on them."""

    def __init__(self, case: Json, stage: Stage) -> None:
        super().__init__(case, stage)
        self._results: list[Json] = []

    def _make(self, calls: Mapping[int, Json]) -> None:
        asked = [
            {"call_id": f"c{number}", "tool": call["tool"], "arguments": call["args"]}
            | {name: call[name] for name in ("usage", "cwd") if name in call}
            for number, call in calls.items()
        ]
        verdicts = self._ask(asked, min(calls))
        for (number, call), verdict in zip(calls.items(), verdicts, strict=True):
            self._note(number, verdict["decision"], verdict["message"] or "")
            if verdict["decision"] in ("allow", "warn"):
                self.run.ran.append(number)
                result: Json = {name: call[name] for name in ("content", "is_error") if name in call}
                self._results += [{"call_id": f"c{number}", **result}] if result else []

    def _ask(self, calls: list[Json], number: int) -> list[Json]:
        results, self._results = self._results, []
        body = {"session": self.session, "agent": self._agent, "results": results, "calls": calls}
        answer = self._send("POST", "guard", body | self._case.get("fields", {}))
        for notice in answer["notices"]:
            self._note(number, notice["decision"], notice["message"] or "")
        verdicts: list[Json] = answer["verdicts"]
        return verdicts

    def finish(self) -> None:
        if self._results:
            self._ask([], self.run.calls + 1)


class _HookAgent(_EventAgent):
    """A coding agent: one hook before a tool, and one after it."""

    def __init__(self, case: Json, stage: Stage) -> None:
        super().__init__(case, stage)
        self._host = case["door"].partition("/")[2]

    def _make(self, calls: Mapping[int, Json]) -> None:
        for number, call in calls.items():
            fields = {"tool_name": call["tool"], "tool_input": call["args"], **call.get("extra", {})}
            if "cwd" in call:
                fields["cwd"] = call["cwd"]
            if self._host in _NAME_CALLS:
                fields["tool_use_id"] = f"toolu_{self.session}_{number}"
            if "agent_id" in fields:
                self.sessions.add(f"{self.session}/{fields['agent_id']}")
            decision, message = self._hook("PreToolUse", fields)
            self._note(number, decision, message)
            if decision in ("allow", "warn"):
                self.run.ran.append(number)
                self._after(number, call, fields)

    def _after(self, number: int, call: Json, fields: Json) -> None:
        result = call.get("raw", call.get("content"))
        if call.get("is_error") and self._host in _REPORT_FAILURES:
            self._note(number, *self._hook("PostToolUseFailure", fields | {"error": result}))
        elif result is not None:  # without one it still runs, as an agent does that starts others
            self._note(number, *self._hook("PostToolUse", fields | {"tool_response": result}))

    def _hook(self, name: str, fields: Json) -> tuple[str, str]:
        """Send a hook; return what its answer makes the host do, and with which text."""
        about = {
            "session_id": self.session,
            "transcript_path": f"/home/u/{self.session}.jsonl",
            "cwd": "/src",
            "hook_event_name": _HOOK_EVENTS.get(self._host, {}).get(name, name),
        }
        answer = self._send("POST", f"hooks/{self._host}", about | fields)
        inner = answer.get("hookSpecificOutput") or {}
        texts = (place.get(key) for place in (answer, inner) for key in _TEXTS)
        message = next((str(text) for text in texts if text), "")
        if answer.get("continue") is False:
            return "stop", message
        decisions = {one.get("permissionDecision") or one.get("decision") for one in (answer, inner)}
        if answer.get("run") is False or not decisions.isdisjoint(("deny", "ask", "block")):
            return ("warn" if name.startswith("Post") else "block"), message  # after a tool, the call has run
        return ("warn" if message else "allow"), message

    def user(self, text: str) -> None:
        self._hook("UserPromptSubmit", {"prompt": text})

    def assistant(self, text: str) -> None:
        """Send nothing: the hooks of a case are those about calls."""

    def compaction(self, _: Any) -> None:
        self._hook("PreCompact", {"trigger": "auto"})


class _GatewayAgent(_EventAgent):
    """An agent whose base URL is the gateway. Warnings show in what reaches the model server, before a result."""

    def __init__(self, case: Json, stage: Stage) -> None:
        super().__init__(case, stage)
        calls = [call for step in case["steps"] for call in step.get("calls", [step]) if "tool" in call]
        self._tools = [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
            for name in dict.fromkeys(call["tool"] for call in calls)
        ]
        self._address = stage.gateway_of({}, {})
        self._messages: list[Json] = []
        self._read: set[str] = set()

    def _make(self, calls: Mapping[int, Json]) -> None:
        asked = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {
                    "name": call["tool"],
                    "arguments": call["args"] if isinstance(call["args"], str) else json.dumps(call["args"]),
                },
            }
            for number, call in calls.items()
        ]
        got = self._turn(min(calls), None, asked)
        self.is_stopped = not got  # an answer without a call ends a run, until the user writes again
        for (number, call), made in zip(calls.items(), got, strict=False):
            self.run.ran.append(number)
            result = {"role": "tool", "tool_call_id": made["id"], "content": call.get("content", "")}
            self._messages.append(result)

    def _turn(self, number: int, text: str | None, calls: list[Json]) -> list[Json]:
        """Let the model write a text or make calls; return those that reach the agent."""
        model = self._stage.model
        if model is None:
            raise TypeError("a case of the gateway without a model server")
        self._read |= {str(one["content"]) for one in self._messages}
        model.put(self.session, calls, text=text, insists=True)
        body: Json = {"model": self.session, "messages": self._messages}
        if self._tools:
            body["tools"] = self._tools
        answer = chat_completion(self._stage, self._address, self.session, body, agent=self._agent)
        requests = model.requests_of(self.session)
        for content in [str(one.get("content")) for one in (requests[0]["messages"] if requests else ())]:
            if content not in self._read:
                self._read.add(content)
                self._note(number, "warn", content)
        message = answer["message"]
        self._messages.append(message)
        got: list[Json] = message.get("tool_calls") or []
        if len(got) < len(calls) or len(requests) != 1:
            self._note(number, "block", str(message.get("content") or ""))
        return got

    def assistant(self, text: str) -> None:
        self._turn(self.run.calls + 1, text, [])
        self.is_stopped = False

    def user(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def finish(self) -> None:
        if self._messages[-1]["role"] != "assistant":
            self._turn(self.run.calls + 1, "Done.", [])


_AGENTS: Mapping[str, type[_EventAgent]] = {
    "events": _EventAgent,
    "guard": _GuardAgent,
    "hooks": _HookAgent,
    "gateway": _GatewayAgent,
}
"""By the entry point that a case names."""
