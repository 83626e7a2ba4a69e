"""LoopGuard's settings with one more path for the bare endpoint, and static files apart from a running installation's."""

import os
from pathlib import Path

from loopguard_site.settings import *  # noqa: F403

ROOT_URLCONF = "benchmarks.bare"
STATIC_ROOT = Path(os.environ["BENCHMARKS_STATIC"])
