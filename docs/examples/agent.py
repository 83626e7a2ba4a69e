# ruff: noqa: INP001
"""An agent loop with the guard. The model is a script: it searches, gets stuck, and changes course after a message.

Run it from the project's folder: `.venv/bin/python -m docs.examples.agent`.
"""

from __future__ import annotations

from collections.abc import Generator

from detection.engine import Guard

NOTES = {"reset password": "0 hits", "password policy": "Passwords are changed under Account, Security."}


def search(query: str) -> str:
    """The agent's only tool."""
    return NOTES.get(query, "0 hits")


def model() -> Generator[str, str]:
    """Yield queries: the same one until a message suggests another approach."""
    message = ""
    while "different approach" not in message and "Reflect" not in message:
        message = yield "reset password"
    yield "password policy"


def main() -> str:
    """Play the loop; return the last answer."""
    guard = Guard("standard")
    queries = model()
    query, answer = next(queries), ""
    for number in range(1, 10):
        call_id = f"call-{number}"
        verdict = guard.call("search", {"q": query}, call_id=call_id, at=float(number))
        if verdict.decision == "stop":
            print(f"stopped: {verdict.message}")
            break
        if verdict.decision in ("block", "hold"):
            answer = verdict.message
        else:
            answer = search(query)
            advice = guard.result(call_id, answer, is_error=False, at=number + 0.5)
            # A warning runs the call and goes in front of its result.
            answer = "\n".join(text for text in (verdict.message or advice.message, answer) if text)
        print(f"{call_id} {query!r}: {verdict.decision}\n    {answer}")
        try:
            query = queries.send(answer)
        except StopIteration:
            break
    return answer


if __name__ == "__main__":
    main()
