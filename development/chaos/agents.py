"""The clients: agents that send the runs, each request until it is answered, and an operator who decides approvals."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import httpx

from development.chaos.runs import Run, Step, choice_of

AGENTS = 4
REQUEST_SECONDS = 4.0
LONGEST_RETRY_PAUSE_SECONDS = 1.0
WAIT_SECONDS = 3
OPERATOR_PAUSE_SECONDS = 0.2
TURN_PAUSE_SECONDS = 0.05
LONGEST_UNANSWERED_SECONDS = 90.0
_FINAL = ("allow", "block", "stop")


@dataclass
class Answers:
    """What the clients were told.

    Attributes
    ----------
    verdicts
        By session and call id: decision, rung, number of the detection and finding, and the decision of an approval.
    acknowledged
        Ids of the events that were answered with a 2xx.
    violations
        Responses that the documentation rules out, as sentences.
    repeated
        How often a request had to be sent again, by the reason.
    """

    verdicts: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)


class Unanswered(Exception):
    """A request got no answer for too long."""


class Sender:
    """Sends a project's requests until they are answered.

    Parameters
    ----------
    stopped
        Ends every wait.
    """

    def __init__(self, url: str, key: str, answers: Answers, stopped: threading.Event) -> None:
        self._url, self._headers = url, {"Authorization": f"Bearer {key}"}
        self._answers, self._stopped = answers, stopped
        self._client = httpx.Client()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(
        self, method: str, url: str, body: dict[str, Any] | None = None, seconds: float = REQUEST_SECONDS
    ) -> Any:
        """Send a request, again after every failure; return the JSON of the answer.

        Raises
        ------
        Unanswered
            The deadline has passed, or the run has been stopped.
        """
        deadline = time.monotonic() + LONGEST_UNANSWERED_SECONDS
        address = url if url.startswith("http") else f"{self._url}/api/v1{url}"
        while time.monotonic() < deadline:
            try:
                answer = self._client.request(
                    method, address, json=body, headers=self._headers, timeout=seconds
                )
            except httpx.HTTPError as error:
                # The next attempt opens a connection, which another process may take.
                self._client.close()
                self._client = httpx.Client()
                pause = self._note(type(error).__name__, 0.2)
            else:
                if answer.is_success or answer.status_code == 409:
                    return answer.json()
                pause = self._note(f"{answer.status_code} {self._check(answer)}", _retry_after(answer))
            if self._stopped.wait(min(pause, LONGEST_RETRY_PAUSE_SECONDS) * random.uniform(0.5, 1.0)):
                break
        raise Unanswered(f"{method} {url} was not answered for {LONGEST_UNANSWERED_SECONDS:g} s")

    def _note(self, reason: str, pause: float) -> float:
        self._answers.repeated[reason] += 1
        return pause

    def _check(self, answer: httpx.Response) -> str:
        """Note a response that is none of those promised; return its code."""
        try:
            code = str(answer.json()["code"])
        except (ValueError, KeyError, TypeError):
            code = ""
        promised = answer.status_code in (429, 503) and "retry-after" in answer.headers and code
        if not promised:
            self._answers.violations.append(
                f"{answer.request.method} {answer.request.url.path} was answered "
                f"with {answer.status_code} {code!r}: {answer.text[:200]}"
            )
        return code


class Load:
    """Agents and operator in threads; they start with `start` and go on until all runs are sent.

    Parameters
    ----------
    pace_seconds
        Longest pause of an agent between two requests, until `hurry` is called; 0 to send everything at once. With
        pauses, nothing is sent before `allow`.
    """

    def __init__(self, url: str, key: str, todo: list[Run], pace_seconds: float) -> None:
        self.answers = Answers()
        self.problems: list[str] = []
        self._url, self._key, self._pace_seconds = url, key, pace_seconds
        self._todo: SimpleQueue[Run] = SimpleQueue()
        for run in todo:
            self._todo.put(run)
        self._steps = sum(len(run.steps) for run in todo)
        self._sent, self._share, self._lock = 0, 0.0 if pace_seconds else 1.0, threading.Lock()
        self._hurry, self._stopped, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._agents = [
            threading.Thread(target=self._guarded, args=(self._agent,), daemon=True) for _ in range(AGENTS)
        ]
        self._operator = threading.Thread(target=self._guarded, args=(self._operate,), daemon=True)

    def start(self) -> None:
        """Begin."""
        for thread in (*self._agents, self._operator):
            thread.start()

    def allow(self, share: float) -> None:
        """Send this share of all requests, so that some are left for the faults to come."""
        self._share = share

    def hurry(self) -> None:
        """Send what is left without pauses."""
        self._share = 1.0
        self._hurry.set()

    def finish(self, seconds: float) -> None:
        """Wait until everything is sent, then end the operator; what takes longer is a problem."""
        deadline = time.monotonic() + seconds
        for thread in self._agents:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._agents):
            self.problems.append(f"the agents were not done within {seconds:g} s")
        self.stop()

    def stop(self) -> None:
        """End all threads."""
        self._ended.set()
        if any(thread.is_alive() for thread in self._agents):
            self._stopped.set()
        for thread in (*self._agents, self._operator):
            if thread.ident is not None:
                thread.join(REQUEST_SECONDS + 2)

    def _guarded(self, work: Any) -> None:
        sender = Sender(self._url, self._key, self.answers, self._stopped)
        try:
            work(sender)
        except Exception as error:  # noqa: BLE001 - shown in the report
            self.problems.append(f"{type(error).__name__}: {error}")
        finally:
            sender.close()

    def _agent(self, sender: Sender) -> None:
        while not self._stopped.is_set():
            try:
                run = self._todo.get_nowait()
            except Empty:
                return
            for step in run.steps:
                self._wait_for_turn()
                for _ in range(2 if step.again else 1):
                    self._send(sender, run, step)
                if not self._hurry.is_set():
                    self._hurry.wait(random.uniform(0.0, self._pace_seconds))

    def _wait_for_turn(self) -> None:
        while self._sent >= self._share * self._steps and not self._stopped.wait(TURN_PAUSE_SECONDS):
            pass
        with self._lock:
            self._sent += 1

    def _send(self, sender: Sender, run: Run, step: Step) -> None:
        answer = sender.send("POST", step.path, step.body)
        sent = [*step.body.get("events", ()), *step.body.get("calls", ()), *step.body.get("results", ())]
        self.answers.acknowledged |= {event["id"] for event in sent}
        self._check_outcomes(step, answer, len(sent))
        for verdict in answer.get("verdicts", ()):
            self._note_verdict(sender, run.session, verdict)

    def _check_outcomes(self, step: Step, answer: dict[str, Any], sent: int) -> None:
        if step.path == "/events" and (
            answer["rejected"] or answer["accepted"] + answer["duplicate"] != sent
        ):
            self.answers.violations.append(f"a batch of {sent} events was answered with {answer}")

    def _note_verdict(self, sender: Sender, session: str, verdict: dict[str, Any]) -> None:
        finding = verdict.get("finding") or {}
        told = tuple(verdict.get(name) for name in ("decision", "rung", "detection_number"))
        told += tuple(finding.get(name) for name in ("kind", "count", "limit"))
        if verdict.get("approval"):
            # Once it is decided, a call that is sent again is told the decision.
            told = ("hold", *told[1:], self._decision(sender, verdict["approval"]["wait_url"]))
        key = (session, verdict["call_id"])
        before = self.answers.verdicts.setdefault(key, told)
        if before != told:
            self.answers.violations.append(f"the call {key} was told {before} first and {told} later")

    def _decision(self, sender: Sender, wait_url: str) -> str:
        """Wait for the decision of an approval, at `live`."""
        address = wait_url.partition("?")[0]
        deadline = time.monotonic() + LONGEST_UNANSWERED_SECONDS
        while time.monotonic() < deadline:
            answer = sender.send(
                "GET", f"{address}?wait={WAIT_SECONDS}", seconds=WAIT_SECONDS + REQUEST_SECONDS
            )
            if answer["decision"] in _FINAL:
                return f"{answer['choice']}: {answer['decision']}"
        raise Unanswered(f"{address} was not decided for {LONGEST_UNANSWERED_SECONDS:g} s")

    def _operate(self, sender: Sender) -> None:
        while not self._ended.wait(OPERATOR_PAUSE_SECONDS):
            for approval in sender.send("GET", "/approvals?state=open")["items"]:
                sender.send("POST", f"/approvals/{approval['id']}/decision", choice_of(approval))


def _retry_after(answer: httpx.Response) -> float:
    try:
        return float(answer.headers.get("retry-after", 1))
    except ValueError:
        return 1.0
