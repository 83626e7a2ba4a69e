"""What the agents on real SDKs have in common: the tools, the loop, and a process that runs one job per line of its input.

Imports nothing of LoopGuard; run by the Python that has the packages.
"""

import contextlib
import json
import sys
import traceback
from typing import Any
from zlib import crc32

PROMPT = {"role": "user", "content": "reset my password"}
TOOL_NAMES = ("search", "read", "other")
PARAMETERS = {
    "type": "object",
    "properties": {"q": {"type": "string"}},
    "required": ["q"],
    "additionalProperties": False,
}


def result(tool, q):
    """The result of a tool: nothing new for the repeated search, else something for each argument."""
    return "0 hits" if q == "reset password" else f"{tool} found {crc32(q.encode()):,} lines"


seen: list[Any] = []
"""The text that the agent has seen of streams, in this job."""
current: dict[Any, Any] = {}
"""The job."""


class Cancelled(Exception):
    """The agent has cancelled a stream."""


def see(text):
    """Note a part of a text; raise `Cancelled` where the job wants that."""
    if text:
        seen.append(text)
        if current.get("cancels"):
            raise Cancelled


def options():
    """What a job sets of a client."""
    return {name: current[name] for name in ("timeout", "max_retries") if name in current}


def several():
    """How many choices a job wants, if it says so."""
    return {"n": current["n"]} if "n" in current else {}


def run_turns(turn, messages):
    """Ask until an answer has no calls; `turn` appends to the messages and returns the calls that ran and the text."""
    runs = 0
    for _ in range(20):
        calls, text = turn(messages)
        runs += calls
        if not calls or current.get("is_faulty"):
            return {"runs": runs, "text": text}
    return {"runs": runs, "text": "", "error": "the run did not end"}


def serve(forms):
    """Run jobs, one JSON document per line, and print what happened in each in the same way."""
    for line in sys.stdin:
        job = json.loads(line)
        seen.clear()
        current.clear()
        current.update(job)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some packages print there
                done = forms[job["form"]](job)
        except Exception as error:  # noqa: BLE001 (the test reports it)
            done = {"runs": -1, "text": "", "error": traceback.format_exc(), "type": type(error).__name__}
            done["status"] = getattr(error, "status_code", None)
            del error
        print(json.dumps(done | {"seen": "".join(seen)}), flush=True)


def headers(job):
    """The headers that LoopGuard adds to those of the SDK."""
    session = {"LoopGuard-Session": job["session"]} if job["session"] else {}
    return {"LoopGuard-Key": job["key"], **session}
