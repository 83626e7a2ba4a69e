"""An endpoint of a judge, scripted, on a real socket."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from io import BufferedIOBase
from typing import Any

from development.scripted_server import ScriptedServer

Json = dict[str, Any]


def ruling(request: Json, decision: str = "accepted", extra_rounds: Any = 10, **more: Any) -> str:
    """The answer of an honest judge: the form that was asked for, with the nonce."""
    nonce = re.findall(r'"nonce" is ([0-9a-f]+)', request["messages"][0]["content"])[0]
    fields = {
        "decision": decision,
        "reason": "It learns.",
        "guidance": "Go on.",
        "extra_rounds": extra_rounds,
    }
    return json.dumps(fields | {"nonce": nonce} | more)


def completion(text: str | None, *, finish: str = "stop", usage: bool = True, **message: Any) -> Json:
    """A chat completion around a text."""
    body: Json = {
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text, **message},
            }
        ]
    }
    if usage:
        body["usage"] = {"prompt_tokens": 900, "completion_tokens": 60}
    return body


class JudgeServer(ScriptedServer):
    """Answers with what `script(request)` returns: a document, bytes, or a (status, bytes, headers) triple."""

    def __init__(self, script: Callable[[Any], Any]) -> None:
        super().__init__()
        self.script, self.drips_seconds = script, 0.0
        self.requests: list[Json] = []
        self.headers: list[Mapping[str, str]] = []

    def answer(self, asked: Json, headers: Mapping[str, str]) -> tuple[int, Any, Mapping[str, str]]:
        self.requests.append(asked)
        self.headers.append(headers)
        told = self.script(asked)
        return told if isinstance(told, tuple) else (200, told, {})

    def write(self, file: BufferedIOBase, body: bytes) -> None:
        if not self.drips_seconds:
            super().write(file, body)
            return
        for byte in body:
            file.write(bytes((byte,)))
            file.flush()
            time.sleep(self.drips_seconds)
