"""The text that `up` prints when LoopGuard answers: addresses, login, and a shell line whose last call is stopped."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loopguard_site.env import TEST_CLOCK_VARIABLE
from loopguard_site.layout import program

_CALLS_WITHOUT_STOP = 4
_WORDS = {"block": "blocked", "hold": "held for an answer", "stop": "blocked and ends the session"}


@dataclass(frozen=True, slots=True)
class FirstStop:
    """The first of several identical calls that the settings in force do not let run.

    Attributes
    ----------
    number
        Its number, from 1; 0 if none of the first ones is stopped.
    decision
        ``block``, ``hold`` or ``stop``; empty if none is stopped.
    """

    number: int = 0
    decision: str = ""


def welcome(
    environment: Mapping[str, str], data: Path, shown: Mapping[str, str], first_stop: FirstStop
) -> str:
    """Return the text.

    Parameters
    ----------
    environment : mapping
        The environment of the processes; the address and the test clock are used.
    data : Path
        The data folder.
    shown : mapping
        `username`, `password` and `api_key` when they are new; `unclaimed`, the name of the operator, as long as nobody
        has signed in with older ones.
    first_stop : FirstStop
        What the shell line will show.
    """
    url = environment["LOOPGUARD_URL"]
    lines = ["LoopGuard is running.", "", f"  Console   {url}/"]
    lines += credentials(shown)
    if clock := environment.get(TEST_CLOCK_VARIABLE):
        lines.append(f"  Clock     TEST: the time is what {clock} contains.")
    lines += [
        f"  Data      {data}",
        "",
        _promise(first_stop),
        "",
    ]
    calls = first_stop.number or _CALLS_WITHOUT_STOP
    lines.append(curl_line(url, shown.get("api_key", "$LOOPGUARD_KEY"), calls))
    lines += ["", "Press Ctrl-C to stop LoopGuard."]
    return "\n".join(lines)


def _promise(first_stop: FirstStop) -> str:
    """Return what the shell line does under the settings in force."""
    if not first_stop.number:
        return "Try it: this sends the same tool call four times. Under the present settings, none of them is blocked."
    number, what = first_stop.number, _WORDS[first_stop.decision]
    return f"Try it: this sends the same tool call {number} times. The {_ordinal(number)} call is {what}."


def _ordinal(number: int) -> str:
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def credentials(shown: Mapping[str, str]) -> list[str]:
    """Return the lines with a new login and key, or how to create them if nobody has used the present ones."""
    if "unclaimed" in shown:
        return [
            f"  Sign in   as {shown['unclaimed']}. Nobody has signed in yet: if the password was not seen,",
            f"            `{program()} up --new-secrets` creates a new one, and an API key.",
        ]
    if "password" not in shown:
        return []
    return [
        f"  Sign in   {shown['username']}  {shown['password']}",
        f"  API key   {shown['api_key']}",
        "            Password and key are shown only once. `up --new-secrets` creates new ones.",
    ]


def curl_line(url: str, key: str, calls: int) -> str:
    """Return a shell line that sends the same call several times in a new session."""
    body = (
        '{"session": "\'$s\'", "calls": [{"call_id": "call_\'$i\'", "tool": "search_web", '
        '"arguments": {"q": "reset password"}}]}'
    )
    numbers = " ".join(map(str, range(1, calls + 1)))
    return (
        f"  s=try-$(date +%s); for i in {numbers}; do curl -sS {url}/api/v1/guard "
        f'-H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d \'{body}\'; echo; done'
    )
