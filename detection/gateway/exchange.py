"""One guarded request: reads the conversation, forwards it, and decides about the calls of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final, Protocol

import httpcore
import orjson
import structlog
from django.db import DatabaseError

from detection.gateway.client import MAX_BODY_BYTES, BodyBudget, Client
from detection.gateway.errors import GatewayError, StreamCut
from detection.gateway.guarding import UNAVAILABLE, Evaluation, Guarding, GuardUnavailable, Speaker
from detection.gateway.headers import response_headers
from detection.gateway.memory import GivenAnswer, Memory, conversation_key
from detection.gateway.protocols import sessions
from detection.gateway.protocols.answers import (
    MAX_REASKS,
    NOT_RUN,
    Answer,
    AnswerVerdict,
    Message,
    Resolution,
    ToolCall,
    resolve,
)
from detection.gateway.protocols.rewrites import Rewrite, Rewrites, occurrence_of, replace_list
from detection.gateway.protocols.stream import StreamReader
from detection.gateway.relaying import cut_as_seen, relay
from detection.gateway.upstream import Upstreams
from detection.gateway.workers import DatabaseWorkers
from detection.services.gateway.conversations import SessionFacts, session_facts, store_rewrite
from detection.services.gateway.grants import Grant
from detection.services.ingestion.redaction import Redactor

log = structlog.get_logger(__name__)
FACTS_SECONDS: Final = 2.0
KEEP_ALIVE_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 1.0
MAX_RESPONSE_BYTES: Final = MAX_BODY_BYTES
FINISH: Final = "stop"
"""Why a chat completion that ends the run has ended."""


class LoopState(Protocol):
    """What belongs to one event loop; see `application`."""

    workers: DatabaseWorkers
    upstreams: Upstreams
    bodies: BodyBudget
    guarding: Guarding
    memory: Memory
    background: set[asyncio.Task[None]]


class Exchange:
    """A guarded request.

    Parameters
    ----------
    path
        What follows the base URL of the backend, with the query.
    protocol
        One of `protocols.chat.Chat`, `protocols.anthropic.Anthropic` and `protocols.responses.Responses`.
    """

    def __init__(self, state: LoopState, client: Client, path: bytes, grant: Grant, protocol: Any) -> None:
        self.state, self.client, self.path, self.grant, self.protocol = state, client, path, grant, protocol
        self.request: dict[str, Any] = {}
        self.messages: list[Message] = []
        self.session = ""
        self.rewrites: list[Rewrite] = []
        self.before: list[Message] = []
        self.guard_messages: list[Message] = []
        self._texts: list[str] = []
        self._given: GivenAnswer | None = None

    async def run(self) -> None:
        """Serve the request."""
        body = bytearray()
        taken = 0
        try:
            async for part in self.client.body():
                if len(body) + len(part) > taken:
                    step = max(len(part), min(taken, 1024 * 1024) or 64 * 1024)
                    await self.state.bodies.take(step)
                    taken += step
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise GatewayError(
                        413, "body_too_large", f"The body must have at most {MAX_BODY_BYTES:,} bytes."
                    )
            await self._serve(self._unpacked(bytes(body)))
        finally:
            if taken:
                await self.state.bodies.give_back(taken)

    def _unpacked(self, body: bytes) -> bytes:
        encoding = self.client.headers.text("content-encoding").lower()
        if encoding in ("", "identity"):
            return body
        if encoding != "gzip":
            raise GatewayError(415, "unsupported_encoding", "`Content-Encoding` must be `gzip` or absent.")
        unpacker = zlib.decompressobj(31)
        try:
            unpacked = unpacker.decompress(body, MAX_BODY_BYTES)
        except zlib.error:
            raise GatewayError(400, "invalid_body", "The body is not valid gzip.") from None
        if unpacker.unconsumed_tail:
            raise GatewayError(413, "body_too_large", f"The body must have at most {MAX_BODY_BYTES:,} bytes.")
        return unpacked

    async def _serve(self, body: bytes) -> None:
        request, messages = self._read(body)
        if request is None or messages is None:
            # The model server has its own error for what is no conversation.
            async with self._upstream(body) as response:
                await relay(self.client, response)
            return
        self.request, self.messages = request, messages
        self.session = self._session_name(None)
        facts = await self._facts()
        if facts.stopped:
            await self._respond_text(facts.stopped)
            return
        key = (self.grant.principal.project_id, self.session)
        try:
            self.rewrites = self.state.memory.rewrites_of(key, facts.rewrites) if self.session else []
            forwarded = self._rewritten(with_notes=True)
            self.guard_messages = self.protocol.for_guard(self._rewritten(with_notes=False))
            if forwarded is not messages:
                body = replace_list(body, self.protocol.list_key, messages, forwarded)
            body = self._with_known_response(body)
        except Exception as error:  # noqa: BLE001 (a defect here must not end the run of an agent)
            # A conversation of an unknown form is the model server's to judge; what comes back is guarded all the same.
            log.warning("gateway_conversation_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            self.rewrites, self.guard_messages, forwarded = [], [], messages
        await self._converse(body, forwarded)

    def _read(self, body: bytes) -> tuple[dict[str, Any] | None, list[Message] | None]:
        try:
            request = orjson.loads(body)
        except ValueError:
            return None, None
        return (request, self.protocol.messages(request)) if isinstance(request, dict) else (None, None)

    def _rewritten(self, *, with_notes: bool) -> list[Message]:
        """Return the conversation as the model server is to have it; the same list if nothing changes."""
        if not self.rewrites:
            return self.messages
        messages = self.protocol.rewritten(self.messages, Rewrites(self.rewrites, with_notes=with_notes))
        previous = f"response:{self.request.get('previous_response_id')}"
        messages = [*next((one.results for one in self.rewrites if one.anchor == previous), []), *messages]
        is_same = len(messages) == len(self.messages) and all(
            a is b for a, b in zip(messages, self.messages, strict=True)
        )
        return self.messages if is_same else messages

    def _with_known_response(self, body: bytes) -> bytes:
        """Return a request with the id by which the model server knows the previous response."""
        previous = self.request.get("previous_response_id")
        known = next(
            (one.notes["id"] for one in self.rewrites if one.anchor == f"response:{previous}" and one.notes),
            "",
        )
        if not known:
            return body
        self.request = self.request | {"previous_response_id": known}
        return orjson.dumps({**orjson.loads(body), "previous_response_id": known})

    # Sessions

    def _session_name(self, answer: Answer | None) -> str:
        """Return the name of the session; empty for a conversation that has no name and no call yet."""
        given = sessions.given_name(self.client.headers.text, self.request)
        if given:
            return given
        previous = self.request.get("previous_response_id")
        project_id = self.grant.principal.project_id
        if isinstance(previous, str) and previous:
            return (
                self.state.memory.sessions_of_responses.get((project_id, previous))
                or f"after-{previous[:200]}"
            )
        first = self._first_call()
        if first is None and answer is not None and answer.calls:
            first = answer.calls[0]
        system = self.protocol.system_text(self.request)
        return sessions.derived_name(self.grant.principal.public_id, system, self.messages, first)

    def _first_call(self) -> ToolCall | None:
        for message in self.messages:
            if self.protocol.call_ids(message):
                found: Answer = self.protocol.answer_of_message(message)
                return found.calls[0] if found.calls else None
        return None

    async def _facts(self) -> SessionFacts:
        if not self.session:
            return SessionFacts()
        project_id = self.grant.principal.project_id
        try:
            return await self.state.workers.run(
                lambda: session_facts(project_id, self.session), FACTS_SECONDS
            )
        except DatabaseError as error:
            log.warning("gateway_session_unavailable", session=self.session, error=str(error)[:200])
            return SessionFacts()

    def _speaker(self, answer: Answer | None = None) -> Speaker:
        headers = self.client.headers
        return Speaker(
            principal=self.grant.principal,
            session=self.session,
            shape=self.protocol.shape,
            backend=self.grant.backend.name,
            model=sessions.printable(self.request.get("model") or (answer.model if answer else ""), 200),
            agent=sessions.agent_name(headers.text),
            parent_session=sessions.parent_name(headers.text),
        )

    # The model server

    def _upstream(self, body: bytes) -> Any:
        backend = self.grant.backend
        headers = self.client.headers.forwarded(backend, with_credential=True, body_length=len(body))
        return self.state.upstreams.request(backend, self.client.method, self.path, headers, body)

    async def _converse(self, body: bytes, messages: list[Message]) -> None:
        """Ask the model server until there is an answer that the client may have."""
        is_stream = self.request.get("stream") is True
        reader = self.protocol.reader(self.request) if is_stream else None
        choices = self.request.get("n")
        reasks_left = 0 if isinstance(choices, int) and choices > 1 else MAX_REASKS
        is_first = True
        known: list[Message] = []
        while True:
            try:
                async with self._upstream(body) as response:
                    if response.status != 200 or _kind(response) is None:
                        if is_first:
                            await relay(self.client, response)
                            return
                        answer = None
                    elif reader is not None and _kind(response) == "stream":
                        answer = await self._stream(response, reader, reasks_left)
                    else:
                        answer = await self._whole(response, reasks_left)
            except GatewayError:
                if is_first:
                    raise
                answer = None
            if answer is None:
                # The calls were blocked, and the model server fails when it is asked again.
                await self._end_with_text(reader)
                return
            if not answer.calls:
                return
            more = self.before[len(known) :]
            messages = [*messages, *(self._whole_answer(answer) if answer.messages else more)]
            known = self.before
            body = orjson.dumps(self.protocol.continued(self.request, messages, answer))
            reader = reader.next_reader() if reader is not None else None
            reasks_left -= 1
            is_first = False

    def _whole_answer(self, answer: Answer) -> list[Message]:
        return [
            *answer.messages,
            *self.protocol.result_messages(self.protocol.results(answer.calls, self._texts)),
        ]

    async def _stream(
        self, response: httpcore.Response, reader: StreamReader, reasks_left: int
    ) -> Answer | None:
        """Pass a stream on.

        Returns
        -------
        Answer
            One whose calls were all blocked, so that the model server is asked again; without calls if the client has got
            the answer.
        """
        if not self.client.has_started:
            await self.client.start(
                response.status, response_headers(response.headers, b"content-length", b"content-encoding")
            )
        is_released = False
        parts = _unpacked_parts(response)
        with cut_as_seen():
            async for part in parts:
                if is_released:
                    await self.client.write(part)
                    continue
                if passed := self._fed(reader, part):
                    await self.client.write(passed)
                if reader.is_unreadable:
                    is_released = True
                elif reader.is_due:
                    blocked = await self._decide_stream(reader, reasks_left)
                    if blocked is not None:
                        await _drain(parts)
                        return blocked
                    is_released = True
                    if rest := reader.rest:
                        await self.client.write(rest)
        blocked = None if is_released else await self._ended_stream(reader, reasks_left)
        return blocked or await self._end(reader)

    async def _ended_stream(self, reader: StreamReader, reasks_left: int) -> Answer | None:
        """Decide about calls that no event marked as complete; an answer that the model server broke off has none."""
        if reader.answer.calls and not reader.has_failed:
            return await self._decide_stream(reader, reasks_left)
        if rest := reader.rest:
            await self.client.write(rest)
        return None

    async def _end(self, reader: StreamReader) -> Answer:
        await self.client.end()
        if reader.shown_id != reader.answer.id and self.session:
            # The client names the response by the id that it has got; the model server knows the last one.
            await self._keep(Rewrite(f"response:{reader.shown_id}", 1, notes={"id": reader.answer.id}))
        self._delivered(reader.answer, reader.shown_id)
        return Answer()

    def _fed(self, reader: StreamReader, part: bytes) -> bytes:
        """Return what passes at once; all of it where the answer cannot be read and the backend fails open."""
        try:
            return reader.feed(part)
        except Exception as error:
            log.warning("gateway_answer_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            if self.grant.backend.fails_closed:
                raise StreamCut from error
            reader.is_unreadable = True
            return reader.unread

    async def _decide_stream(self, reader: StreamReader, reasks_left: int) -> Answer | None:
        """Send what the client gets of the calls that are held, or return the answer if the model server is asked again."""
        reader.finish()
        work = asyncio.create_task(self._resolve(reader.answer, reasks_left))
        try:
            while not (await asyncio.wait((work,), timeout=KEEP_ALIVE_SECONDS))[0]:
                await self.client.write(reader.keep_alive())
        finally:
            work.cancel()
        resolution = work.result()
        if resolution.action == "reask":
            return reader.answer
        if resolution.action == "forward":
            await self.client.write(reader.forwarded())
        else:
            await self.client.write(reader.resolved(resolution, FINISH))
        return None

    async def _whole(self, response: httpcore.Response, reasks_left: int) -> Answer | None:
        """Pass a whole response on; see `_stream`."""
        data = bytearray()
        try:
            with cut_as_seen():
                async for part in _unpacked_parts(response):
                    data += part
                    if len(data) > MAX_RESPONSE_BYTES:
                        raise GatewayError(
                            502, "response_too_large", "The response of the model server is too large."
                        )
        except StreamCut:
            # A head without the body after it: the client sees a response that was cut.
            if not self.client.has_started:
                await self.client.start(response.status, response_headers(response.headers))
            raise
        try:
            document = orjson.loads(data)
            answer: Answer = self.protocol.answer(document)
        except Exception as error:
            log.warning("gateway_answer_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            if self.grant.backend.fails_closed:
                raise GatewayError(
                    502, "response_unreadable", "The response of the model server is unreadable."
                ) from error
            document, answer = None, Answer()
        body = bytes(data)
        if answer.calls:
            resolution = await self._resolve(answer, reasks_left)
            if resolution.action == "reask":
                return answer
            if resolution.action != "forward":
                body = orjson.dumps(self.protocol.respond(document, answer, resolution, FINISH))
        if self.client.has_started:  # cannot happen: a stream was asked for and a document came
            raise StreamCut
        headers = response_headers(response.headers, b"content-length", b"content-encoding")
        await self.client.respond(response.status, headers, body)
        self._delivered(answer)
        return Answer()

    # Verdicts

    async def _resolve(self, answer: Answer, reasks_left: int) -> Resolution:
        """Return what is done with an answer, and store how the history is rewritten because of it."""
        self.session = self.session or self._session_name(answer)
        try:
            evaluation = await self._evaluate(answer)
        except GuardUnavailable:
            if self.grant.backend.fails_closed:
                everything = frozenset(range(len(answer.calls)))
                return Resolution("text", everything, UNAVAILABLE)
            evaluation = Evaluation(tuple(AnswerVerdict("allow") for _ in answer.calls))
        resolution = resolve(evaluation.verdicts, reasks_left)
        self._texts = [verdict.message or NOT_RUN for verdict in evaluation.verdicts]
        if resolution.action == "reask":
            calls, results = self._refused(answer, resolution)
            more = self._answer_of([call for _, call in calls], answer) + self.protocol.result_messages(
                results
            )
            self.before = [*self.before, *more]
            self.guard_messages = [*self.guard_messages, *self.protocol.for_guard(more)]
        else:
            await self._store_rewrite(answer, resolution, evaluation)
        return resolution

    async def _evaluate(self, answer: Answer) -> Evaluation:
        key = conversation_key(self.grant.principal.project_id, self.session, self.guard_messages)
        known = self.state.memory.answers.get(key)
        given = answer
        is_repeated = (
            known is not None and (self._is_retry or not known.is_delivered) and known.matches(answer)
        )
        if known is not None and is_repeated:
            given = replace(answer, id=known.answer_id, calls=[*known.calls])
        else:
            known = GivenAnswer(answer.id, tuple(answer.calls))
            self.state.memory.answers.put(key, known)
        self._given = known
        calls = [self.protocol.call_document(call, call.arguments) for call in given.calls]
        messages = [*self.guard_messages, *self.protocol.for_guard(self.protocol.answer_messages(calls))]
        return await self.state.guarding.evaluate(self._speaker(answer), messages, given, 0.0)

    @property
    def _is_retry(self) -> bool:
        return self.client.headers.text("x-stainless-retry-count") not in ("", "0")

    def _delivered(self, answer: Answer, shown_id: str = "") -> None:
        """Note that the client has got the answer."""
        if self._given is not None:
            self._given.is_delivered = True
        if answer.id and self.session and self.protocol.shape == "responses":
            key = (self.grant.principal.project_id, shown_id or answer.id)
            self.state.memory.sessions_of_responses.put(key, self.session)
        if not answer.calls and self.session and len(self.messages) > 1:
            self._report()

    def _report(self) -> None:
        """Record the results before an answer without calls."""
        work = self.state.guarding.report(self._speaker(), self.guard_messages)
        task = asyncio.create_task(work)
        self.state.background.add(task)
        task.add_done_callback(self.state.background.discard)

    def _answer_of(self, calls: list[Message], answer: Answer) -> list[Message]:
        redactor = Redactor(self.grant.principal.digest_secret)
        messages: list[Message] = self.protocol.answer_messages(calls, redactor.text(answer.reasoning))
        return messages

    def _refused(
        self, answer: Answer, resolution: Resolution
    ) -> tuple[list[tuple[int, Message]], list[Message]]:
        """Return the calls that do not run, without their secrets, and their results."""
        redactor = Redactor(self.grant.principal.digest_secret)
        numbers = sorted(resolution.blocked)
        calls = [answer.calls[number] for number in numbers]
        documents = [self.protocol.call_document(call, redactor.arguments(call.arguments)) for call in calls]
        results = self.protocol.results(calls, [self._texts[number] for number in numbers])
        return [*zip(numbers, documents, strict=True)], results

    async def _store_rewrite(self, answer: Answer, resolution: Resolution, evaluation: Evaluation) -> None:
        kept = [call for number, call in enumerate(answer.calls) if number not in resolution.blocked]
        notes = {
            call.id: verdict.message
            for call, verdict in zip(answer.calls, evaluation.verdicts, strict=True)
            if verdict.decision == "warn" and verdict.message and call in kept
        }
        if evaluation.notice and kept:
            notes.setdefault(kept[0].id, evaluation.notice)
        calls, results = self._refused(answer, resolution)
        rewrite = None
        if kept and kept[0].id and (notes or calls or self.before):
            ids = [one for message in self.messages for one in self.protocol.call_ids(message)]
            anchor = kept[0].id
            rewrite = Rewrite(anchor, occurrence_of(anchor, ids), self.before, calls, results, notes)
        elif not kept and self.protocol.shape == "responses" and answer.id:
            # The model server may keep the conversation, and then expects results of the calls that it has made.
            rewrite = Rewrite(f"response:{answer.id}", 1, results=results)
        if rewrite is not None:
            await self._keep(rewrite)

    async def _keep(self, rewrite: Rewrite) -> None:
        project_id = self.grant.principal.project_id
        self.state.memory.add_rewrite((project_id, self.session), rewrite)
        try:
            await self.state.workers.run(
                lambda: store_rewrite(project_id, self.session, rewrite.key, rewrite.dump()), FACTS_SECONDS
            )
        except DatabaseError as error:
            log.warning("gateway_rewrite_not_stored", session=self.session, error=str(error)[:200])

    # Answers of the gateway's own

    async def _respond_text(self, text: str) -> None:
        model = str(self.request.get("model") or "")
        response_id = f"loopguard{self.client.request_id.removeprefix('req_')}"
        if self.request.get("stream") is True:
            await self.client.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
            await self.client.end(self.protocol.text_stream(model, text, response_id))
            return
        document = self.protocol.text_response(model, text, response_id)
        await self.client.respond(200, [(b"content-type", b"application/json")], orjson.dumps(document))

    async def _end_with_text(self, reader: StreamReader | None) -> None:
        """End an answer whose calls were blocked, when the model server cannot be asked again."""
        text = "\n\n".join(dict.fromkeys(self._texts))
        if reader is None or not self.client.has_started:
            await self._respond_text(text)
        else:
            await self.client.end(reader.ended_with(text))


def _kind(response: httpcore.Response) -> str | None:
    """Return whether a response is a `stream` or a `document`; None for anything that is not guarded."""
    headers = {name.lower(): value.lower() for name, value in response.headers}
    if headers.get(b"content-encoding", b"identity").strip() not in (b"identity", b"gzip", b"deflate"):
        return None
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip()
    if media_type == b"text/event-stream":
        return "stream"
    return "document" if media_type == b"application/json" else None


async def _unpacked_parts(response: httpcore.Response) -> AsyncIterator[bytes]:
    """Yield the parts of a body without its encoding."""
    headers = {name.lower(): value.lower().strip() for name, value in response.headers}
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding == b"identity":
        async for part in response.aiter_stream():
            yield part
        return
    unpacker = zlib.decompressobj(47)  # gzip or zlib
    try:
        async for part in response.aiter_stream():
            if unpacked := unpacker.decompress(part):
                yield unpacked
    except zlib.error as error:
        raise StreamCut from error


async def _drain(parts: AsyncIterator[bytes]) -> None:
    """Read what is left of a response, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, StreamCut, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in parts:
                pass
