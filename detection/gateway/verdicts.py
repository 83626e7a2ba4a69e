"""Decides about the calls in the answers to one request, and records the resulting rewrites of the history."""

from __future__ import annotations

from dataclasses import dataclass, replace

from detection import clock
from detection.gateway.conversation import Conversation, Turn
from detection.gateway.guarding import UNAVAILABLE, Evaluation, GuardUnavailable
from detection.gateway.loop_state import LoopState
from detection.gateway.protocols.answers import (
    NOT_RUN,
    Answer,
    AnswerVerdict,
    Message,
    Resolution,
    resolve,
)
from detection.gateway.protocols.rewrites import Rewrite, occurrence_of
from detection.gateway.traffic import RequestMeter
from detection.web.documents import blocked_notice


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """An answer with what is done about its calls.

    Attributes
    ----------
    conversation
        That of the turn, which may have its name from the answer.
    texts
        The reasons, one for each call.
    withheld
        The results of the calls, if the client gets none of them.
    blocked
        If the model server is asked again: the calls and their results, which the conversation has next.
    returned
        The same as the model server wants it back.
    """

    conversation: Conversation
    answer: Answer
    resolution: Resolution
    texts: list[str]
    withheld: list[Message]
    blocked: list[Message]
    returned: list[Message]


class AnswerVerdicts:
    """The verdicts on the answers to one request."""

    def __init__(self, state: LoopState, meter: RequestMeter) -> None:
        self._state, self._meter = state, meter

    async def judge(self, turn: Turn, answer: Answer) -> JudgedAnswer:
        """Return what is done with an answer, and store how the history is rewritten because of it."""
        conversation, protocol = turn.conversation.named(answer), turn.conversation.protocol
        self._meter.count_answer(answer)
        try:
            evaluation = await self._evaluate(turn, conversation, answer)
        except GuardUnavailable:
            if conversation.grant.backend.fails_closed:
                texts = [UNAVAILABLE for _ in answer.calls]
                resolution = Resolution("text", frozenset(range(len(texts))), UNAVAILABLE)
                withheld = protocol.results(answer.calls, texts)
                return JudgedAnswer(conversation, answer, resolution, texts, withheld, [], [])
            evaluation = Evaluation(tuple(AnswerVerdict("allow") for _ in answer.calls))
        resolution = resolve(evaluation.verdicts, turn.reasks_left)
        if resolution.action == "text" and not any(one.decision == "stop" for one in evaluation.verdicts):
            project = conversation.grant.principal.project_slug
            text = blocked_notice(resolution.text, project, conversation.session)
            resolution = replace(resolution, text=text)
        texts = [verdict.message or NOT_RUN for verdict in evaluation.verdicts]
        results = protocol.results(answer.calls, texts)
        for verdict, result in zip(evaluation.verdicts, results, strict=True):
            if verdict.ending == "reuse":
                result.pop("is_error", None)  # a known answer is none
        redactor = conversation.grant.principal.redactor
        calls = [
            (
                number,
                protocol.call_document(
                    answer.calls[number], redactor.content(answer.calls[number].arguments)
                ),
            )
            for number in sorted(resolution.blocked)
        ]
        refused = [results[number] for number, _ in calls]
        blocked: list[Message] = []
        if resolution.action == "reask":
            documents = [call for _, call in calls]
            own = protocol.answer_messages(documents, redactor.text(answer.reasoning))
            blocked = [*own, *protocol.result_messages(refused)]
        else:
            await self._store_rewrite(turn, conversation, answer, evaluation, calls, refused)
        returned = [*answer.messages, *protocol.result_messages(results)] if answer.messages else blocked
        withheld = refused if len(calls) == len(answer.calls) else []
        return JudgedAnswer(conversation, answer, resolution, texts, withheld, blocked, returned)

    async def _evaluate(self, turn: Turn, conversation: Conversation, answer: Answer) -> Evaluation:
        protocol = conversation.protocol
        calls = [protocol.call_document(call, call.arguments) for call in answer.calls]
        messages = [*turn.for_guard, *protocol.for_guard(protocol.answer_messages(calls))]
        return await self._state.guarding.evaluate(
            conversation.speaker(answer), messages, answer, self._meter, is_retry=conversation.is_retry
        )

    async def ending(self, turn: Turn, answer: Answer, judged: JudgedAnswer | None) -> float:
        """Store what later requests need to continue an answer, before the client has all of it; return the time."""
        answered_at = clock.now().timestamp()
        conversation = judged.conversation if judged is not None else turn.conversation
        if answer.id and conversation.session and conversation.is_kept:
            if not answer.calls and not conversation.given_name:
                # The session is to be there when the next request names the response, in whatever process.
                await self._report(turn, answer, answered_at)
            # The client names the response by the id that it has got; the model server knows the last one, and expects
            # results of the calls that it has made.
            withheld = judged.withheld if judged is not None else []
            shown_id = answer.shown_id or answer.id
            await self._state.histories.keep_response(conversation, shown_id, answer.id, withheld)
        return answered_at

    def left(self, turn: Turn, answer: Answer, answered_at: float = 0.0) -> None:
        """Count an answer that is not evaluated, even if the client disconnected before its end."""
        self._state.run_later(self._report(turn, answer, answered_at))

    async def _report(self, turn: Turn, answer: Answer, answered_at: float) -> None:
        """Record the results before such an answer, and what it costs, once."""
        conversation, is_first = turn.conversation, self._meter.count_answer(answer)
        if is_first and conversation.session and (len(conversation.messages) > 1 or answer.usage.total):
            speaker, messages = conversation.speaker(answer), [*turn.for_guard]
            await self._state.guarding.report(speaker, messages, answer, answered_at)

    async def _store_rewrite(
        self,
        turn: Turn,
        conversation: Conversation,
        answer: Answer,
        evaluation: Evaluation,
        calls: list[tuple[int, Message]],
        results: list[Message],
    ) -> None:
        blocked = {number for number, _ in calls}
        kept = [call for number, call in enumerate(answer.calls) if number not in blocked]
        notes = {
            call.id: verdict.message
            for call, verdict in zip(answer.calls, evaluation.verdicts, strict=True)
            if verdict.decision == "warn" and verdict.message and call in kept
        }
        if evaluation.notice and kept:
            notes.setdefault(kept[0].id, evaluation.notice)
        if kept and kept[0].id and (notes or calls or turn.before):
            call_ids = conversation.protocol.call_ids
            ids = [one for message in conversation.messages for one in call_ids(message)]
            anchor = kept[0].id
            copies = {
                call.id: first.id
                for call, verdict in zip(answer.calls, evaluation.verdicts, strict=True)
                if verdict.repeats
                for first in kept
                if (first.name, first.arguments) == (call.name, call.arguments)
            }
            occurrence = occurrence_of(anchor, ids)
            rewrite = Rewrite(anchor, occurrence, [*turn.before], calls, results, notes, copies)
            await self._state.histories.keep(conversation.project_id, conversation.session, rewrite)
