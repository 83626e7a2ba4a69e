"""Delivers the answer to a guarded request, whole or as a stream, with the verdicts applied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpcore
import orjson
import structlog

from detection.gateway.conversation import Conversation
from detection.gateway.errors import GatewayError, StreamCut
from detection.gateway.headers import response_headers
from detection.gateway.json_size import has_too_many_values
from detection.gateway.protocols.answer_text import CUT
from detection.gateway.protocols.answers import Answer, Resolution
from detection.gateway.protocols.stream import StreamReader
from detection.gateway.relaying import cut_as_seen, drain, unpacked_parts
from detection.gateway.request_body import MAX_BODY_BYTES
from detection.gateway.verdicts import AnswerVerdicts

log = structlog.get_logger(__name__)
KEEP_ALIVE_SECONDS: Final = 10.0
MAX_RESPONSE_BYTES: Final = MAX_BODY_BYTES


class Delivery:
    """The response to the client of one guarded request.

    Attributes
    ----------
    lead
        A text from LoopGuard that precedes the answer of the model, or empty.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation, self.client = conversation, conversation.client
        self.verdicts = AnswerVerdicts(conversation)
        self.lead = ""
        self._fails_closed = conversation.grant.backend.fails_closed

    async def stream(
        self, response: httpcore.Response, reader: StreamReader, reasks_left: int
    ) -> Answer | None:
        """Pass a stream on.

        Returns
        -------
        Answer
            One whose calls were all blocked, so that the model server is asked again; None if the client has got its
            answer.
        """
        if not self.client.has_started:
            await self.client.start(
                response.status, response_headers(response.headers, b"content-length", b"content-encoding")
            )
        self.client.error_event = reader.error_event
        try:
            return await self._pass_on(unpacked_parts(response), reader, reasks_left)
        except asyncio.CancelledError:
            self.verdicts.left(reader.answer)
            raise
        except StreamCut:
            # Without us the client would have all calls, and only then see the cut.
            if reader.has_whole_calls and not self.client.has_answer:
                await self._decide_stream(reader, 0)
            raise

    async def _pass_on(
        self, parts: AsyncIterator[bytes], reader: StreamReader, reasks_left: int
    ) -> Answer | None:
        is_released = False
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
                    blocked = await self._decide_stream(reader, reasks_left)
                    if blocked is not None:
                        await drain(parts)
                        return blocked
                    is_released = self.client.has_answer = True
                    if rest := reader.rest:
                        await self.client.write(rest)
                elif reader.answer.said.repeats_itself and reader.can_be_cut and not reader.has_ended:
                    log.info("gateway_answer_cut", session=self.conversation.session)
                    await self.client.write(reader.cut_with(f"\n\n{CUT}"))
                    is_released = self.client.has_answer = True
                    break  # leaving the response closes its connection, and the model server writes no more
                self.client.has_answer = self.client.has_answer or reader.has_ended
        blocked = None if is_released else await self._ended_stream(reader, reasks_left)
        if reader.has_failed:
            self.conversation.meter.count_error("server_errors")
        if blocked is None:
            await self._end(reader)
        return blocked

    async def _ended_stream(self, reader: StreamReader, reasks_left: int) -> Answer | None:
        """Decide about calls that no event marked as complete; an answer that the model server broke off has none."""
        if reader.answer.calls and not reader.has_failed:
            return await self._decide_stream(reader, reasks_left)
        if rest := reader.rest:
            await self.client.write(rest)
        return None

    async def _end(self, reader: StreamReader) -> None:
        await self.verdicts.ending(reader.answer)
        await self.client.end()
        self.verdicts.delivered(reader.answer)

    def _fed(self, reader: StreamReader, part: bytes) -> bytes:
        """Return what is passed on immediately: everything if the answer cannot be read and the backend fails open."""
        try:
            return reader.feed(part)
        except Exception as error:
            log.warning("gateway_answer_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            if self._fails_closed:
                raise StreamCut from error
            self.conversation.meter.count_error("unreadable")
            reader.is_unreadable = True
            return reader.unread

    async def _decide_stream(self, reader: StreamReader, reasks_left: int) -> Answer | None:
        """Send the client its part of the withheld calls, or return the answer if the model server is asked again."""
        reader.finish()
        work = asyncio.create_task(self.verdicts.resolve(reader.answer, reasks_left))
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
            await self.client.write(reader.resolved(resolution))
        return None

    async def whole(self, response: httpcore.Response, reasks_left: int) -> Answer | None:
        """Pass a whole response on; see `stream`."""
        body = await self._read(response)
        protocol = self.conversation.protocol
        try:
            document, answer = await self.conversation.state.off_loop(len(body), lambda: self._parsed(body))
        except Exception as error:
            log.warning("gateway_answer_unreadable", error=f"{type(error).__name__}: {error}"[:300])
            self.conversation.meter.count_error("unreadable")
            if self._fails_closed:
                raise GatewayError(
                    502, "response_unreadable", "The response of the model server is unreadable."
                ) from error
            document, answer = None, Answer()
        if answer.calls:
            resolution = await self.verdicts.resolve(answer, reasks_left)
            if resolution.action == "reask":
                return answer
            if resolution.action != "forward":
                document = protocol.respond(document, answer, resolution)
                body = orjson.dumps(document)
        if self.lead and document is not None:
            body = orjson.dumps(protocol.with_lead(document, self.lead))
        if self.client.has_started:  # cannot happen: a stream was asked for and a document came
            raise StreamCut
        headers = response_headers(response.headers, b"content-length", b"content-encoding")
        await self.verdicts.ending(answer)
        await self.client.respond(response.status, headers, body)
        self.verdicts.delivered(answer)
        return None

    def _parsed(self, body: bytes) -> tuple[Any, Answer]:
        if has_too_many_values(body):
            raise ValueError("too many values")
        document = orjson.loads(body)
        return document, self.conversation.protocol.answer(document)

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

    async def respond_text(self, text: str, *, ends_in_error: bool = False) -> None:
        """Respond with a text."""
        protocol = self.conversation.protocol
        end = Resolution("text", text=text, ends_in_error=ends_in_error)
        model = str(self.conversation.request.get("model") or "")
        response_id = self.conversation.own_response_id
        if self.conversation.is_kept:
            await self.conversation.keep_own_response(response_id)
        if self.conversation.is_stream:
            await self.client.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
            await self.client.end(protocol.text_stream(model, end, response_id))
            return
        document = protocol.text_response(model, end, response_id)
        await self.client.respond(200, [(b"content-type", b"application/json")], orjson.dumps(document))

    async def end_with_reasons(self, blocked: Answer, reader: StreamReader) -> None:
        """End an answer whose calls were blocked, when the model server cannot be asked again."""
        text = "\n\n".join(dict.fromkeys(self.verdicts.texts))
        if not self.client.has_started:
            await self.respond_text(self.lead + text)
        else:
            await self.verdicts.ending(blocked)
            await self.client.end(reader.ended_with(text))
