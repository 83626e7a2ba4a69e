"""LiteLLM's generic guardrail: reads conversations and answers of its proxy, and rejects answers with blocked calls.

The proxy sends each request before it forwards it, and each answer before its end, both in the shape of chat
completions whatever the protocol of the client. It can reject an answer or change texts; it cannot drop a call or ask
again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import orjson
import structlog
from django.db import DatabaseError

from detection import clock
from detection.gateway.access import while_granted
from detection.gateway.client import Client
from detection.gateway.errors import GatewayError
from detection.gateway.guarding import GuardUnavailable, Speaker
from detection.gateway.histories import FACTS_SECONDS
from detection.gateway.loop_state import LoopState, ShownRequest
from detection.gateway.memory import conversation_key
from detection.gateway.protocols import sessions
from detection.gateway.protocols.answer_text import AnswerText
from detection.gateway.protocols.answers import (
    Answer,
    Message,
    ToolCall,
    canonical_arguments,
    dicts,
    resolve,
    text_field,
)
from detection.gateway.protocols.chat import Chat
from detection.gateway.protocols.rewrites import Rewrite, Rewrites, occurrence_of
from detection.gateway.request_body import check_number, parsed_request, request_body
from detection.models import KeyScope
from detection.services import keys
from detection.services.gateway.conversations import session_facts
from detection.services.keys import Principal
from detection.web.documents import stop_notice

log = structlog.get_logger(__name__)
PATH: Final = b"/gateway/-/litellm/beta/litellm_basic_guardrail_api"
"""No backend has such a name. LiteLLM adds what follows ``litellm`` to the address in its configuration."""
NAME: Final = "litellm"
"""Of the integration, and of the backend unless the configuration gives another one."""
ITEM_ID: Final = "fc_"
"""How ids of items of responses begin. LiteLLM shows them instead of ids of calls in answers, but not in requests."""
_CHAT: Final = Chat()
_PASSES: Final[dict[str, Any]] = {"action": "NONE"}


class LiteLLMGuardrail:
    """One request of LiteLLM's proxy."""

    def __init__(self, state: LoopState, client: Client) -> None:
        self.state, self.client = state, client

    async def serve(self) -> None:
        """Serve the request."""
        principal = await self._principal()
        with self.state.exchange(self.client):
            verdict = await self._verdict(principal)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await self.client.respond(200, headers, orjson.dumps(verdict))

    async def _verdict(self, principal: Principal) -> dict[str, Any]:
        owner = principal.public_id
        async with request_body(self.client, self.state.unfinished, self.state.memory_budget, owner) as body:
            shown = await self.state.off_loop(len(body), lambda: self._read(body))
            call = GuardrailCall(self.state, principal, shown)
            async with while_granted(principal, self.client):
                if shown.get("input_type") == "response":
                    return await call.judge_answer(len(body))
                return await call.judge_request(len(body))

    async def _principal(self) -> Principal:
        headers = self.client.headers
        token = headers.text("x-api-key") or headers.text("authorization").removeprefix("Bearer ").strip()
        if not token.isascii() or not keys.looks_like_key(token):
            raise GatewayError(401, "unknown_key", "Set `api_key` of the guardrail to a key of the project.")
        try:
            principal = await self.state.access.look_up(token, lambda: keys.authenticate(token))
        except DatabaseError:
            detail = "The database is unavailable. Try again."
            raise GatewayError(503, "unavailable", detail, [(b"retry-after", b"2")]) from None
        if principal is None:
            raise GatewayError(401, "unknown_key", "The key is unknown, revoked or expired.")
        if KeyScope.GUARD not in principal.scopes:
            raise GatewayError(403, "missing_scope", "The key needs the `guard` scope.")
        if principal.is_archived:
            raise GatewayError(403, "project_archived", keys.PROJECT_ARCHIVED)
        return principal

    def _read(self, body: bytes) -> dict[str, Any]:
        shown = parsed_request(body)
        if not isinstance(shown, dict) or shown.get("input_type") not in ("request", "response"):
            detail = "The body must be an object with `input_type` `request` or `response`."
            raise GatewayError(400, "invalid_body", detail)
        return shown


