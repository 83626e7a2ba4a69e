"""The requests of the load."""

from __future__ import annotations

import json

from benchmarks.load import Request

CALLS_PER_SESSION = 60
PADDING = "a sentence of about the length that arguments have in real runs, once and once more. " * 4


def guard(client: int, number: int) -> Request:
    """Return a client's n-th guard request: the result of its previous call, and a call of about half a kilobyte."""
    session, at = divmod(number, CALLS_PER_SESSION)
    results = (
        []
        if at == 0
        else [{"call_id": f"c{number - 1}", "content": f"{number} lines were found in the file"}]
    )
    call = {
        "call_id": f"c{number}",
        "tool": "search_files",
        "arguments": {"q": f"words {number}", "note": PADDING},
    }
    body = {"session": f"guard-{client}-{session}", "round": f"r{number}", "agent": "load", "backend": "openai",
            "model": "m-7", "results": results, "calls": [call]}  # fmt: skip
    return "/api/v1/guard", json.dumps(body).encode()


def bare(client: int, number: int) -> Request:
    """Return the same body, for the bare endpoint."""
    return "/api/bare", guard(client, number)[1]


def floor(client: int, number: int) -> Request:
    """Return the same body, for the view that writes what a guard call writes."""
    return f"/api/floor?{client}", guard(client, number)[1]


def events(client: int, number: int, *, per_request: int = 100) -> Request:
    """Return a batch: five sessions of ten calls with their results."""
    batch = []
    for at in range(per_request // 2):
        place = number * per_request // 2 + at
        common = {"session": f"events-{client}-{at % 5}-{number // 20}", "call_id": f"c{place}"}
        arguments = {"q": f"words {place}", "note": PADDING}
        batch.append(
            {**common, "type": "call", "tool": "search_files", "arguments": arguments, "agent": "load"}
        )
        batch.append({**common, "type": "result", "content": f"{place} lines were found in the file"})
    return "/api/v1/events", json.dumps({"events": batch}).encode()


def bare_events(client: int, number: int) -> Request:
    """Return the same batch, for the bare endpoint."""
    return "/api/bare", events(client, number)[1]


def loop(session: str) -> Request:
    """Return a session that has made the same call four times."""
    batch = []
    for at in range(4):
        common = {"session": session, "call_id": f"c{at}"}
        batch.append({**common, "type": "call", "tool": "search_web", "arguments": {"q": "again"}})
        batch.append({**common, "type": "result", "content": "0 hits"})
    return "/api/v1/events", json.dumps({"events": batch}).encode()
