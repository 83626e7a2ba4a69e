"""The same text again and again, or one compaction after the other.

    "I will check that now."   "I will check that now."   "I will check that now."     and no call in between
    compaction   compaction   compaction   …

Counts texts of the assistant (`message` events with the role `assistant`) that are the same or nearly the same, with no
call in between, whatever else it says: it fires at the `talk_max_texts`-th. Two texts are nearly the same if at least
the share `talk_ratio` of their words is; times, dates and numbers do not count. A call ends the series, and so does a
message of the user in words that differ from the one before: who answers moves the conversation on, while "continue"
sent by a program does not. Empty answers are texts like any other. Ten compactions in a row, without a call in between,
are found as well, and so are five texts that announce a next step, in whatever words ("I will write it now", "Let me
write it").

Nobody waits for a verdict on a text, so the ladder can only record a finding or warn: it opens an incident, and nothing
is blocked. A client that sends its texts to the guard gets the warning among the notices. Of the texts, only keyed
digests of their words are kept in the session's state.

- **False alarms:** assistants that answer every question of other users with the same sentence.
- **Misses:** integrations that report calls only; most hooks of coding agents do.
- **Tuning:** raise `talk_max_texts` for assistants that say little.
- **Cost:** constant per text; nothing per call.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from detection.engine import tables
from detection.engine.calls import Finding, Message, ObservedCall
from detection.engine.detectors.base import (
    QUIET,
    SURE,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    forget_all,
)
from detection.engine.field import ladder, number, ratio, switch
from detection.engine.identity import Keyer, digest_of_calls, encoded
from detection.engine.memory import RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import normalise
from detection.engine.similarity import word_sample

# Different texts that are compared, so that one who alternates between a few is found; a judgement, not measured.
_MAX_TEXTS = 4
# Texts that a finding names; a judgement for the size of the state.
_MAX_SEQS = 12
# Hexadecimal digits that are kept of the digest of a text: 64 bits tell a few texts apart.
_DIGEST_CHARACTERS = 16
_MAX_ANNOUNCEMENT_CHARS = 400
"""Who announces a step says so in a sentence or three; a longer text is an answer."""
_LEADING = re.compile(
    r"(?:(?:okay|ok|alright|all right|great|perfect|sure|now|next|so|then|first)\b[\s,.!:]*)*"
)
_NUMBERS = re.compile(r"\d+")
_ANNOUNCEMENTS = tables.pattern(tables.table("announcements"))
# What is kept of a text: a digest, its words, how often it was said, and sequence numbers.
_DIGEST, _WORDS, _COUNT, _FIRST_SEQ = range(4)


class TalkState(TypedDict, total=False):
    """What the detector remembers: the user's latest words, and series as `_DIGEST` to `_FIRST_SEQ` say.

    `call` is the number of the latest call before them.
    """

    call: int
    user: str
    texts: list[list[Any]]
    announcements: list[Any]
    compactions: list[Any]


class Talk(BaseDetector):
    """Counts texts and compactions without a call in between."""

    kind = "talk"
    label = "Talk loops"
    headline = "Talk without work"
    unit = "texts"
    sentence = "The agent $said *$count times* without a call in between"
    recurrence = "Agents repeat themselves without making a call: *$detail*"
    message = "you $said $count times without making a call in between"
    advice = "Make a call that makes progress, or finish with what you have."
    again = "Saying it again"
    templates = {"warn": "[WARNING: $what. $advice]"}
    presets = ("standard",)
    key_settings = ("talk_ladder", "talk_max_texts")
    limit_setting = "talk_max_texts"
    spans_session = True
    judges_texts = True
    stands_alone = True
    describes_results = False
    settings = (
        switch(
            "talk_enabled", False, "Detect talk loops",
            "Detect an assistant that repeats its words, or whose context is compacted, without a call.", weakens="off",
        ),
        # A judgement, not measured: to say something twice is no loop yet.
        number(
            "talk_max_texts", 3, 2, 100, "Limit for repeated texts",
            "Warns at the n-th text that is the same or nearly the same, with no call in between.", unit="texts",
        ),
        # As `similar_ratio`; not measured.
        ratio(
            "talk_ratio", 0.85, "Similarity of texts",
            "Texts with at least this share of their words in common are nearly the same.",
        ),
        # A judgement, not measured: more than `talk_max_texts`, because announcements differ and may be a plan.
        number(
            "talk_max_announcements", 5, 0, 100, "Limit for announcements",
            "Warns at the n-th text that announces a next step, with no call in between. 0 turns this off.",
            unit="texts",
        ),
        # A judgement, not measured: one request that does not fit is compacted a few times.
        number(
            "talk_max_compactions", 10, 0, 1000, "Limit for compactions",
            "Warns at the n-th compaction in a row, with no call in between. 0 turns this off.", unit="compactions",
        ),
        ladder("talk_ladder", "warn", "Reaction to talk loops"),
    )  # fmt: skip
    examples = {
        "talk": Example(
            "a call, and then the same words three times",
            (
                ExampleCall("A", "lookup", {"name": "ann"}, "number 17"),
                *(
                    ExampleCall("“", "", "I will look into the orders of this customer now.", None)
                    for _ in range(3)
                ),
            ),
        ),
        "talk-conversation": Example(
            "other words each time, and work in between: not a loop",
            tuple(
                one
                for n in range(1, 5)
                for one in (
                    ExampleCall(f"{n}", "lookup", {"name": f"user {n}"}, f"number {n * 31}"),
                    ExampleCall("“", "", "I will look into the orders of this customer now.", None),
                )
            ),
            fires=False,
        ),
    }

    def on_uncounted(self, own: TalkState, call: ObservedCall) -> None:
        """End the series with a call of an exempt tool, too."""
        forget_all(own)

    def on_text(
        self, own: TalkState, run: RunState, message: Message, policy: PolicySettings, keyer: Keyer
    ) -> Reading:
        """Judge a text of the assistant or a compaction; a call ends the series, or a user who uses new words."""
        if own.get("call") != run.ordinal:
            forget_all(own)
            own["call"] = run.ordinal
        if message.kind == "condense":
            return self._compacted(own, message, policy)
        text = normalise(message.text)
        # A number alone is no other text: "attempt 3", "attempt 4".
        words = word_sample(_NUMBERS.sub("", text), keyer) or word_sample(text, keyer)
        if message.kind != "assistant":
            if not words or not _are_alike(words, own.get("user", ""), policy.values["talk_ratio"]):
                forget_all(own)
            own["call"], own["user"] = run.ordinal, words
            return QUIET
        own.pop("compactions", None)
        said = self._said(
            own, message, keyer.digest(b"text", encoded(text))[:_DIGEST_CHARACTERS], words, policy
        )
        announced = self._announced(own, message, policy)
        return said if said.finding or not announced.finding else announced

    def _said(
        self, own: TalkState, message: Message, digest: str, words: str, policy: PolicySettings
    ) -> Reading:
        values, texts = policy.values, own.setdefault("texts", [])
        known = next((one for one in texts if _are_alike(words, one[_WORDS], values["talk_ratio"])), None)
        if known is None:
            known = [digest, words, 0]
        else:
            texts.remove(known)
        texts.append(known)
        del texts[:-_MAX_TEXTS]
        is_same = known[_DIGEST] == digest
        if not is_same:
            # What has varied once is not called the same any more.
            known[_DIGEST] = ""
        known[_WORDS] = words
        known[_COUNT] += 1
        _note_seq(known, message.seq)
        said = "said the same" if is_same else "said nearly the same"
        return self._reading(
            known, values["talk_max_texts"], said if words else "answered with nothing", "texts"
        )

    def _announced(self, own: TalkState, message: Message, policy: PolicySettings) -> Reading:
        """Count the texts in a row that only announce a next step; an answer or a question in between ends the row."""
        limit = policy.values["talk_max_announcements"]
        if not limit or not is_announcement(message.text):
            own.pop("announcements", None)
            return QUIET
        known = own.setdefault("announcements", ["", "", 0])
        known[_COUNT] += 1
        _note_seq(known, message.seq)
        return self._reading(known, limit, "announced the next step", "announcements")

    def _compacted(self, own: TalkState, message: Message, policy: PolicySettings) -> Reading:
        limit = policy.values["talk_max_compactions"]
        if not limit:
            return QUIET
        known = own.setdefault("compactions", ["", "", 0])
        known[_COUNT] += 1
        _note_seq(known, message.seq)
        return self._reading(known, limit, "compacted its context", "compactions")

    def _reading(self, known: list[Any], limit: int, said: str, unit: str) -> Reading:
        count, seqs = known[_COUNT], sorted(known[_FIRST_SEQ:])
        if count < limit:
            return Reading(count, limit)
        # A text that varies stays one loop as long as it is repeated: its first event names it.
        identity = digest_of_calls(self.kind, (unit, str(seqs[0])))
        finding = Finding(
            kind=self.kind,
            count=count,
            limit=limit,
            confidence=SURE,
            calls_digest=identity,
            call_keys=(identity,),
            seqs=tuple(seqs),
            first_seq=seqs[0],
            detail=detail("", advisory=True, said=said, unit=unit),
        )
        return Reading(count, limit, finding)

    def describe(self, finding: Finding, *, in_seconds: bool = False) -> str:
        """Return the finding in words, without the texts."""
        said = str(finding.detail.get("said", "said the same")).replace("its context", "your context")
        return f"you {said} {finding.count:,} times without making a call in between"


def is_announcement(text: str) -> bool:
    """Return whether a text only announces what the assistant is about to do, in one of the known languages."""
    if len(text) > _MAX_ANNOUNCEMENT_CHARS or "?" in text:
        return False
    text = text.lower().lstrip().replace("’", "'")
    return _ANNOUNCEMENTS.match(text, _LEADING.match(text).end()) is not None  # type: ignore[union-attr]


def _note_seq(known: list[Any], seq: int) -> None:
    """Add an event to a series; its first one stays, and the latest."""
    known.append(seq)
    del known[_FIRST_SEQ + 1 : -_MAX_SEQS]


def _are_alike(words: str, others: str, share: float) -> bool:
    """Return whether two sets of words have at least this share in common."""
    if words == others:
        return True
    both = len({*words} & {*others})
    return both >= share * len({*words} | {*others})
