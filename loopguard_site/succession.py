"""How processes of `web` follow one another under a supervisor, without a gap.

When Granian's main process dies, the processes that serve continue. The supervisor starts another main process, whose
processes share the port, and ends the former ones as soon as the new ones serve.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Final

from loopguard_site.supervisor import children

SERVING_VARIABLE: Final = "_LOOPGUARD_SERVING_FILE"
"""The file that a process touches as soon as it serves."""
SUPERVISOR_VARIABLE: Final = "_LOOPGUARD_SUPERVISOR"
"""The process id of the supervisor."""
_LOOK_SECONDS: Final = 1.0


def note_serving() -> None:
    """Say that this process serves; nothing happens without a supervisor."""
    if file := os.environ.get(SERVING_VARIABLE):
        with contextlib.suppress(OSError):
            os.utime(file)


def end_with_supervisor() -> None:
    """Have this process end, in order, when it has outlived both its main process and the supervisor.

    While its main process lives, that one ends it. Without a supervisor, nothing happens.
    """
    supervisor = os.environ.get(SUPERVISOR_VARIABLE)
    if supervisor:
        threading.Thread(
            target=_watch, args=(int(supervisor), os.getppid()), name="succession", daemon=True
        ).start()


def _watch(supervisor: int, parent: int) -> None:
    while os.getppid() == parent or children.is_alive(supervisor):
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
