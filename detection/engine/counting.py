"""How many calls of a kind count at a time, for programs that ask."""

from __future__ import annotations

from typing import cast

from detection.engine.detectors import BY_KIND
from detection.engine.detectors.repeat import Repeat
from detection.engine.memory import State, bounded_name
from detection.engine.policy import Policy

_REPEAT = cast("Repeat", BY_KIND[Repeat.kind])


def count_identical(
    state: State, key: str, policy: Policy, at: float, *, tool: str = "", run: str | None = None
) -> int:
    """Return how many calls of a key count for `max_repeats` at a time, without a further one; nothing is changed.

    Parameters
    ----------
    tool : str
        The tool of the calls; without it, that of the latest remembered call of this key.
    run : str, optional
        The run, where counting is per run.
    """
    name = bounded_name(run or "") if policy.values["counting_scope"] == "run" else ""
    counted = state.runs.get(name)
    if counted is None:
        return 0
    tool = tool or next((one.tool for one in reversed(counted.records) if one.key == key), "")
    policy = policy.for_tool(tool)
    if not policy.values[_REPEAT.switch]:
        return 0
    return _REPEAT.count(counted, key, bounded_name(tool), policy, at)
