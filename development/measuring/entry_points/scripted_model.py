"""A scripted model server, behind the gateway of the installation that is measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from development.measuring.entry_points.installation import Json
from development.scripted_server import ScriptedServer

MODEL = "scenario"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a model server answers."""

    calls: list[Json]
    text: str | None
    insists: bool = False


_DONE = _Answer([], "Done.")


class ScriptedModel(ScriptedServer):
    """A model server on this machine: gives each scenario the answer that was put there for it, once."""

    def __init__(self, port: int) -> None:
        self._answers: dict[str, _Answer] = {}
        self._requests: dict[str, list[Json]] = {}
        self._numbers = itertools.count(1)
        super().__init__(port)

    def put(
        self, mark: str, tool_calls: list[Json], *, text: str | None = None, insists: bool = False
    ) -> None:
        """Let the next answer to a conversation be these calls or this text; those after it are another text.

        Parameters
        ----------
        mark
            The first message of the conversation, or its model if that is not `MODEL`.
        insists
            Give the same answer whenever it is asked again, with new ids, unless no tool may be called.
        """
        self._answers[mark] = _Answer(tool_calls, text, insists)
        self._requests[mark] = []

    def requests_of(self, mark: str) -> list[Json]:
        """Return the requests about a conversation since its last answer was put there."""
        return self._requests[mark]

    def answer(self, asked: Json, _headers: Mapping[str, str]) -> tuple[int, Json, Mapping[str, str]]:
        """Give the conversation what was put there for it."""
        mark = str(asked["messages"][0]["content"] if asked["model"] == MODEL else asked["model"])
        answer = self._answers.get(mark, _DONE)
        self._requests.setdefault(mark, []).append(asked)
        number = next(self._numbers)  # an answer has an id of its own: it is the round of its calls
        calls = answer.calls
        if not answer.insists:
            self._answers[mark] = _DONE
        elif asked.get("tool_choice") == "none":
            calls = []
        elif len(self._requests[mark]) > 1:
            calls = [{**call, "id": f"{call['id']}_{number}"} for call in calls]
        text = None if calls else answer.text
        message: Json = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = calls
        finish = "tool_calls" if calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        head = {"id": f"chatcmpl-{number}", "object": "chat.completion", "model": asked["model"]}
        return 200, {**head, "choices": [choice]}, {}
