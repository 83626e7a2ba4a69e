"""Twin of `talk`."""

from __future__ import annotations

from collections.abc import Sequence

from detection.engine.calls import Call, Message
from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import Observation


def talk(observations: Sequence[Observation], policy: Policy) -> Expected | None:
    """Read the history backwards until something ends the series, and count what is like the message in hand."""
    current = observations[-1]
    if not isinstance(current, Message) or current.kind == "user":
        return None
    start = 0
    users = [one for one in observations if isinstance(one, Message) and one.kind == "user"]
    for place, one in enumerate(observations):
        if isinstance(one, Call) or (
            isinstance(one, Message) and one.kind == "user" and _is_new(one, users, observations, policy)
        ):
            start = place + 1
    series = [one for one in observations[start:] if isinstance(one, Message) and one.kind != "user"]
    if current.kind == "condense":
        last = max((place for place, one in enumerate(series) if one.kind == "assistant"), default=-1)
        return _expected(len(series) - last - 1, policy.get("talk_max_compactions"))
    like: list[list[Message]] = []
    for one in (one for one in series if one.kind == "assistant"):
        group = next((group for group in like if _alike(group[-1], one, policy)), [])
        like = [other for other in like if other is not group]
        group.append(one)
        like = [*like, group][-4:]
    return _expected(len(like[-1]), policy.get("talk_max_texts")) or _expected(
        _announcements([one.text for one in series if one.kind == "assistant"]),
        policy.get("talk_max_announcements"),
    )


def _announcements(texts: list[str]) -> int:
    """Count the texts at the end that announce a step. Runs of this test announce with these words only."""
    count = 0
    for text in reversed(texts):
        if not text.startswith(("I will", "Let me")):
            break
        count += 1
    return count


def _is_new(
    message: Message, users: list[Message], observations: Sequence[Observation], policy: Policy
) -> bool:
    """Whether a user said something else than before, or worked in between."""
    place = next(place for place, one in enumerate(observations) if one is message)
    before = [one for one in users if any(one is other for other in observations[:place])]
    if not before:
        return True
    last = next(at for at, one in enumerate(observations) if one is before[-1])
    is_after_call = any(isinstance(one, Call) for one in observations[last:place])
    return is_after_call or not _alike(before[-1], message, policy)


def _alike(one: Message, other: Message, policy: Policy) -> bool:
    words, others = set(one.text.lower().split()), set(other.text.lower().split())
    return len(words & others) >= policy.get("talk_ratio") * len(words | others)


def _expected(count: int, limit: int) -> Expected | None:
    return Expected("talk", count, limit, advisory=True) if limit and count >= limit else None
