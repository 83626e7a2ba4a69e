"""Values that a process caches per project while the policy version stays the same."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from detection.models import Project

MAX_PROJECTS = 200

Value = TypeVar("Value")


class ProjectCache(Generic[Value]):
    """A value of each recently used project at its policy version; safe to use from several threads.

    The version is read with every session lock, so a saved change applies to the next call on every process.

    Parameters
    ----------
    load : callable
        Reads the value of a project.
    size : int
        Projects that are kept; the one loaded first is dropped.
    valid_until : callable
        Returns the Unix time at which a value has to be loaded again.
    """

    def __init__(
        self,
        load: Callable[[Project], Value],
        size: int = MAX_PROJECTS,
        valid_until: Callable[[Value], float] = lambda _: inf,
    ) -> None:
        self._load = load
        self._size = size
        self._valid_until = valid_until
        self._known: OrderedDict[int, tuple[int, float, Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, project: Project) -> Value:
        """Return the value of a project. Costs a dictionary look-up, and its queries when the version is new."""
        known = self._known.get(project.id)
        if known is not None and known[0] == project.policy_version and time.time() < known[1]:
            return known[2]
        value = self._load(project)
        with self._lock:
            self._known[project.pk] = (project.policy_version, self._valid_until(value), value)
            self._known.move_to_end(project.pk)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        return value
