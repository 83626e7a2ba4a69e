"""Evaluates the calls of an answer, in the threads of `workers`, and waits for decisions on calls that are held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

import structlog
from django.db import DatabaseError

from detection import clock
from detection.gateway.protocols.answers import NOT_RUN, Answer, AnswerVerdict, Message
from detection.gateway.records import event_record
from detection.gateway.traffic import RequestMeter
from detection.gateway.workers import DatabaseWorkers
from detection.integrations.labels import NO_LABELS, Labels
from detection.integrations.message_lists import ReadMessage, read_messages
from detection.integrations.transcripts import MessageShape
from detection.models.stored_verdict import StoredVerdict
from detection.selectors.approvals import closed_among
from detection.selectors.prices import price_cache
from detection.services.approvals import decisions
from detection.services.containments import settling
from detection.services.errors import ServiceError
from detection.services.events.event_records import (
    MAX_COST_USD,
    MAX_EVENTS,
    MAX_INTEGER,
    NAME_CHARACTERS,
    EventRecord,
    SharedNames,
)
from detection.services.gateway.conversations import preset_ends_in_error
from detection.services.ingestion.guard import CallResponse, GuardRequest, GuardResponse
from detection.services.ingestion.message_guard import MessageGuardResponse, guard_messages
from detection.services.keys import Principal
from detection.services.sessions.chat_commands import replies_in_effect
from detection.web.documents import stop_notice

log = structlog.get_logger(__name__)
GUARD_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.5
"""How soon a decision, and a containment, reaches the client of a held call."""
INTEGRATION: Final = "gateway"
UNAVAILABLE: Final = (
    "LoopGuard could not evaluate the tool calls of this answer, and this backend withholds calls that were not"
    " evaluated. Try again later."
)
COMMAND_FAILED: Final = (
    "LoopGuard could not execute the command because its database is unavailable. Try again later."
)


class GuardUnavailable(Exception):
    """There is no verdict, so the failure rule of the backend decides."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """The agent and session of a conversation.

    Attributes
    ----------
    shape, list_shape
        Of the protocol, and of the messages as the guard reads them.
    continued
        Id of the response or conversation that the messages of the request continue, where the model server keeps it.
    max_repeated_words
        The limit for repeated words in an answer; 0 if nobody looks for them.
    is_one_shot
        See `Conversation`. An equal request is another one, unless the client tells that it sends it again.
    asked_at
        When the request came, in Unix seconds; 0 is now.
    """

    principal: Principal
    session: str
    shape: str
    backend: str
    model: str
    list_shape: MessageShape = "openai"
    agent: str = ""
    parent_session: str = ""
    labels: Labels = NO_LABELS
    continued: str = ""
    integration: str = INTEGRATION
    max_repeated_words: int = 0
    is_one_shot: bool = False
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ResultNotices:
    """Findings about results: a message, and whether it ends the run; and whether the conversation was known."""

    text: str = ""
    is_stop: bool = False
    is_resent: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdicts on the calls of an answer, and a message about the results before it."""

    verdicts: tuple[AnswerVerdict, ...]
    notice: str = ""


