"""Shares the tests among the processes of pytest-xdist, so that a run ends also when some of them die."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SILENT_SECONDS = 600
"""The process that shares the tests ends with an error when none of the others has said anything for so long: a test
has 200 seconds, and a new process takes one minute to find all tests."""


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out tests in groups.

    Parameters
    ----------
    group_of
        Returns the group of a test, from its id: one process runs the whole group.
    """

    def __init__(self, config: pytest.Config, log: Any, group_of: Callable[[str], str]) -> None:
        super().__init__(config, log)
        self._split_scope = group_of

    def remove_node(self, node: Any) -> str | None:
        """Hand what a process leaves to others, and return the test in which it died, which has failed.

        Upstream also hands out that test, which ends the next process, too, and groups that are done: a process that
        gets nothing to do reports nothing, and without a report nobody gets the next group.
        """
        left = {
            group: {test: False for test, is_done in tests.items() if not is_done}
            for group, tests in self.assigned_work.pop(node).items()
        }
        died_in = next((test for tests in left.values() for test in tests), None)
        for tests in left.values():
            tests.pop(died_in, None)
        self.workqueue.update({group: tests for group, tests in left.items() if tests})
        if died_in is not None:
            for other in self.assigned_work:
                self._reschedule(other)
        return died_in


class Patience:
    """A plugin of the process that shares the tests: ends it with the stacks of its threads when nothing comes."""

    def __init__(self, seconds: float = SILENT_SECONDS) -> None:
        self._seconds = seconds

    def pytest_runtest_logreport(self) -> None:
        """Wait for the next report."""
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=sys.__stderr__ or sys.stderr)

    pytest_testnodeready = pytest_runtest_logreport
