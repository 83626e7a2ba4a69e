"""Delivers the answer to a guarded request, whole or as a stream, with the verdicts applied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import httpcore
import orjson
import structlog

from detection.gateway.client import Client
from detection.gateway.conversation import Turn
from detection.gateway.errors import GatewayError, StreamCut
from detection.gateway.headers import response_headers
from detection.gateway.json_size import has_too_many_values
from detection.gateway.loop_state import LoopState
from detection.gateway.protocols.answer_text import CUT
from detection.gateway.protocols.answers import Answer, Resolution
from detection.gateway.protocols.stream import StreamReader
from detection.gateway.relaying import cut_as_seen, drain, unpacked_parts
from detection.gateway.request_body import MAX_BODY_BYTES
from detection.gateway.routes import ModelProtocol
from detection.gateway.traffic import RequestMeter
from detection.gateway.verdicts import AnswerVerdicts, JudgedAnswer
from detection.services.gateway.grants import Backend

log = structlog.get_logger(__name__)
KEEP_ALIVE_SECONDS: Final = 10.0
MAX_RESPONSE_BYTES: Final = MAX_BODY_BYTES


class Delivery:
    """The response to the client of one guarded request.

    Parameters
    ----------
    lead
        A text from LoopGuard that precedes the answer of the model, or empty.
    """

    def __init__(
        self, state: LoopState, client: Client, meter: RequestMeter, backend: Backend, lead: str = ""
    ) -> None:
        self.client, self._state, self._meter, self._lead = client, state, meter, lead
        self._verdicts = AnswerVerdicts(state, meter)
        self._fails_closed = backend.fails_closed

    async def stream(
        self, turn: Turn, response: httpcore.Response, reader: StreamReader
    ) -> JudgedAnswer | None:
        """Pass a stream on.

        Returns
        -------
        JudgedAnswer
            One whose calls were all blocked, so that the model server is asked again; None if the client has got its
            answer.
        """
        if not self.client.has_started:
            await self.client.start(
                response.status, response_headers(response.headers, b"content-length", b"content-encoding")
            )
        self.client.error_event = reader.error_event
        try:
            return await self._pass_on(turn, unpacked_parts(response), reader)
        except asyncio.CancelledError:
            self._verdicts.left(turn, reader.answer)
            raise
        except StreamCut:
            # Without us the client would have all calls, and only then see the cut.
            if reader.has_whole_calls and not self.client.has_answer:
                await self._judge_stream(replace(turn, reasks_left=0), reader)
            raise

    async def _pass_on(
        self, turn: Turn, parts: AsyncIterator[bytes], reader: StreamReader
    ) -> JudgedAnswer | None:
        is_released, judged = False, None
        with cut_as_seen():
            async for part in parts:
                if is_released:
                    await self.client.write(part)
                    continue
                if passed := self._fed(reader, part):
                    await self.client.write(passed)
                if reader.is_unreadable:
                    is_released = True
                    self.client.error_event = None  # what passes unread may end within an event
                elif reader.is_due:
                    judged = await self._judge_stream(turn, reader)
                    if judged.resolution.action == "reask":
                        await drain(parts)
                        return judged
                    is_released = self.client.has_answer = True
                    if rest := reader.rest:
                        await self.client.write(rest)
                elif reader.answer.said.repeats_itself and reader.can_be_cut and not reader.has_ended:
                    log.info("gateway_answer_cut", session=turn.conversation.session)
                    await self.client.write(reader.cut_with(f"\n\n{CUT}"))
                    is_released = self.client.has_answer = True
                    break  # leaving the response closes its connection, and the model server writes no more
                self.client.has_answer = self.client.has_answer or reader.has_ended
        if not is_released:
            judged = await self._ended_stream(turn, reader)
        if reader.has_failed:
            self._meter.count_error("server_errors")
        if judged is not None and judged.resolution.action == "reask":
            return judged
        answered_at = await self._verdicts.ending(turn, reader.answer, judged)
        await self.client.end()
        self._delivered(turn, reader.answer, answered_at)
        return None

    async def _ended_stream(self, turn: Turn, reader: StreamReader) -> JudgedAnswer | None:
        """Judge calls that no event marked as complete; an answer that the model server broke off has none."""
        if reader.answer.calls and not reader.has_failed:
            return await self._judge_stream(turn, reader)
        if rest := reader.rest:
            await self.client.write(rest)
        return None

    def _delivered(self, turn: Turn, answer: Answer, answered_at: float) -> None:
        """Note that the client has got the answer. One with calls was counted when they were evaluated."""
        if not answer.calls:
            self._verdicts.left(turn, answer, answered_at)

    def _fed(self, reader: StreamReader, part: bytes) -> bytes:
        """Return what is passed on immediately: everything if the answer cannot be read and the backend fails open."""
        try:
            return reader.feed(part)
        except Exception as error:
            log.warning("gateway_answer_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            if self._fails_closed:
                raise StreamCut from error
            self._meter.count_error("unreadable")
            reader.is_unreadable = True
            return reader.unread

    async def _judge_stream(self, turn: Turn, reader: StreamReader) -> JudgedAnswer:
        """Judge the withheld calls, and send the client its part of them unless the model server is asked again."""
        reader.finish()
        work = asyncio.create_task(self._verdicts.judge(turn, reader.answer))
        try:
            while not (await asyncio.wait((work,), timeout=KEEP_ALIVE_SECONDS))[0]:
                await self.client.write(reader.keep_alive())
        finally:
            work.cancel()
        judged = work.result()
        if judged.resolution.action == "forward":
            await self.client.write(reader.forwarded())
        elif judged.resolution.action != "reask":
            await self.client.write(reader.resolved(judged.resolution))
        return judged

    async def whole(self, turn: Turn, response: httpcore.Response) -> JudgedAnswer | None:
        """Pass a whole response on; see `stream`."""
        body = await self._read(response)
        protocol, judged = turn.conversation.protocol, None
        try:
            document, answer = await self._state.off_loop(len(body), lambda: _parsed(protocol, body, turn))
        except Exception as error:
            log.warning("gateway_answer_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            self._meter.count_error("unreadable")
            if self._fails_closed:
                raise GatewayError(
                    502, "response_unreadable", "The response of the model server is unreadable."
                ) from error
            document, answer = None, Answer()
        if answer.calls:
            judged = await self._verdicts.judge(turn, answer)
            if judged.resolution.action == "reask":
                return judged
            if judged.resolution.action != "forward":
                document = protocol.respond(document, answer, judged.resolution)
                body = orjson.dumps(document)
        if self._lead and document is not None:
            body = orjson.dumps(protocol.with_lead(document, self._lead))
        if self.client.has_started:  # cannot happen: a stream was asked for and a document came
            raise StreamCut
        headers = response_headers(response.headers, b"content-length", b"content-encoding")
        answered_at = await self._verdicts.ending(turn, answer, judged)
        await self.client.respond(response.status, headers, body)
        self._delivered(turn, answer, answered_at)
        return None

    async def _read(self, response: httpcore.Response) -> bytes:
        data = bytearray()
        try:
            with cut_as_seen():
                async for part in unpacked_parts(response):
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
        return bytes(data)

    # Answers of the gateway's own

    async def respond_text(self, turn: Turn, text: str, *, ends_in_error: bool = False) -> None:
        """Respond with a text."""
        conversation, protocol = turn.conversation, turn.conversation.protocol
        end = Resolution("text", text=text, ends_in_error=ends_in_error)
        model = str(turn.request.get("model") or "")
        response_id = conversation.own_response_id
        if conversation.is_kept:
            await self._state.histories.keep_own_response(turn)
        if conversation.is_stream:
            await self.client.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
            await self.client.end(protocol.text_stream(model, end, response_id))
            return
        document = protocol.text_response(model, end, response_id)
        await self.client.respond(200, [(b"content-type", b"application/json")], orjson.dumps(document))

    async def end_with_reasons(self, turn: Turn, judged: JudgedAnswer, reader: StreamReader) -> None:
        """End an answer whose calls were blocked, when the model server cannot be asked again."""
        text = "\n\n".join(dict.fromkeys(judged.texts))
        if not self.client.has_started:
            await self.respond_text(turn, self._lead + text)
        else:
            await self._verdicts.ending(turn, judged.answer, judged)
            await self.client.end(reader.ended_with(text))


def _parsed(protocol: ModelProtocol, body: bytes, turn: Turn) -> tuple[Any, Answer]:
    if has_too_many_values(body):
        raise ValueError("too many values")
    document = orjson.loads(body)
    return document, protocol.answer(document, turn.request)
