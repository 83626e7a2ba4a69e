"""A word, a line or a block again and again within one text of the assistant.

    court court court court court court court …
    I will check the file now. I will check the file now. I will check the file now. …

A model that has come off the rails repeats itself until it reaches the limit of its answer, which is charged. Looks for
stretches that consist of one block in a row: at least `degenerate_max_words` words, and the block at least six times.
The repeated words of all such texts of a session are one count.
Blocks of up to about 350 words are recognised, in every script. Numbers and signs alone, as in a matrix of zeros or a
ruler, count from 2,000 on.

What has been said cannot be blocked, so the ladder can only record a finding or warn. The gateway sees a text while it
is written, thinking included: with `degenerate_reaction` set to `cut` it ends the stream where the repetition is found,
in the form of the protocol, as a model server that has reached its limit of tokens does.

- **False alarms:** answers that have to repeat themselves, such as test data of identical rows.
- **Misses:** repetitions with a number that counts up; integrations that report calls only.
- **Tuning:** raise `degenerate_max_words` for agents that write such data into their texts.
- **Cost:** about a microsecond a word, in constant memory; nothing per call.
"""

from __future__ import annotations

from typing import TypedDict

from detection.engine.calls import Finding, Message
from detection.engine.detectors.base import QUIET, SURE, BaseDetector, Example, ExampleCall, Reading, detail
from detection.engine.field import choice, ladder, number, switch
from detection.engine.identity import Keyer, digest_of_calls
from detection.engine.memory import RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.text_repetition import Repetition, longest_repetition

# Texts that a finding names; a judgement: a state of 32 KiB holds one such list for each series.
_MAX_SEQS = 12


class DegenerateState(TypedDict, total=False):
    """What the detector remembers: repeated words so far, and the first and the latest of their texts."""

    words: int
    first: int
    seqs: list[int]


class Degenerate(BaseDetector):
    """Looks for text that repeats itself within one answer."""

    kind = "degenerate"
    label = "Degenerate texts"
    headline = "Text that repeats itself"
    unit = "words"
    sentence = "A text of the agent repeats *$block $repeats times* in a row; $count repeated words so far"
    recurrence = "Texts of agents repeat themselves *without end*"
    message = "your text repeats itself over and over, $count words so far"
    advice = "Stop writing this text. Make a call that makes progress, or finish with what you have in a few words."
    again = "A text like this"
    templates = {"warn": "[WARNING: $what. $advice]"}
    presets = ("standard",)
    key_settings = ("degenerate_ladder", "degenerate_max_words", "degenerate_reaction")
    limit_setting = "degenerate_max_words"
    spans_session = True
    judges_texts = True
    stands_alone = True
    describes_results = False
    settings = (
        switch(
            "degenerate_enabled", False, "Detect degenerate texts",
            "Detect texts of the assistant that repeat a word, a line or a block again and again.", weakens="off",
        ),
        # A judgement, not measured: longer than a chorus, a table of equal rows or a quoted log in an honest answer.
        number(
            "degenerate_max_words", 120, 20, 100_000, "Limit for repeated words",
            "Warns about a text in which so many words are one block in a row, at least six times.", unit="words",
        ),
        choice(
            "degenerate_reaction", "advise", ("advise", "cut"), "Reaction to a degenerate stream",
            "What the gateway does while such a text is written: only advise (`advise`), or end the stream (`cut`).",
            strictest_first=("cut", "advise"),
        ),
        ladder("degenerate_ladder", "warn", "Reaction to degenerate texts"),
    )  # fmt: skip
    examples = {
        "degenerate": Example(
            "a text that repeats one sentence without end",
            (
                ExampleCall("A", "lookup", {"name": "ann"}, "number 17"),
                ExampleCall("“", "", "I will look into the orders now. " * 20, None),
            ),
        ),
        "degenerate-prose": Example(
            "a long text that continues: not a loop",
            (
                ExampleCall("A", "lookup", {"name": "ann"}, "number 17"),
                ExampleCall(
                    "“",
                    "",
                    " ".join(f"Order {n} of the customer arrived {n * n} days ago." for n in range(60)),
                    None,
                ),
            ),
            fires=False,
        ),
    }

    def on_text(
        self, own: DegenerateState, run: RunState, message: Message, policy: PolicySettings, keyer: Keyer
    ) -> Reading:
        """Judge a text of the assistant by itself."""
        if message.kind != "assistant":
            return QUIET
        limit = policy.values["degenerate_max_words"]
        found = longest_repetition(message.text, limit)
        if found is None:
            return QUIET
        own["words"] = own.get("words", 0) + found.words
        seqs = own["seqs"] = [*own.get("seqs", ()), message.seq][-_MAX_SEQS:]
        first = own.setdefault("first", message.seq)
        identity = digest_of_calls(self.kind, (self.kind,))
        finding = Finding(
            kind=self.kind,
            count=own["words"],
            limit=limit,
            confidence=SURE,
            calls_digest=identity,
            call_keys=(identity,),
            seqs=tuple(seqs),
            first_seq=first,
            detail=detail("", advisory=True, block=_block(found), repeats=found.repeats),
        )
        return Reading(own["words"], limit, finding)


def _block(found: Repetition) -> str:
    return "one word" if found.block == 1 else f"the same {found.block} words"