class Guarding:
    """The guard, as the event loop uses it."""

    def __init__(self, workers: DatabaseWorkers) -> None:
        self._workers = workers

    async def evaluate(
        self,
        speaker: Speaker,
        messages: list[Message],
        answer: Answer,
        meter: RequestMeter | None,
        *,
        is_retry: bool,
    ) -> Evaluation:
        """Return the verdicts on the calls of an answer. Waits as long as calls are held.

        Parameters
        ----------
        messages
            The conversation as the guard reads it, with the answer at its end.
        is_retry
            Whether the client tells that it sends the request again.

        Raises
        ------
        GuardUnavailable
            If there is no verdict in time.
        """
        try:
            with meter.adding() if meter else nullcontext():
                done = await self._workers.run(
                    lambda: _guard(speaker, messages, answer, is_retry=is_retry, has_said=True), GUARD_SECONDS
                )
        except Exception as error:  # a defect here must not end the run of an agent
            log.warning(
                "gateway_guard_failed",
                session=speaker.session,
                error=f"{type(error).__name__}: {error}"[:300],
            )
            raise GuardUnavailable from error
        response = done.response
        if len(response.verdicts) != len(answer.calls):
            log.warning("gateway_verdicts_missing", session=speaker.session)
            raise GuardUnavailable
        verdicts = [await self._decided(speaker, one) for one in response.verdicts]
        found = _with_notices(verdicts, response)
        if all(verdict.decision != "stop" for verdict in found.verdicts):
            return found
        verdicts = [
            replace(verdict, message=_stop_notice(speaker, verdict.message))
            if verdict.decision == "stop"
            else verdict
            for verdict in found.verdicts
        ]
        return replace(found, verdicts=tuple(verdicts))

    async def evaluate_results(self, speaker: Speaker, messages: list[Message]) -> ResultNotices:
        """Record what is new in a conversation before its answer, and return what was found about its results.

        Raises
        ------
        GuardUnavailable
            If there is no verdict in time.
        """
        try:
            done = await self._workers.run(lambda: _guard(speaker, messages, Answer()), GUARD_SECONDS)
        except Exception as error:  # a defect here must not end the run of an agent
            raise GuardUnavailable(str(error)) from error
        found = done.response.notices
        stop = next((notice.message() for notice in found if notice.decision == "stop"), "")
        texts = dict.fromkeys(notice.message() for notice in found if notice.message())
        text = _stop_notice(speaker, stop) if stop else "\n\n".join(texts)
        return ResultNotices(text, is_stop=bool(stop), is_resent=done.new.is_resent)

    async def report(
        self,
        speaker: Speaker,
        messages: list[Message],
        answer: Answer,
        answered_at: float,
        *,
        is_read: bool = False,
    ) -> None:
        """Record what is new in a conversation whose answer has no calls, and its usage. A failure is only logged.

        Parameters
        ----------
        answered_at
            When the client got the answer, in Unix seconds; 0 is now.
        is_read
            Whether `evaluate_results` has read the conversation before its answer came.
        """
        try:
            unnamed = replace(answer, id="")
            await self._workers.run(
                lambda: _guard(
                    speaker,
                    messages,
                    unnamed,
                    has_said=True,
                    answered_at=answered_at,
                    is_read=is_read,
                ),
                GUARD_SECONDS,
            )
        except (DatabaseError, ServiceError) as error:
            log.info("gateway_report_failed", session=speaker.session, error=str(error)[:200])

    async def run_commands(
        self, speaker: Speaker, messages: list[Message], text: str, *, is_whole: bool
    ) -> str:
        """Execute the commands in the prompt that a conversation ends with, and return the reply.

        They are executed once. When the prompt is sent again, the reply is what is in effect now.

        Parameters
        ----------
        text
            Of the prompt.
        is_whole
            Whether the reply is the whole answer to the prompt.
        """

        def work() -> str:
            done = _guard(speaker, messages, Answer(), answered_at=0.0 if is_whole else None)
            return done.replies or replies_in_effect(speaker.principal.project_id, speaker.session, text)

        try:
            return await self._workers.run(work, GUARD_SECONDS)
        except Exception as error:  # noqa: BLE001 (a defect here must not end the run of an agent)
            log.warning(
                "gateway_command_failed",
                session=speaker.session,
                error=f"{type(error).__name__}: {error}"[:300],
            )
            return COMMAND_FAILED

    async def remains_ended(self, speaker: Speaker, messages: list[Message]) -> bool:
        """Return whether the run of a conversation that LoopGuard ended stays so: only a program has written since.

        Its prompts are recorded. False if that cannot be said in time.
        """

        def work() -> bool:
            done = _guard(speaker, messages, Answer())
            if done.is_by_program:
                _guard(speaker, messages, Answer(), answered_at=0.0, is_read=True, is_ended=True)
            return done.is_by_program

        try:
            return await self._workers.run(work, GUARD_SECONDS)
        except Exception as error:  # noqa: BLE001 (a defect here must not end the run of an agent)
            log.warning("gateway_end_unknown", session=speaker.session, error=f"{error}"[:300])
            return False

    async def _decided(self, speaker: Speaker, response: CallResponse) -> AnswerVerdict:
        """Return a verdict; for a held call, once it is decided."""
        message, ends_in_error = response.message(speaker.shape), _ends_in_error(response.verdict)
        if response.decision != "hold":
            verdict = response.verdict
            # Of all calls that are blocked without a finding, the others are contained.
            repeats = response.decision == "block" and verdict.finding is None and not verdict.stopped_by
            return AnswerVerdict(response.decision, message, ends_in_error, verdict.ending, repeats)
        if response.approval is None:
            return AnswerVerdict("block", message or NOT_RUN)
        public_id = str(response.approval["id"])
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                decided = await self._workers.run(
                    lambda: _closed(speaker.principal.project_id, public_id), GUARD_SECONDS
                )
            except DatabaseError:
                continue  # the decision is not lost; the client may leave at any time
            except ServiceError:
                return AnswerVerdict("block", NOT_RUN)
            if decided is not None:
                return replace(decided, ends_in_error=ends_in_error)


