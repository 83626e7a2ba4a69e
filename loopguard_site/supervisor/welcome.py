"""What is printed when LoopGuard is up: where it is, how to get in, and a line that stops a loop."""

from collections.abc import Mapping
from pathlib import Path


def welcome(environment: Mapping[str, str], data: Path, shown: Mapping[str, str]) -> str:
    """Return the text.

    Parameters
    ----------
    environment : mapping
        The children's environment; only addresses are taken from it.
    data : Path
        The data folder.
    shown : mapping
        `username`, `password` and `api_key` at a first start, else nothing of these.
    """
    url = environment["LOOPGUARD_URL"]
    lines = ["LoopGuard is running.", "", f"  Console   {url}/"]
    lines += credentials(shown)
    lines += [
        f"  Data      {data}",
        "",
        "Stop a loop: the same tool call four times; the fourth is answered 'stop'.",
        "",
    ]
    lines.append(curl_line(url, shown.get("api_key", "$LOOPGUARD_KEY")))
    lines += ["", "Ctrl-C ends it."]
    return "\n".join(lines)


def credentials(shown: Mapping[str, str]) -> list[str]:
    """Return the lines about a new login and key; none when there are none."""
    if "password" not in shown:
        return []
    return [
        f"  Sign in   {shown['username']}  {shown['password']}",
        f"  API key   {shown['api_key']}",
        "            Both are shown this once only; --new-secrets makes new ones.",
    ]


def curl_line(url: str, key: str) -> str:
    """Return a shell line that sends the same call four times, as a session of its own."""
    body = (
        '{"session": "\'$s\'", "calls": [{"call_id": "call_\'$i\'", "tool": "search_web", '
        '"arguments": {"q": "reset password"}}]}'
    )
    return (
        f"  s=try-$(date +%s); for i in 1 2 3 4; do curl -sS {url}/api/v1/guard "
        f'-H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d \'{body}\'; echo; done'
    )
