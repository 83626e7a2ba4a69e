"""Run an agent of an adapter whose process is killed while its second search runs.

Usage: ``python -m client_tests.frameworks.killed_agent TEST_MODULE:CLASS URL KEY SESSION``
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys

from loopguard_client import Guard

from .failures import IDENTICAL
from .search_tool import Tool


class KillingTool(Tool):
    def search(self, q: str) -> str:
        """Search the web."""
        if self.runs == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().search(q)


if __name__ == "__main__":
    name, url, key, session = sys.argv[1:]
    module, _, class_name = name.partition(":")
    adapter = getattr(importlib.import_module(f"client_tests.frameworks.{module}"), class_name)()
    guard = Guard(url, key, budget_seconds=20)
    asyncio.run(adapter.play(guard, KillingTool(), session, IDENTICAL))
