"""Settings of the interpreter for a process whose event loop must not wait."""

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""How long a thread may keep the interpreter while others wait for it."""
YOUNG_OBJECTS: Final = 20_000
"""Number of new objects after which the garbage collector runs."""


def prepare() -> None:
    """Apply them; to be called once everything is imported."""
    # The loop takes the interpreter's lock some ten times for a request; behind a thread that parses, each would take 5
    # ms.
    sys.setswitchinterval(SWITCH_SECONDS)
    # A full collection holds that lock as well: 80 ms for the modules, of which none ever becomes garbage.
    gc.collect()
    gc.freeze()
    # Nearly everything that a request leaves behind is freed at once; what is not may wait until it amounts to a
    # few megabytes.
    gc.set_threshold(YOUNG_OBJECTS)