class GuardrailCall:
    """One request to a model as LiteLLM shows it, and LoopGuard's decisions about it."""

    def __init__(self, state: LoopState, principal: Principal, shown: dict[str, Any]) -> None:
        self.state, self.principal, self._shown = state, principal, shown
        given = shown.get("request_headers")
        self._headers = {
            str(name).lower(): value
            for name, value in (given.items() if isinstance(given, dict) else ())
            if isinstance(value, str) and value != "[present]"
        }
        # Different virtual keys of LiteLLM are different agents.
        self._owner = f"{principal.public_id}:{text_field(shown.get('request_data'), 'user_api_key_hash')}"
        self._place = (principal.project_id, text_field(shown, "litellm_call_id"))

    def _header(self, name: str) -> str:
        return self._headers.get(name, "")

    def _given_name(self) -> str:
        return self.principal.redactor.name(sessions.given_name(self._header, {}))

    async def judge_request(self, size: int) -> dict[str, Any]:
        """Process the results of a request; return what LiteLLM should do with it.

        Parameters
        ----------
        size
            Of the body in bytes.
        """
        rows = dicts(self._shown.get("structured_messages"))
        if not rows:
            return _PASSES
        check_number(rows)
        messages, request = await self.state.off_loop(size, lambda: self._read_conversation(rows, size))
        if self._place[1]:
            self.state.shown_requests.put(self._place, request, size)
        if not request.session:
            return _PASSES
        return await self._with_facts(request, rows, messages)

    def _read_conversation(self, rows: list[Message], size: int) -> tuple[list[Message], ShownRequest]:
        """Return the messages with the ids that their calls were evaluated with, and what the guard reads."""
        self._learn_ids(rows)
        messages = [self._renamed(row) for row in rows]
        beginning = sessions.beginning_of(self._owner, _CHAT.system_text({"messages": messages}), messages)
        name = self._given_name() or sessions.derived_name(beginning, _first_call(messages))
        return messages, ShownRequest(name, beginning, _CHAT.for_guard(messages), size)

    async def _with_facts(
        self, shown: ShownRequest, rows: list[Message], messages: list[Message]
    ) -> dict[str, Any]:
        name = shown.session
        project_id, about = self.principal.project_id, self._speaker(name)
        key = self.principal.public_id
        try:
            facts = await self.state.workers.run(
                lambda: session_facts(project_id, name, about.agent, about.backend, about.model, key),
                FACTS_SECONDS,
            )
            shown.max_repeated_words = facts.max_repeated_words
            if facts.stopped:
                return _blocked(stop_notice(facts.stopped, self.principal.project_slug, name))
            notices = await self.state.guarding.evaluate_results(about, shown.messages)
            shown.is_new = not notices.is_resent
        except (DatabaseError, GuardUnavailable) as error:
            log.warning("litellm_request_not_evaluated", session=name, error=str(error)[:200])
            return _PASSES
        if notices.is_stop:
            return _blocked(notices.text)
        rewrites = self.state.memory.rewrites_of((project_id, name), facts.rewrites)
        if notices.text:
            rewrites = await self._noted(name, rewrites, messages, notices.text)
        return self._rewritten(rows, messages, rewrites)

    async def judge_answer(self, size: int) -> dict[str, Any]:
        """Evaluate the calls of an answer, or report its text; return what LiteLLM should do with it.

        See `judge_request`.
        """
        calls = [_tool_call(call, place) for place, call in enumerate(dicts(self._shown.get("tool_calls")))]
        shown = self.state.shown_requests.get(self._place) or ShownRequest("", None, [])
        messages = shown.messages
        if not (calls or messages):
            return _PASSES
        name = (
            shown.session
            or self._given_name()
            or sessions.derived_name(
                shown.beginning or sessions.beginning_of(self._owner, "", []), calls[0] if calls else None
            )
        )
        answer = Answer(
            text_field(self._shown, "litellm_call_id"), self._model, calls=calls, said=self._said()
        )
        about = self._speaker(name, shown.max_repeated_words)
        if not calls:
            if name:
                now = clock.now().timestamp()
                report = self.state.guarding.report(about, messages, answer, now, is_read=shown.is_new)
                self.state.run_later(report)
            return _PASSES
        if calls[0].id.startswith(ITEM_ID):
            key = await self.state.off_loop(size + shown.size, lambda: self._given_key(messages))
            self.state.given_items.put(key, tuple(calls))
        documents = [_CHAT.call_document(call, call.arguments) for call in calls]
        conversation = [*messages, *_CHAT.for_guard(_CHAT.answer_messages(documents))]
        try:
            evaluation = await self.state.guarding.evaluate(
                about, conversation, answer, None, is_retry=sessions.is_retry(self._header)
            )
        except GuardUnavailable:
            # What happens without a verdict is the setting `unreachable_fallback` of LiteLLM.
            detail = "LoopGuard could not evaluate the answer."
            raise GatewayError(503, "unavailable", detail, [(b"retry-after", b"2")]) from None
        resolution = resolve(evaluation.verdicts, 0)
        if resolution.blocked:
            texts = (evaluation.verdicts[number].message for number in sorted(resolution.blocked))
            reasons = dict.fromkeys(text for text in texts if text)
            return _blocked(resolution.text or "\n\n".join(reasons))
        notes = {
            call.id: verdict.message
            for call, verdict in zip(calls, evaluation.verdicts, strict=True)
            if verdict.decision == "warn" and verdict.message
        }
        if evaluation.notice:
            notes.setdefault(calls[0].id, evaluation.notice)
        if notes and calls[0].id:
            ids = [one for message in messages for one in _CHAT.call_ids(message)]
            rewrite = Rewrite(calls[0].id, occurrence_of(calls[0].id, ids), notes=notes)
            await self.state.histories.keep(self.principal.project_id, name, rewrite)
        return _PASSES

    @property
    def _model(self) -> str:
        return sessions.printable(self._shown.get("model") or "", 200)

    def _said(self) -> AnswerText:
        said, texts = AnswerText(), self._shown.get("texts")
        for text in texts if isinstance(texts, list) else ():
            said.text.add(text if isinstance(text, str) else "")
        return said

    def _speaker(self, name: str, max_repeated_words: int = 0) -> Speaker:
        more = self._shown.get("additional_provider_specific_params")
        return Speaker(
            principal=self.principal,
            session=name,
            shape=_CHAT.shape,
            backend=sessions.printable(text_field(more, "backend"), 128) or NAME,
            model=self._model,
            agent=sessions.agent_name(self._header),
            parent_session=sessions.parent_name(self._header),
            labels=sessions.labels(self._header),
            integration=NAME,
            max_repeated_words=max_repeated_words,
        )

    # Ids of calls

    def _given_key(self, messages: list[Message]) -> tuple[int, str, bytes]:
        return conversation_key(self.principal.project_id, self._owner, messages)

    def _learn_ids(self, rows: list[Message]) -> None:
        """Note which ids the calls of the last answer have now, if they had those of items when they were evaluated."""
        last = next((n for n in range(len(rows) - 1, -1, -1) if _CHAT.call_ids(rows[n])), None)
        if last is None:
            return
        key = self._given_key(_CHAT.for_guard([self._renamed(row) for row in rows[:last]]))
        given = self.state.given_items.get(key) or ()
        calls = _CHAT.answer_of_message(rows[last]).calls
        if [_what(call) for call in given] == [_what(call) for call in calls]:
            for before, now in zip(given, calls, strict=True):
                self.state.item_ids.put((self.principal.project_id, now.id), before.id)

    def _renamed(self, row: Message) -> Message:
        """Return a message whose calls have the ids with which they were evaluated."""

        def known(call_id: str) -> str:
            return self.state.item_ids.get((self.principal.project_id, call_id)) or call_id

        if _CHAT.call_ids(row):
            calls = [call | {"id": known(text_field(call, "id"))} for call in dicts(row["tool_calls"])]
            return row | {"tool_calls": calls}
        call_id = text_field(row, "tool_call_id")
        return row | {"tool_call_id": known(call_id)} if call_id else row

    # Warnings before results

    async def _noted(
        self, name: str, rewrites: list[Rewrite], messages: list[Message], text: str
    ) -> list[Rewrite]:
        """Return the rewrites with a warning before the last result."""
        last = next((text_field(one, "tool_call_id") for one in reversed(messages) if _is_result(one)), "")
        ids: list[str] = []
        for message in messages:
            calls = _CHAT.call_ids(message)
            if last in calls:
                key = (calls[0], occurrence_of(calls[0], ids))
                before = next((one for one in rewrites if one.key == key), Rewrite(*key))
                changed = replace(before, notes={last: text} | before.notes)
                await self.state.histories.keep(self.principal.project_id, name, changed)
                return [*(one for one in rewrites if one.key != key), changed]
            ids += calls
        return rewrites

    def _rewritten(
        self, rows: list[Message], messages: list[Message], rewrites: list[Rewrite]
    ) -> dict[str, Any]:
        """Return what LiteLLM does with a request that passes: it puts warnings before results."""
        changed = _CHAT.rewritten(messages, Rewrites(rewrites, with_notes=True)) if rewrites else messages
        if len(changed) != len(rows) or all(a is b for a, b in zip(changed, messages, strict=True)):
            return _PASSES
        shown = [
            row if new is old else row | {"content": new.get("content")}
            for row, new, old in zip(rows, changed, messages, strict=True)
        ]
        texts = [text for row in shown for text in _texts(row)]
        is_known = [text for row in rows for text in _texts(row)] == self._shown.get("texts")
        return {"action": "GUARDRAIL_INTERVENED", "structured_messages": shown} | (
            {"texts": texts} if is_known and len(texts) == len(self._shown["texts"]) else {}
        )


def _blocked(text: str) -> dict[str, Any]:
    return {"action": "BLOCKED", "blocked_reason": text}


def _first_call(messages: list[Message]) -> ToolCall | None:
    found = next((message for message in messages if _CHAT.call_ids(message)), None)
    return _CHAT.answer_of_message(found).calls[0] if found else None


def _tool_call(call: Message, place: int) -> ToolCall:
    function = call.get("function")
    return ToolCall(
        text_field(call, "id"), text_field(function, "name"), text_field(function, "arguments"), place
    )


def _what(call: ToolCall) -> tuple[str, str]:
    return call.name, canonical_arguments(call.arguments)


def _is_result(message: Message) -> bool:
    return message.get("role") == "tool"


def _texts(row: Message) -> list[str]:
    """Return the texts of a message as LiteLLM lists them."""
    content = row.get("content")
    if isinstance(content, str):
        return [content]
    return [text for part in dicts(content) if isinstance(text := part.get("text"), str)]
