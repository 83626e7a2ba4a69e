"""Whether a request names the host that it is for, for the servers of `web` and `live`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_HOST: Final = re.compile(
    r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{0,5}))?", re.ASCII
)
MAX_PORT: Final = 65535


def names_a_host(sent: Sequence[str]) -> bool:
    """Return whether the header `Host` was sent once, with a name or address and, if any, a port from 1.

    Parameters
    ----------
    sent
        Its values.
    """
    found = _HOST.fullmatch(sent[0]) if len(sent) == 1 else None
    return found is not None and (not found["port"] or 0 < int(found["port"]) <= MAX_PORT)
