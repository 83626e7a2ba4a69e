"""The same call in a row although its result keeps changing. This is advised against and never blocked.

An honest poll moves in one direction: 10 %, 20 %, 30 %. Results in which a figure only rises, or only falls, are
therefore progress. Where nothing but rising figures moves for twice as long, and none of them comes closer to another
one as in `3 of 40`, they only count the looks or the time.
"""

from __future__ import annotations

import re
from itertools import islice

from detection.engine.bounded import hash_of
from detection.engine.detectors.repeat.state import Direction, Streak
from detection.engine.policy_settings import PolicySettings

_FIGURE = re.compile(r"\d(?<![\w.]\d)\d{0,6}(?!\w)")
# The first figures of a result: progress stands at its beginning; a judgement for the size of the state, not measured.
_MAX_FIGURES = 4
# Where they are looked for; a judgement: the time that a long result costs.
_MAX_FIGURES_CHARS = 400
# A longer result shows more than a state; a judgement for the time of a result.
_MAX_STATE_CHARS = 1000
# Twenty looks without a pause, by the default limit: per cents in fives have arrived. A judgement.
_NOTHING_ELSE = 2
# No measure: the direction of a figure that has risen and fallen, beside -1, 0 and 1.
_BOTH_WAYS = 2
# Effects of commands that only look, such as `tail`, as tools of the class `read` do.
_LOOKS = frozenset(("look", "poll", "search"))


def note_direction(streak: Streak, text: str) -> None:
    """Note where the figures of a result are going. Few and short figures are kept, never the text."""
    figures = [
        int(figure[0]) for figure in islice(_FIGURE.finditer(text, 0, _MAX_FIGURES_CHARS), _MAX_FIGURES)
    ]
    rest = hash_of(_FIGURE.sub("~", text)) if len(text) <= _MAX_STATE_CHARS else 0
    known = streak.direction
    if known is None:
        streak.direction = Direction(figures, None, rest)
        return
    known.alike = known.alike + 1 if rest and rest == known.rest else 0
    known.rest = rest
    if known.figures != figures:
        directions = [
            (now > before) - (now < before) for now, before in zip(figures, known.figures, strict=False)
        ]
        earlier = directions if known.directions is None else known.directions
        known.directions = [
            now if not before or now == before else before if not now else _BOTH_WAYS
            for now, before in zip(directions, earlier, strict=False)
        ]
    known.figures = figures


def is_found(streak: Streak, limit: float, effect: str, policy: PolicySettings) -> bool:
    """Return whether a streak has reached the limit of calls whose results change, unless each is meant to."""
    direction = streak.direction
    if direction is not None and direction.is_steady:
        is_long = direction.alike >= limit and streak.paced >= limit * _NOTHING_ELSE
        may_be_idle = (
            policy.traits.tool_class != "poll" and not policy.traits.steps and not policy.reads_plainly
        )
        return is_long and may_be_idle and direction.only_counts
    return bool(
        streak.changes
        and streak.paced >= limit
        and policy.traits.tool_class not in ("poll", "read")
        and (effect not in _LOOKS or policy.reads_plainly)
        and not ((policy.traits.steps or streak.moves_on) and not policy.reads_plainly)
    )
