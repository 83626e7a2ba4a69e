"""An agent that is contained before the first fault, and calls throughout: not one of its calls may run."""

from __future__ import annotations

import threading

from development.chaos.agents import Answers, Sender, Unanswered

PAUSE_SECONDS = 0.1


class ContainedAgent:
    """One agent of a project, its containment, and the thread in which it calls.

    Parameters
    ----------
    key
        Of the project, with all scopes.
    name
        Of the agent and its session, which no other agent has.

    Attributes
    ----------
    calls
        Calls that were answered while it was contained.
    problems
        What the documentation rules out, as sentences.
    """

    def __init__(self, url: str, key: str, name: str) -> None:
        self.calls = 0
        self.problems: list[str] = []
        self._name, self._asked = name, 0
        self._stopped, self._ended, self._answers = threading.Event(), threading.Event(), Answers()
        self._sender = Sender(url, key, self._answers, self._stopped)
        self._containment = ""
        self._thread = threading.Thread(target=self._call, daemon=True)

    def start(self) -> None:
        """Let it make a call that runs, contain it, and let it call on."""
        if (decision := self._decision()) != "allow":
            self.problems.append(f"before the containment, a call was answered with {decision}")
        wanted = {"scope": "agent", "value": self._name, "reaction": "block", "reason": "chaos"}
        self._containment = self._sender.send("POST", "/containments", wanted)["id"]
        self._thread.start()

    def finish(self) -> None:
        """End the calls, and lift what must still be in force; the next call runs again."""
        self._ended.set()
        if self._thread.ident is None:
            return
        self._thread.join()
        try:
            listed = self._sender.send("GET", "/containments?in_force=true")["items"]
            if self._containment not in {one["id"] for one in listed}:
                self.problems.append("the containment is no longer in force")
            self._sender.send("DELETE", f"/containments/{self._containment}")
            if (decision := self._decision()) != "allow":
                self.problems.append(f"after the containment, a call was answered with {decision}")
        except Unanswered as error:
            self.problems.append(str(error))
        if not self.calls:
            self.problems.append("no call of the contained agent was answered")
        self.problems += self._answers.violations

    def stop(self) -> None:
        """End its thread and its connections."""
        self._ended.set()
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._sender.close()

    def _call(self) -> None:
        while not self._ended.is_set():
            try:
                decision = self._decision()
            except Unanswered as error:
                self.problems.append(str(error))
                return
            self.calls += 1
            if decision != "block":
                self.problems.append(f"a call of the contained agent was answered with {decision}")
            self._ended.wait(PAUSE_SECONDS)

    def _decision(self) -> str:
        self._asked += 1
        call = {"call_id": f"c{self._asked}", "tool": "read_file", "arguments": {"page": self._asked}}
        body = {"session": self._name, "agent": self._name, "calls": [call]}
        return str(self._sender.send("POST", "/guard", body)["verdicts"][0]["decision"])
