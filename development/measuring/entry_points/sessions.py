"""A session of a scenario as a client of the API leads it: calls to the guard, everything else as events."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from development.measuring.entry_points.installation import Json
from development.measuring.entry_points.scripted_model import MODEL
from development.measuring.entry_points.stage import Stage

_EVALUATED_WITHIN_SECONDS = 60.0
_DECIDED_WITHIN_SECONDS = 60.0
_POLL_SECONDS = 0.05


class GuardedSession:
    """A session of one scenario.

    Parameters
    ----------
    name
        Its name within the run.
    backend
        Whose settings it has.
    parent
        Name of the session that started it.

    Attributes
    ----------
    entries
        For each stored event, in order, the position of its entry in the scenario.
    calls
        The same of calls alone.
    """

    def __init__(self, stage: Stage, name: str, backend: str, parent: str = "") -> None:
        self._stage, self._send = stage, stage.installation.send
        self.name = f"{stage.prefix}/{name}"
        self._about: Json = {"session": self.name, "backend": backend, "model": MODEL}
        if parent:
            self._about["parent_session"] = f"{stage.prefix}/{parent}"
        self._path = f"sessions/{quote(self.name)}"
        self.entries: list[int] = []
        self.calls: list[int] = []

    def guard(self, calls: list[Json], indexes: list[int]) -> list[Json]:
        """Send the calls of one request, and return their verdicts, rendered for the OpenAI API."""
        answer = self._send("POST", "guard", {**self._about, "calls": calls}, render="openai")
        verdicts: list[Json] = answer["verdicts"]
        for verdict, index in zip(verdicts, indexes, strict=True):
            if not verdict["duplicate"]:
                self.entries.append(index)
                self.calls.append(index)
        return verdicts

    def report(self, results: list[Json], indexes: list[int]) -> list[Json]:
        """Send results, and return the verdicts about them that are none of `allow`."""
        answer = self._send("POST", "guard", {**self._about, "results": results}, render="openai")
        self.entries += indexes
        notices: list[Json] = answer["notices"]
        return notices

    def tell(self, event: Json, index: int) -> None:
        """Send one event that is not a call."""
        self._send("POST", "events", {**self._about, **event})
        self.entries.append(index)

    def set(self, values: Json) -> None:
        """Change the settings of the session."""
        self._send("PATCH", f"{self._path}/policy", values)

    def evaluated(self) -> Json:
        """Return the session once all its events are evaluated."""
        deadline = time.monotonic() + _EVALUATED_WITHIN_SECONDS
        while True:
            document = self._send("GET", self._path)
            if not document["pending_events"] or time.monotonic() > deadline:
                return document
            time.sleep(_POLL_SECONDS)

    def stored(self) -> tuple[dict[int, str], list[Json]]:
        """Return what workers stored: decisions other than `allow` by the position of the call, and findings."""
        if not self.entries:
            return {}, []
        found = [
            finding
            for incident in self.evaluated()["incidents"]
            for finding in self._send("GET", f"incidents/{incident['id']}")["findings"]
        ]
        decisions: dict[int, str] = {}
        given = {"limit": "500"}
        while True:
            page = self._send("GET", f"{self._path}/calls", **given)
            for call in page["items"]:
                if call["decision"] != "allow":
                    decisions[self.entries[call["seq"] - 1]] = str(call["decision"])
            if not page["next_cursor"]:
                return decisions, found
            given["cursor"] = page["next_cursor"]

    def policy(self) -> Json:
        """Return the settings in force."""
        given = {"session": self.name} if self.entries else {}
        scope = {name: str(self._about[name]) for name in ("backend", "model")}
        return {
            name: one["value"]
            for name, one in self._send("GET", "policy", **scope, **given)["policy"].items()
        }

    def decide(self, approval: str, choice: str) -> Json:
        """Decide a held call as a person."""
        return self._send("POST", f"approvals/{approval}/decision", {"choice": choice})

    def approval(self, approval: str) -> Json:
        """Return an approval as it is."""
        return self._send("GET", f"approvals/{approval}")

    def decided(self, approval: str) -> Json:
        """Return an approval once it is decided."""
        deadline = time.monotonic() + _DECIDED_WITHIN_SECONDS
        while True:
            document = self.approval(approval)
            if document["decision"] or time.monotonic() > deadline:
                return document
            time.sleep(_POLL_SECONDS)

    def ruling(self, approval: str) -> Json:
        """Return the ruling of the judge on a held call."""
        return self._send("GET", f"approvals/{approval}/ruling")


class ReportedSession(GuardedSession):
    """A session whose calls are reported after they ran, and evaluated by workers: no verdict reaches the agent."""

    def guard(self, calls: list[Json], indexes: list[int]) -> list[Json]:
        """Report calls; what is returned for each is that nothing is known about it."""
        answer = self._send(
            "POST", "events", {"events": [{**self._about, **one, "type": "call"} for one in calls]}
        )
        if not answer["duplicate"]:  # all of them are sent again, or none
            self.entries += indexes
            self.calls += indexes
        nothing = {"finding": None, "rung": None, "decision": "allow", "duplicate": False}
        return [nothing] * len(calls)

    def report(self, results: list[Json], indexes: list[int]) -> list[Json]:
        """Report results."""
        self._send(
            "POST", "events", {"events": [{**self._about, **one, "type": "result"} for one in results]}
        )
        self.entries += indexes
        return []


def sent_call(call_id: str, entry: Json, usage: Json | None = None, **more: Any) -> Json:
    """Return a call as the API takes it; names that are None are omitted."""
    given = {"call_id": call_id, "tool": entry["tool"], "arguments": entry.get("args"), **more}
    if usage:
        given["usage"] = {"input_tokens": usage.get("tokens", 0), "cost_usd": usage.get("cost_usd", 0.0)}
    return {name: value for name, value in given.items() if value is not None}


def sent_result(call_id: str, entry: Json) -> Json:
    """Return the result of a call as the API takes it."""
    return {"call_id": call_id, "content": entry["result"], "is_error": entry.get("is_error")}
