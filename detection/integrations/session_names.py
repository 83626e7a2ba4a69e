"""The rule by which agents' sessions are named, whichever way their events arrive.

The name is the id that the program itself gives to the conversation, unchanged, as it also sends it to its model
server. The conversation of a sub-agent is `<session>/<agent>`. A program without an id of its own gets one from its
place: the same program in the same folder is the same session.
"""

from __future__ import annotations

import hashlib
from typing import Final

MAX_CHARACTERS: Final = 256
_DIGEST_CHARACTERS: Final = 32


def session_name(conversation: str, sub_agent: str = "", *, program: str = "", place: str = "") -> str:
    """Return the name of a session.

    Parameters
    ----------
    conversation
        The program's own id of the conversation; may be empty.
    sub_agent
        Id of the sub-agent within it; empty for the conversation itself.
    program, place
        Name of the program and the folder it works in, for a conversation without an id.

    Returns
    -------
    str
        1 to 256 printable characters; see `bounded`.
    """
    name = bounded(conversation) or f"{program or 'agent'}-{_digest(place)[:12]}"
    return bounded(f"{name}/{sub_agent}") if sub_agent else name


def bounded(name: str, characters: int = MAX_CHARACTERS) -> str:
    """Return a name that the API accepts: with a digest for its end if it is too long or not printable."""
    if len(name) <= characters and name.isprintable():
        return name
    start = "".join(char for char in name[:characters] if char.isprintable())
    return f"{start[: characters - _DIGEST_CHARACTERS - 1]}~{_digest(name)}"


def _digest(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_CHARACTERS // 2).hexdigest()