def _stop_notice(speaker: Speaker, message: str) -> str:
    return stop_notice(message, speaker.principal.project_slug, speaker.session)


def _ends_in_error(verdict: StoredVerdict) -> bool:
    return preset_ends_in_error(str(verdict.policy.get("preset", {}).get("value")))


def _closed(project_id: int, public_id: str) -> AnswerVerdict | None:
    settling.settle_waiting((public_id,))
    if public_id not in closed_among([(project_id, public_id)], clock.now()):
        return None
    approval = decisions.hand_out(project_id, public_id)
    return None if approval.is_open else AnswerVerdict(approval.decision, approval.message)


def _guard(
    speaker: Speaker,
    messages: Sequence[Message],
    answer: Answer,
    *,
    is_retry: bool = False,
    has_said: bool = False,
    answered_at: float | None = None,
    is_read: bool = False,
    is_ended: bool = False,
) -> MessageGuardResponse:
    """Evaluate the calls at the end of the messages, and the texts of the answer if it `has_said` any.

    The tokens of a repeated answer count too, because they are charged.
    """
    principal = speaker.principal

    def read(call_ids: Mapping[str, str] | None = None) -> list[ReadMessage]:
        return read_messages(
            messages, speaker.list_shape, principal.digest_secret, speaker.continued, call_ids
        )

    names: SharedNames = {
        "session": speaker.session,
        "backend": speaker.backend,
        "model": speaker.model[: NAME_CHARACTERS["model"]],
        "agent": speaker.agent,
        "parent_session": speaker.parent_session,
    }
    tokens = min(answer.usage.total, MAX_INTEGER)
    usage = EventRecord(type="usage", tokens=tokens, cost_usd=_cost(speaker, answer), **names)
    texts = answer.said.reported(speaker.max_repeated_words, has_calls=bool(answer.calls)) if has_said else ()
    said = [
        replace(event_record({"type": "message", "content": text}, names), role="assistant") for text in texts
    ]
    started = time.perf_counter()
    done = guard_messages(
        principal,
        GuardRequest(**names, integration=speaker.integration, labels=speaker.labels),
        read(),
        lambda _, event: event_record(event, names),
        round_name=answer.id[: NAME_CHARACTERS["round"]],
        max_events=MAX_EVENTS,
        usage=usage if tokens else None,
        said=said,
        is_continued=bool(speaker.continued),
        reread=None if speaker.is_one_shot and not is_retry else read,
        is_retry=is_retry,
        answered_at=answered_at,
        is_read=is_read,
        is_ended=is_ended,
        sent_at=speaker.asked_at,
    )
    log.debug("gateway_guarded", session=speaker.session, ms=round((time.perf_counter() - started) * 1000, 1))
    return done


def _cost(speaker: Speaker, answer: Answer) -> float:
    """Return the cost of an answer in US dollars; 0 if no price is known, so budgets do not count it."""
    usage = answer.usage
    if not usage.total:
        return 0.0
    names = [name for name in (speaker.model, answer.model[: NAME_CHARACTERS["model"]]) if name]
    price = price_cache.get(speaker.principal.project_id).find(speaker.backend, names)
    if price is None:
        return 0.0
    cost = price.cost(usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.output_tokens)
    return min(cost, MAX_COST_USD)


def _with_notices(verdicts: list[AnswerVerdict], response: GuardResponse) -> Evaluation:
    """Return the verdicts with what was found about results: it stops the run, or is a warning with the next result."""
    stops = [notice for notice in response.notices if notice.decision == "stop"]
    if stops:
        stop = AnswerVerdict("stop", stops[0].message(), _ends_in_error(stops[0].verdict))
        return Evaluation(tuple(stop for _ in verdicts))
    texts = dict.fromkeys(notice.message() for notice in response.notices if notice.message())
    return Evaluation(tuple(verdicts), "\n\n".join(texts))
