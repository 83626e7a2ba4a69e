"""Whether this process is about to end: its readiness says so first, and it still answers everything."""

from __future__ import annotations

import threading
from typing import Final

is_ending: Final = threading.Event()
"""Set for good, by the server of the process, before it stops to accept connections."""
NOT_READY: Final = b'{"status":"ending"}'
"""The document of the readiness probe meanwhile, with the status 503."""
is_closing: Final = threading.Event()
"""Set for good once it accepts none: requests that only wait for something to happen end now."""
