"""The whole history of a run as a list: what counted, what was answered when, and what a change has overtaken."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from detection.engine.calls import Call, Message, Result
from detection.engine.policy import Policy
from tests.engine.twins.identity import tree

CLASS_OF = {
    "lookup": "other",
    "read_file": "read",
    "edit_file": "change",
    "job_status": "poll",
    "sleep": "wait",
    "bash": "fallible",
}
"""The tools that runs for twins are made of."""

READERS = ("lookup", "read_file")
ACKNOWLEDGEMENTS = ("ok", "Done.")
NOTHING = ("", "[]", "null")
VALUES = ("false",)
PICTURES = ("[image]",)
TROUBLE = ("too many requests", "timed out")

Observation = Call | Result | Message


@dataclass
class Past:
    """One call that counted."""

    place: int
    seq: int
    tool: str
    kind_of_tool: str
    arguments: Any
    key: Any
    at: float
    round: str | None = None
    weight: float = 1.0
    call_id: str = ""
    status: str = "pending"
    answer: str = ""
    text: str = ""
    evidence: bool = False
    new: bool | None = None
    result_place: int | None = None
    overtaken: int | None = None
    asked_before: int | None = None
    """Where the user spoke after it."""
    changed: bool = False
    """Whether it changed something."""
    value: bool = False
    """Whether its answer is a bare value, and new for this call."""
    looks: bool = False
    """Whether it only looks."""
    receipt: bool = False
    """Whether its answer says that a piece of work is done."""

    @property
    def trouble(self) -> bool:
        """Whether its answer reports trouble of the provider."""
        return self.kind_of_tool != "fallible" and any(words in self.text.lower() for words in TROUBLE)

    def live(self, place: int) -> bool:
        """Whether neither a change nor a message of the user had overtaken this call before that observation."""
        return self.follows_change(place) and (self.asked_before is None or self.asked_before >= place)

    def follows_change(self, place: int) -> bool:
        """Whether no change had overtaken this call, whatever the user said."""
        return self.overtaken is None or self.overtaken >= place


@dataclass
class History:
    """What there is to know after the last observation."""

    past: list[Past]
    now: int
    current: Past | None
    """The call in hand, or the call whose result is in hand; None when the observation counted nothing."""
    is_after_result: bool
    """Whether the observation in hand is a result."""
    messages: list[int]
    """Places where the user spoke."""

    def first_since_change(self, one: Past, memory: int) -> bool:
        """Whether a remembered change or message lies between this answer and the last one like it."""
        place = one.result_place or 0
        starts = [change for change in self.past if change.changed and (change.result_place or 0) <= place]
        events = [(change.result_place or 0, self.past.index(change)) for change in starts]
        events += [
            (spoken, sum(1 for call in self.past if call.place < spoken) - 1)
            for spoken in self.messages
            if spoken <= place
        ]
        if not events:
            return False
        last = max(events)[1]
        calls = [call for call in self.past if call.place < place][-memory:]
        like = [
            call
            for call in calls
            if call is not one
            and self.past.index(call) > last
            and call.result_place is not None
            and call.result_place < place
            and call.answer == one.answer
            and (one.evidence or call.key == one.key)
        ]
        return not like and any(self.past.index(call) <= last for call in calls)

    def answers(self) -> list[Past]:
        """Answered calls in the order in which their answers came."""
        return sorted(
            (one for one in self.past if one.result_place is not None), key=lambda one: one.result_place or 0
        )

    def new_results(self, place: int) -> int:
        """How many answers up to an observation brought something that is evidence and new."""
        return sum(
            1
            for one in self.answers()
            if one.result_place <= place and one.status == "ok" and one.evidence and one.new
        )


def history(observations: Sequence[Observation], policy: Policy) -> History:
    """Read a run from its beginning."""
    past: list[Past] = []
    ids: set[str] = set()
    rounds: set[tuple[str, Any]] = set()
    seen: set[Any] = set()
    current: Past | None = None
    is_after_result = False
    messages: list[int] = []
    aware = policy.get("result_aware")
    for place, one in enumerate(observations):
        current, is_after_result = None, isinstance(one, Result)
        if isinstance(one, Call):
            current = _called(one, place, past, ids, rounds, policy)
        elif isinstance(one, Result):
            current = _told(
                one,
                place,
                past,
                seen,
                changes_count=aware,
                by_receipt=aware and not policy.reads_plainly,
                plain=policy.reads_plainly,
            )
        elif aware:
            messages.append(place)
            for earlier in past:
                if earlier.asked_before is None:
                    earlier.asked_before = place
    return History(past, len(observations) - 1, current, is_after_result, messages)


def _called(
    call: Call, place: int, past: list[Past], ids: set[str], rounds: set[tuple[str, Any]], policy: Policy
) -> Past | None:
    if call.call_id in ids:
        return None
    ids.add(call.call_id)
    kind_of_tool = CLASS_OF[call.tool]
    if kind_of_tool == "wait":
        return None
    key = (call.tool, _tree(json.dumps(call.arguments)))
    if policy.get("once_per_round") and call.round is not None:
        if (call.round, key) in rounds:
            return None
        rounds.add((call.round, key))
    line = call.arguments.get("command", "") if isinstance(call.arguments, dict) else ""
    looks = call.tool in READERS or (call.tool == "bash" and line == "git status")
    if call.tool == "bash" and "sleep" in line:
        kind_of_tool = "poll"
    one = Past(
        place,
        call.seq,
        call.tool,
        kind_of_tool,
        call.arguments,
        key,
        call.at,
        call.round,
        call_id=call.call_id,
        looks=looks,
    )
    pause = policy.get("slow_gap_seconds")
    if counts_by_receipt(one, policy):
        pause = max(pause, policy.get("write_period_minutes") * 60)
    for earlier in past[-8:][::-1]:
        if earlier.key == key:
            one.weight = 0.2 if call.at - earlier.at >= pause else 1.0
            waits_on = earlier.status == "pending" and earlier.kind_of_tool == "poll"
            is_look = line == "git status" and call.tool == "bash" and not policy.reads_plainly
            if is_look and (one.weight < 1 or waits_on):
                one.kind_of_tool = (
                    "poll"  # a look of a shell after a pause waits, and the next one for its result
                )
            break
    past.append(one)
    return one


def counts_by_receipt(one: Past, policy: Policy) -> bool:
    """Whether an identical call counts by what it does: it writes."""
    return one.kind_of_tool == "change" and policy.get("result_aware") and not policy.reads_plainly


def _told(
    result: Result,
    place: int,
    past: list[Past],
    seen: set[Any],
    *,
    changes_count: bool,
    by_receipt: bool,
    plain: bool,
) -> Past | None:
    one = next((one for one in past if one.call_id == result.call_id), None)
    if one is None or one.status != "pending":
        return None
    text = " ".join((result.content or "").split())
    one.result_place, one.text = place, result.content or ""
    one.status = "error" if result.is_error else "empty" if text in NOTHING else "ok"
    is_plain = one.status == "error" or text not in (*ACKNOWLEDGEMENTS, *PICTURES)
    one.evidence = text not in NOTHING and is_plain
    written = (
        changes_count and one.kind_of_tool == "change" and one.status != "error" and "already" not in text
    )
    if written:
        one.evidence = False
    # A receipt with another number is the same receipt.
    said = re.sub(r"\d+", "~", text) if written and by_receipt and text not in NOTHING else text
    one.receipt = one.status == "ok" and (written or text in ACKNOWLEDGEMENTS)
    # How far a text is from what was asked for, in figures, is no step forward for who reads or writes.
    figures = not plain and (one.tool in READERS or (changes_count and one.kind_of_tool == "change"))
    cause = _cause(text, one.arguments, figures=figures)
    one.answer = f"{one.status}:{cause if one.status == 'error' else said}"
    mark = (one.status == "error", text) if one.evidence else (one.status == "error", said, one.key)
    is_unseen = mark not in seen
    one.new = is_unseen or (one.status == "ok" and text in PICTURES)
    seen.add(mark)
    if one.status == "ok" and text in VALUES:
        pair = ("value", text, one.key)
        one.value = pair not in seen
        seen.add(pair)
    if written and is_unseen:
        one.changed = True
        for other in past:
            if other.key != one.key and other.overtaken is None:
                other.overtaken = place
    return one


@lru_cache(maxsize=1000)
def _tree(text: str) -> Any:
    return tree(json.loads(text))


def _cause(text: str, arguments: Any, *, figures: bool) -> str:
    """An error without line numbers and the words of the call's own arguments, but with three-digit codes."""
    text = re.sub(r"\bline \d+", "~", text)
    if figures:
        text = re.sub(r"\b(?!\d{3}\b)\d+\b", "~", text)
    own = set(re.findall(r"\w+", json.dumps(arguments)))

    def masked(match: re.Match[str]) -> str:
        word = match.group()
        code = len(word) == 3 and word.isdigit()
        return "~" if word in own and len(word) > 1 and not code else word

    return re.sub(r"\w+", masked, text)
