"""The clients behind one interface, for the cases that all of them share."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loopguard_client import Call, Guard, Verdict

from .programs import ended_after

JAVASCRIPT = Path(__file__).resolve().parents[2] / "javascript"
PROGRAM_SECONDS = 120


class PythonClient:
    """A guard and its session in this process."""

    def __enter__(self) -> PythonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.guard.close(0)

    def do(self, op: str, **values: Any) -> Any:
        """Do one operation and return what it answers."""
        return getattr(self, f"_{op}")(**values)

    def _guard(self, session: str, about: dict[str, Any], **options: Any) -> None:
        self.guard = Guard(**options)
        self.session = self.guard.session(session, **about)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.guard, name, value)

    def _check(self, calls: list[dict[str, Any]], round: str) -> list[dict[str, Any]]:
        return [
            _answer(one) for one in self.session.check_calls([Call(**call) for call in calls], round=round)
        ]

    def _together(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        async def checked() -> list[Verdict]:
            return await asyncio.gather(*(self.session.acheck(**call) for call in calls))

        return [_answer(one) for one in asyncio.run(checked())]

    def _result(self, call_id: str, content: Any, *, is_error: bool = False) -> None:
        self.session.result(call_id, content, is_error=is_error)

    def _heartbeat(self, call_id: str) -> None:
        self.session.heartbeat(call_id)

    def _user_message(self, text: str) -> None:
        self.session.user_message(text)

    def _usage(self, **usage: Any) -> None:
        self.session.usage(**usage)

    def _end(self, outcome: Any) -> None:
        self.session.end(outcome)

    def _flush(self, seconds: float) -> bool:
        return self.guard.flush(seconds)

    def _close(self, seconds: float) -> bool:
        return self.guard.close(seconds)

    def _status(self) -> dict[str, Any]:
        status = self.guard.status
        return {name: getattr(status, name) for name in status.__slots__}


class JavaScriptClient:
    """The JavaScript client in a program that reads operations and writes answers, one on each line."""

    def __enter__(self) -> JavaScriptClient:
        node = shutil.which("node")
        if node is None or not (JAVASCRIPT / "dist").is_dir():
            pytest.skip(
                "Not built: run `python3 manage.py test clients javascript --install`; it needs Node.js."
            )
        self._running = ended_after(PROGRAM_SECONDS, [node, JAVASCRIPT / "tests" / "driver.mjs"])
        self._program = self._running.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)

    def do(self, op: str, **values: Any) -> Any:
        """Do one operation and return what it answers."""
        program: subprocess.Popen[bytes] = self._program
        assert program.stdin
        assert program.stdout
        program.stdin.write(json.dumps({"op": op, **values}).encode() + b"\n")
        program.stdin.flush()
        answer = json.loads(program.stdout.readline())
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(answer["error"])
        return answer


def _answer(verdict: Verdict) -> dict[str, Any]:
    fields = {name: getattr(verdict, name) for name in verdict.__slots__}
    return {**fields, "may_run": verdict.may_run, "is_answer": verdict.is_answer}


CLIENTS: dict[str, type[PythonClient] | type[JavaScriptClient]] = {
    "python": PythonClient,
    "javascript": JavaScriptClient,
}
