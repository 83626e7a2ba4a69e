"""The reading of a result: what it says, decided once for every detector, and its fingerprints.

`masking` and `echo` remove what says nothing, `answers` and `provider_trouble` decide what the rest says. Their words
and patterns are in `tables`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from detection.engine.identity import Keyer, encoded
from detection.engine.memory import EMPTY, ERROR, OK
from detection.engine.provider_trouble import Trouble, limit_and_trouble
from detection.engine.results import answers
from detection.engine.results.echo import without_echo
from detection.engine.results.json_text import JsonText
from detection.engine.results.masking import (
    is_cut,
    normalise,
    without_figures,
    without_positions,
    without_words,
)
from detection.engine.tool_classes import ToolTraits

__all__ = ["CallFacts", "ResultOutcome", "as_text", "evaluate_result", "is_cut", "normalise"]


class CallFacts(NamedTuple):
    """What is known of the call that a result belongs to.

    Attributes
    ----------
    tool : str
        Name of the tool.
    sketch : str
        Word sketch of the arguments.
    nested : str
        Hashed words of the texts deeper in the arguments; see `echo`.
    effect : str
        What the call intends; see `writes.Effect`.
    """

    tool: str = ""
    sketch: str = ""
    nested: str = ""
    effect: str = ""


_UNKNOWN_CALL = CallFacts()

# A result that repeats its call in a phrase, such as "a.py is valid": the phrase about each of many files is the same,
# and says something about each. A judgement: a sentence and a half; not measured. Longer texts say more.
_MAX_PHRASE_CHARS = 120
# Effects of calls whose results are receipts.
_RECEIPTS = frozenset(("message", "note", "step", "write"))


@dataclass(slots=True)
class ResultOutcome:
    """What a result says.

    Attributes
    ----------
    status : str
        `OK`, `ERROR` or `EMPTY`.
    digest : str
        Fingerprint of the masked result.
    error_digest : str or None
        Fingerprint of an error without the words of its call's arguments and without numbers of lines and columns.
    is_evidence : bool
        False where an identical result means nothing: an empty one, a receipt, or the stand-in for a picture.
    text, raw : str
        The result masked and as received.
    keyer : Keyer
        The project's digests, for what a detector keeps of the text.
    trouble : str
        What trouble of the provider an error reports; see `provider_trouble`. Nothing for tools that often fail, such
        as a shell.
    is_refused : bool
        Whether the host refused to run the call, so that the error is none of the tool.
    is_rejected : bool
        Whether it was a person at the host who refused it.
    is_receipt : bool
        Whether it says that a piece of work is done: many pieces have the same receipt.
    is_value : bool
        Whether a result is a bare number or Boolean, or a few short values, which many different calls have in common.
    is_phrase : bool
        Whether it repeats its call in a phrase, such as "a.py is valid": that many calls have the phrase in common is
        worth advice, and no reason to block the next one.
    is_record : bool
        Whether it is a small object of short values, such as the verdict of a check, which many things may share: once
        it is known, it is read as a phrase.
    is_picture : bool
        Whether the text only stands for a picture, which may show something new.
    is_cut : bool
        Whether the end of the text was cut off before it came here, so that only a digest of it is known; noted where
        results are read plainly, because nothing else compares texts.
    is_plain : bool
        Whether results are read as the settings of known systems do; see `Policy.reads_plainly`.
    own_limit : str
        The name of the limit of the call itself that an error reports; see `provider_trouble`.
    is_doubtful : bool
        Whether an error may be what a tool was to read, such as a line of a log: the client says nothing, and it only
        begins like an error.
    """

    status: str
    digest: str
    error_digest: str | None
    is_evidence: bool
    text: str
    raw: str
    keyer: Keyer
    trouble: Trouble = ""
    is_refused: bool = False
    is_rejected: bool = False
    is_receipt: bool = False
    is_value: bool = False
    is_phrase: bool = False
    is_record: bool = False
    is_picture: bool = False
    is_cut: bool = False
    is_plain: bool = False
    own_limit: str = ""
    is_doubtful: bool = False
    _finds_nothing: bool | None = None

    @property
    def finds_nothing(self) -> bool:
        """Whether a search found nothing: an empty result, or a short one that says so, maybe with its query."""
        if self._finds_nothing is None:
            self._finds_nothing = self.status == EMPTY or (
                self.status == OK and answers.says_nothing_found(self.text, plain=self.is_plain)
            )
        return self._finds_nothing

    @property
    def is_pending(self) -> bool:
        """Whether it says that what was asked for is not there yet, so that asking again is waiting.

        Decided when it is asked for, because most results are never asked.
        """
        if self.status == ERROR or self.is_plain:
            return False
        # The columns of a table are kept apart by tabs, which the masked text has lost.
        return answers.is_pending(self.text) or ("\t" in self.raw and answers.is_pending(self.raw))

    @property
    def receipt_digest(self) -> str:
        """Fingerprint of a receipt without ids, numbers, times and hashes."""
        return self.keyer.digest(b"receipt", encoded(answers.receipt_of(self.text)))

    @property
    def phrase_digest(self) -> str:
        """Fingerprint of a phrase with what it repeats of its call."""
        return self.keyer.digest(b"phrase", encoded(normalise(self.raw, plain=False)))

    @property
    def command_digest(self) -> str:
        """Fingerprint of what a command that changes something prints, without hashes and ids."""
        return self.keyer.digest(b"command", encoded(answers.without_hashes(self.text)))

    @property
    def given_id(self) -> str:
        """The id that a receipt gives to what was done, as it is written there."""
        return answers.id_in(self.raw)


def evaluate_result(
    content: str | None,
    is_error: bool | None,
    traits: ToolTraits,
    keyer: Keyer,
    call: CallFacts = _UNKNOWN_CALL,
    *,
    plain: bool = False,
) -> ResultOutcome:
    """Read a result.

    Parameters
    ----------
    content : str or None
        The text of the result.
    is_error : bool or None
        The word of the client. None lets the text decide; an error in an unmistakable form is one in any case.
    traits : ToolTraits
        Names the fields that change without meaning.
    keyer : Keyer
        The project's digests.
    call : CallFacts
        What is known of the call; its texts are masked where the result repeats them.
    plain : bool
        Read it as under settings that compare results literally.

    Returns
    -------
    ResultOutcome
        Costs one pass over the first 8,192 characters, and a digest of the rest.
    """
    raw, parsed = content or "", JsonText()
    is_failed = answers.failed(raw, is_error, traits, parsed, plain=plain)
    if not is_failed and is_error is None and call.effect == "write" and not plain:
        is_failed = answers.is_unmade(raw)
    text = raw
    if not plain:
        text = without_echo(raw, call.sketch, call.nested, call.tool if is_failed else "", keyer)
    has_echo = text != raw
    text = normalise(text, traits.volatile_result_fields, parsed, plain=plain)
    if is_failed and call.effect == "search" and answers.is_empty(text, parsed, plain=plain):
        is_failed = False  # A search that finds nothing exits with 1.
    digest = keyer.digest(b"error" if is_failed else b"result", encoded(text))
    if is_failed:
        error = _read_error(text, raw, digest, traits, keyer, call, parsed, plain=plain)
        error.is_doubtful = is_error is None and traits.reads and not plain and answers.is_doubtful(raw)
        return error
    outcome = ResultOutcome(OK, digest, None, True, text, raw, keyer, is_plain=plain)
    if len(text) <= answers.MAX_SHORT_CHARS:
        _read_short(outcome, text, parsed, plain=plain)
    if has_echo and len(text) <= _MAX_PHRASE_CHARS and outcome.status == OK:
        outcome.is_phrase = True
    elif not plain and answers.is_moment(text):
        outcome.is_evidence = False  # A time, or how long something took, is what was asked for.
    if outcome.status == OK and call.effect in _RECEIPTS and not answers.is_declined(text):
        outcome.is_receipt, outcome.is_evidence = True, False
    return outcome


def _read_short(outcome: ResultOutcome, text: str, parsed: JsonText, *, plain: bool) -> None:
    """Note what only a short text can be: a picture, empty, a receipt without words of its own, or a value."""
    if not plain:
        text = answers.without_frame(text)
    is_long = len(text) > answers.MAX_WRAPPED_CHARS
    if is_long and plain:
        return
    if not is_long and answers.is_picture(text, plain=plain):
        outcome.is_picture, outcome.is_evidence = True, False
        return
    if answers.is_nothing(text, parsed, plain=plain):
        outcome.status, outcome.is_evidence = EMPTY, False
        return
    outcome.is_record = not plain and answers.is_record(text, parsed)
    if is_long:
        return
    if answers.is_acknowledgement(text, plain=plain):
        outcome.is_receipt, outcome.is_evidence = True, False
    outcome.is_value = answers.is_value(text)


def _read_error(
    text: str,
    raw: str,
    digest: str,
    traits: ToolTraits,
    keyer: Keyer,
    call: CallFacts,
    parsed: JsonText,
    *,
    plain: bool,
) -> ResultOutcome:
    is_refused = not plain and answers.is_refused(raw)
    own_limit, trouble = limit_and_trouble(text)
    cause = without_positions(text)
    if not plain:
        if not traits.reads:
            cause = answers.without_hashes(cause)
        if call.effect == "write" or traits.reads or own_limit:
            # How well a text fits, or how large a file is: figures of what was asked for, and no step forward.
            cause = without_figures(cause)
    if call.sketch:
        cause = without_words(cause, call.sketch, keyer)
    if is_refused or traits.tool_class == "fallible":
        trouble = ""
    return ResultOutcome(
        ERROR,
        digest,
        keyer.digest(b"cause", encoded(cause)),
        not answers.is_empty(text, parsed, plain=plain),
        text,
        raw,
        keyer,
        trouble,
        is_refused,
        is_refused and answers.is_rejected(raw),
        is_plain=plain,
        own_limit="" if plain else own_limit,
    )


def as_text(content: Any) -> str | None:
    """Return a result as text; anything other than text becomes compact JSON."""
    if content is None or isinstance(content, str):
        return content
    return orjson.dumps(content, default=str).decode()
