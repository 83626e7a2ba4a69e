"""One guarded request: reads the conversation, forwards it, and asks again while all calls are blocked."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import httpcore
import orjson

from detection.gateway.client import Client
from detection.gateway.conversation import USAGE_OPTION, Conversation
from detection.gateway.delivery import Delivery
from detection.gateway.errors import GatewayError
from detection.gateway.loop_state import LoopState
from detection.gateway.protocols.answers import MAX_REASKS, Answer, Message
from detection.gateway.protocols.prompt_commands import lead_of
from detection.gateway.protocols.stream import StreamReader
from detection.gateway.relaying import BegunBody, kind_of, relay
from detection.gateway.request_body import check_number, parsed_request, request_body
from detection.gateway.routes import ModelProtocol
from detection.gateway.traffic import RequestMeter
from detection.services.gateway.conversations import SessionFacts
from detection.services.gateway.grants import Grant

MAX_ERROR_BYTES: Final = 64 * 1024
"""Of an error document that is read before it is passed on."""
COMMANDS_WAIT: Final = "The command takes effect with the first tool call of this conversation."


class Exchange:
    """A guarded request.

    Parameters
    ----------
    path
        What follows the base URL of the backend, with the query.
    """

    def __init__(
        self, state: LoopState, client: Client, path: bytes, grant: Grant, protocol: ModelProtocol
    ) -> None:
        self.state, self.client, self.path, self.grant, self.protocol = state, client, path, grant, protocol

    async def run(self) -> None:
        """Serve the request."""
        key = self.grant.principal.public_id
        async with request_body(self.client, self.state.unfinished, self.state.memory_budget, key) as body:
            self.meter = RequestMeter(self.state.traffic, self.grant.backend)
            try:
                await self._serve(body)
            finally:
                self.meter.close()

    async def _serve(self, body: bytes) -> None:
        conversation = await self.state.off_loop(len(body), lambda: self._conversation(body))
        if conversation is None:
            # The model server has its own error for what is no conversation.
            async with self._upstream(body) as response:
                await relay(self.client, response)
            return
        delivery = Delivery(conversation)
        facts = await conversation.facts()
        body, messages = await self.state.off_loop(len(body), lambda: conversation.rewrite(body, facts))
        if facts.stopped:
            await delivery.respond_text(facts.stopped, ends_in_error=facts.ends_in_error)
        elif conversation.ends_with_commands_only:
            await delivery.respond_text(await self._command_reply(conversation))
        else:
            if conversation.ends_with_commands:
                delivery.lead = lead_of(await self._command_reply(conversation))
            await self._converse(delivery, body, messages, facts)

    async def _command_reply(self, conversation: Conversation) -> str:
        """Execute the commands at the end of a conversation and return the reply."""
        if not conversation.session and conversation.is_kept:
            # The model server may keep the conversation, and then the command is in no later request.
            conversation.name_after(conversation.own_response_id)
        if not conversation.session:
            return COMMANDS_WAIT
        return await self.state.guarding.run_commands(
            conversation.speaker(),
            conversation.guard_messages,
            conversation.prompt_text,
            is_whole=conversation.ends_with_commands_only,
        )

    def _conversation(self, body: bytes) -> Conversation | None:
        request = parsed_request(body)
        messages = self.protocol.messages(request) if isinstance(request, dict) else None
        if messages is None:
            return None
        check_number(messages)
        return Conversation(self.state, self.client, self.grant, self.protocol, self.meter, request, messages)

    def _upstream(self, body: bytes) -> AbstractAsyncContextManager[httpcore.Response]:
        backend = self.grant.backend
        headers = self.client.headers.forwarded(backend, with_credential=True, body_length=len(body))
        self.meter.forwarding()
        return self.state.upstreams.request(
            backend, self.client.method, self.path, headers, body, self.client, self.meter.model
        )

    async def _converse(
        self, delivery: Delivery, body: bytes, messages: list[Message], facts: SessionFacts
    ) -> None:
        """Ask the model server until there is an answer for the client."""
        conversation = delivery.conversation
        request: dict[str, Any] = conversation.request
        reader: StreamReader = self.protocol.reader(request)
        reader.lead = delivery.lead
        if facts.cuts:
            reader.answer.said.watch(facts.max_repeated_words)
        choices = request.get("n")
        reasks_left = 0 if isinstance(choices, int) and choices > 1 else MAX_REASKS
        blocked = await self._ask(delivery, body, reader, reasks_left, None)
        known = 0
        while blocked is not None:
            more = (
                delivery.verdicts.whole_answer(blocked) if blocked.messages else conversation.before[known:]
            )
            messages, known = [*messages, *more], len(conversation.before)
            again = self.protocol.continued(request, messages, blocked)
            if delivery.verdicts.without_tools and request.get("tools"):
                again |= {"tool_choice": self.protocol.no_tools}
            body = await self.state.off_loop(len(body), partial(orjson.dumps, again))
            reader = reader.next_reader()
            if facts.cuts:
                reader.answer.said.watch(facts.max_repeated_words)
            reasks_left -= 1
            blocked = await self._ask(delivery, body, reader, reasks_left, blocked)

    async def _ask(
        self,
        delivery: Delivery,
        body: bytes,
        reader: StreamReader,
        reasks_left: int,
        blocked: Answer | None,
    ) -> Answer | None:
        """Forward a request and the answer; return the answer if all its calls were blocked and there is another try.

        Parameters
        ----------
        blocked
            The answer before, if this is such a try.
        """
        conversation = delivery.conversation
        asking = await self.state.off_loop(len(body), lambda: conversation.with_usage(body))
        reader.hides_usage = asking is not body
        try:
            async with self._upstream(asking) as response:
                begun = None
                if asking is not body and response.status in (400, 422):
                    begun = BegunBody(response)
                    if USAGE_OPTION.encode() in await begun.read(MAX_ERROR_BYTES):
                        # Older servers reject the option: ask as the client did.
                        conversation.note_without_usage()
                        return await self._ask(delivery, body, reader, reasks_left, blocked)
                self.meter.is_answered = self.meter.is_answered or response.status == 200
                kind = kind_of(response) if response.status == 200 else None
                if kind == "stream":
                    return await delivery.stream(response, reader, reasks_left)
                if kind is not None:
                    return await delivery.whole(response, reasks_left)
                if response.status == 200:
                    self.meter.count_error("unreadable")
                if blocked is None:
                    await relay(self.client, response, begun)
                    return None
        except GatewayError:
            if blocked is None:
                raise
        # The model server fails when it is asked again.
        await delivery.end_with_reasons(blocked, reader)
        return None
