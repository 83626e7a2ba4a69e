"""Decides about the calls in the answers to one request, and records the resulting rewrites of the history."""

from __future__ import annotations

from detection import clock
from detection.gateway.conversation import Conversation
from detection.gateway.guarding import UNAVAILABLE, Evaluation, GuardUnavailable
from detection.gateway.protocols import sessions
from detection.gateway.protocols.answers import (
    NOT_RUN,
    Answer,
    AnswerVerdict,
    Message,
    Resolution,
    resolve,
)
from detection.gateway.protocols.rewrites import Rewrite, occurrence_of


class AnswerVerdicts:
    """The verdicts on the answers to one request.

    Attributes
    ----------
    texts
        The reasons of the last answer, one for each call.
    without_tools
        Whether the model is to answer without further calls when it is asked again.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.texts: list[str] = []
        self.without_tools = False
        self._answered: frozenset[int] = frozenset()
        self._withheld: list[Message] = []
        self._counted: Answer | None = None
        self._answered_at = 0.0

    async def resolve(self, answer: Answer, reasks_left: int) -> Resolution:
        """Return what is done with an answer, and store how the history is rewritten because of it."""
        conversation, protocol = self.conversation, self.conversation.protocol
        conversation.name_session(answer)
        self._count(answer)
        try:
            evaluation = await self._evaluate(answer)
        except GuardUnavailable:
            if conversation.grant.backend.fails_closed:
                everything = frozenset(range(len(answer.calls)))
                self.texts = [UNAVAILABLE for _ in answer.calls]
                self._withheld = protocol.results(answer.calls, self.texts)
                return Resolution("text", everything, UNAVAILABLE)
            evaluation = Evaluation(tuple(AnswerVerdict("allow") for _ in answer.calls))
        resolution = resolve(evaluation.verdicts, reasks_left)
        self.without_tools = self.without_tools or resolution.without_tools
        self._answered = frozenset(
            number for number, one in enumerate(evaluation.verdicts) if one.ending == "reuse"
        )
        self.texts = [verdict.message or NOT_RUN for verdict in evaluation.verdicts]
        calls, results = self._refused(answer, resolution)
        self._withheld = results if len(calls) == len(answer.calls) else []
        if resolution.action == "reask":
            more = [
                *self._answer_of([call for _, call in calls], answer),
                *protocol.result_messages(results),
            ]
            conversation.before = [*conversation.before, *more]
            conversation.guard_messages = [*conversation.guard_messages, *protocol.for_guard(more)]
        else:
            await self._store_rewrite(answer, evaluation, calls, results)
        return resolution

    async def _evaluate(self, answer: Answer) -> Evaluation:
        conversation, protocol = self.conversation, self.conversation.protocol
        calls = [protocol.call_document(call, call.arguments) for call in answer.calls]
        messages = [*conversation.guard_messages, *protocol.for_guard(protocol.answer_messages(calls))]
        return await conversation.state.guarding.evaluate(
            conversation.speaker(answer),
            messages,
            answer,
            conversation.meter,
            is_retry=sessions.is_retry(conversation.client.headers.text),
        )

    async def ending(self, answer: Answer) -> None:
        """Store what later requests need to continue an answer, before the client has all of it."""
        self._answered_at = clock.now().timestamp()
        if answer.id and self.conversation.session and self.conversation.is_kept:
            if not answer.calls and not self.conversation.given_name:
                # The session is to be there when the next request names the response, in whatever process.
                await self._report(answer)
            # The client names the response by the id that it has got; the model server knows the last one, and expects
            # results of the calls that it has made.
            await self.conversation.keep_response(
                answer.shown_id or answer.id, answer.id, self._withheld if answer.calls else []
            )

    def delivered(self, answer: Answer) -> None:
        """Note that the client has got the answer. One with calls was counted when they were evaluated."""
        if not answer.calls:
            self.left(answer)

    def left(self, answer: Answer) -> None:
        """Count an answer that is not evaluated, even if the client disconnected before its end."""
        self.conversation.state.run_later(self._report(answer))

    async def _report(self, answer: Answer) -> None:
        """Record the results before such an answer, and what it costs, once."""
        conversation = self.conversation
        is_first = self._count(answer)
        if is_first and conversation.session and (len(conversation.messages) > 1 or answer.usage.total):
            speaker, guarding = conversation.speaker(answer), conversation.state.guarding
            await guarding.report(speaker, conversation.guard_messages, answer, self._answered_at)

    def _count(self, answer: Answer) -> bool:
        """Count the tokens of an answer once; return whether they were not counted yet."""
        is_first = self._counted is not answer
        if is_first:
            self._counted = answer
            self.conversation.meter.count_answer(answer)
        return is_first

    def whole_answer(self, answer: Answer) -> list[Message]:
        """Return an answer whose calls were blocked, as the model server wants it back, with the reasons as results."""
        protocol = self.conversation.protocol
        results = protocol.results(answer.calls, self.texts)
        for number in self._answered:
            results[number].pop("is_error", None)
        return [*answer.messages, *protocol.result_messages(results)]

    def _answer_of(self, calls: list[Message], answer: Answer) -> list[Message]:
        redactor = self.conversation.grant.principal.redactor
        return self.conversation.protocol.answer_messages(calls, redactor.text(answer.reasoning))

    def _refused(
        self, answer: Answer, resolution: Resolution
    ) -> tuple[list[tuple[int, Message]], list[Message]]:
        """Return the calls that do not run, with secrets redacted, and their results."""
        protocol = self.conversation.protocol
        redactor = self.conversation.grant.principal.redactor
        numbers = sorted(resolution.blocked)
        calls = [answer.calls[number] for number in numbers]
        documents = [protocol.call_document(call, redactor.content(call.arguments)) for call in calls]
        results = protocol.results(calls, [self.texts[number] for number in numbers])
        for number, result in zip(numbers, results, strict=True):
            if number in self._answered:
                result.pop("is_error", None)  # a known answer is none
        return [*zip(numbers, documents, strict=True)], results

    async def _store_rewrite(
        self,
        answer: Answer,
        evaluation: Evaluation,
        calls: list[tuple[int, Message]],
        results: list[Message],
    ) -> None:
        conversation, protocol = self.conversation, self.conversation.protocol
        blocked = {number for number, _ in calls}
        kept = [call for number, call in enumerate(answer.calls) if number not in blocked]
        notes = {
            call.id: verdict.message
            for call, verdict in zip(answer.calls, evaluation.verdicts, strict=True)
            if verdict.decision == "warn" and verdict.message and call in kept
        }
        if evaluation.notice and kept:
            notes.setdefault(kept[0].id, evaluation.notice)
        if kept and kept[0].id and (notes or calls or conversation.before):
            ids = [one for message in conversation.messages for one in protocol.call_ids(message)]
            anchor = kept[0].id
            occurrence = occurrence_of(anchor, ids)
            await conversation.keep(Rewrite(anchor, occurrence, conversation.before, calls, results, notes))
