"""The text that `up` prints when LoopGuard answers: addresses, login, and a shell line whose last call is blocked."""

from collections.abc import Mapping
from pathlib import Path

from loopguard_site.env import TEST_CLOCK_VARIABLE


def welcome(environment: Mapping[str, str], data: Path, shown: Mapping[str, str]) -> str:
    """Return the text.

    Parameters
    ----------
    environment : mapping
        The environment of the processes; the address and the test clock are used.
    data : Path
        The data folder.
    shown : mapping
        `username`, `password` and `api_key` when they are new, else empty.
    """
    url = environment["LOOPGUARD_URL"]
    lines = ["LoopGuard is running.", "", f"  Console   {url}/"]
    lines += credentials(shown)
    if clock := environment.get(TEST_CLOCK_VARIABLE):
        lines.append(f"  Clock     TEST: the time is what {clock} contains.")
    lines += [
        f"  Data      {data}",
        "",
        "Try it: this sends the same tool call four times. The 4th call is blocked.",
        "",
    ]
    lines.append(curl_line(url, shown.get("api_key", "$LOOPGUARD_KEY")))
    lines += ["", "Press Ctrl-C to stop LoopGuard."]
    return "\n".join(lines)


def credentials(shown: Mapping[str, str]) -> list[str]:
    """Return the lines with a new login and key; empty when there are none."""
    if "password" not in shown:
        return []
    return [
        f"  Sign in   {shown['username']}  {shown['password']}",
        f"  API key   {shown['api_key']}",
        "            Password and key are shown only once. `up --new-secrets` creates new ones.",
    ]


def curl_line(url: str, key: str) -> str:
    """Return a shell line that sends the same call four times in a new session."""
    body = (
        '{"session": "\'$s\'", "calls": [{"call_id": "call_\'$i\'", "tool": "search_web", '
        '"arguments": {"q": "reset password"}}]}'
    )
    return (
        f"  s=try-$(date +%s); for i in 1 2 3 4; do curl -sS {url}/api/v1/guard "
        f'-H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d \'{body}\'; echo; done'
    )
