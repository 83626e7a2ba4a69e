"""The RSGI application: from Granian's request to the thread that answers it, and the response at the deadline."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from detection.api import otlp_responses, problems
from detection.api.long_texts import LongTextCutter
from detection.api.problems import Problem
from detection.api.request_bodies import MAX_BODY_BYTES, MAX_TELEMETRY_BYTES
from detection.services.keys import Principal
from detection.web import ending
from detection.web.unfinished_bodies import BodyTimeout
from loopguard_site import interpreter, succession
from loopguard_site.front import traffic, uploads
from loopguard_site.front.bodies import BodyIncomplete, BodyReader
from loopguard_site.front.guard_use import GuardUse
from loopguard_site.front.traffic import Traffic
from loopguard_site.front.turns import Turns, WaitingRequest
from loopguard_site.front.uploads import UploadReader
from loopguard_site.front.wsgi_calls import Application, Responder, RsgiScope, environ_of
from loopguard_site.host_header import names_a_host

log = structlog.get_logger(__name__)
MARGIN_SECONDS: Final = 0.05
"""How much earlier the thread's deadline is, so that its own response, which knows the reason, arrives in time."""
SERVING_SECONDS: Final = 0.5
"""From the first turn of the loop until requests are accepted, which takes some milliseconds."""
MAX_PAYERS: Final = 10_000
HOOKS: Final = "/api/v1/hooks/"
"""Long strings in bodies to these paths are cut as they arrive."""
EXCHANGE: Final = "/api/v1/install-codes/exchange"
_HEALTHY: Final = b'{"status":"ok"}'
_JSON: Final = [("content-type", "application/json"), ("cache-control", "no-store")]
_TOO_SLOW = Problem(
    408,
    "body_timeout",
    "The body did not arrive in time. Send it within ten seconds, or at 16 KiB per second.",
    headers={"Connection": "close"},
)
_NO_HOST = Problem(
    400,
    "invalid_host",
    "Send the header `Host` once, with the host name of this address.",
    headers={"Connection": "close"},
)
_INCOMPLETE = Problem(
    400,
    "incomplete_body",
    "The body ended early, or has an invalid chunk. Nothing of it was stored; send it again.",
    headers={"Connection": "close"},
)
_TOO_MANY = Problem(429, "too_many_waiting", "Too many requests with this key are waiting. Retry later.")


class ServedRequest(WaitingRequest):
    """One request, from the end of its body to its response."""

    __slots__ = ("_claims", "_front", "environ", "loop", "protocol", "responded")

    def __init__(
        self,
        front: Front,
        kind: Traffic,
        payer: tuple[str, str],
        body: bytes,
        scope: RsgiScope,
        protocol: Any,
    ) -> None:
        super().__init__(kind, payer, len(body))
        self._front, self.protocol, self.loop = front, protocol, front.loop
        self.environ = environ_of(scope, body)
        self.responded: asyncio.Future[None] = self.loop.create_future()
        self._claims = [True]

    def claim(self) -> bool:
        """Return true for the first caller only, in any thread, which then sends the response."""
        try:
            return self._claims.pop()
        except IndexError:
            return False

    def answer(self) -> None:
        """Call the application and send its response; in a thread."""
        if time.monotonic() >= self.environ["loopguard.deadline"]:
            # Its turn came too late: to begin would only delay those who still have time.
            self.loop.call_soon_threadsafe(partial(self._front.miss, self, is_waiting=True))
            return
        responder = Responder(self.protocol, self.loop, self.claim)
        result: Any = None
        try:
            result = self._front.application(self.environ, responder.start)
            responder.send(result)
        except Exception:
            log.exception("response_failed", path=self.environ["PATH_INFO"])
        finally:
            if hasattr(result, "close"):
                result.close()
            self.environ["wsgi.input"].close()
            self._front.note_payer(self.environ)
            self.weight = self.environ.get("loopguard.weight", 1.0)
            self.loop.call_soon_threadsafe(self.end)

    def respond(self, problem: Problem) -> bool:
        """Respond with a problem, in the event loop; False if a response has already been sent."""
        is_first = self.claim()
        if is_first:
            respond(self.protocol, problem, self.environ["PATH_INFO"], self.environ.get("CONTENT_TYPE"))
            self.end()
        return is_first

    def end(self) -> None:
        """Let Granian forget the request."""
        if not self.responded.done():
            self.responded.set_result(None)


class Front:
    """Granian's RSGI application.

    Parameters
    ----------
    application
        The WSGI application that answers everything but the health check.
    threads
        How many threads call it, besides one for probes.
    shared_folder
        Folder that all processes of `web` on this port share; None for a single process.
    guard_seconds
        The longest time to the response of a guard call.
    drain_seconds
        How long to go on answering after SIGTERM, with a readiness that says that the process ends.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        application: Application,
        threads: int,
        shared_folder: Path | None = None,
        guard_seconds: float = 1.5,
        drain_seconds: float = 0.0,
    ) -> None:
        self.application = application
        self._threads = threads
        self._guard_seconds, self._drain_seconds = guard_seconds, drain_seconds
        self._turns = Turns(threads, guard_use=GuardUse(shared_folder))
        self._probes: queue.SimpleQueue[ServedRequest] = queue.SimpleQueue()
        self._principals: dict[str, Principal] = {}

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads; called once in the process that serves."""
        self.loop = loop
        interpreter.prepare()
        self._bodies = BodyReader()
        self._uploads = UploadReader(loop)
        for number in range(self._threads):
            threading.Thread(target=self._serve, name=f"web-{number}", daemon=True).start()
        threading.Thread(target=self._serve_probes, name="web-probes", daemon=True).start()
        succession.end_with_supervisor()
        if self._drain_seconds:
            loop.add_signal_handler(signal.SIGTERM, self._drain)
        loop.call_later(SERVING_SECONDS, succession.note_serving)

    def _drain(self) -> None:
        """Answer for a while longer, so that whoever asks about the readiness sends no more; a second signal ends it.

        Granian's own handler of SIGINT then accepts no more connections, and lets requests in flight finish.
        """
        if ending.is_ending.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            return
        ending.is_ending.set()
        self.loop.call_later(self._drain_seconds, os.kill, os.getpid(), signal.SIGINT)

    async def __rsgi__(self, scope: RsgiScope, protocol: Any) -> None:
        """Answer one request."""
        path, headers = scope.path, scope.headers
        if not names_a_host(headers.get_all("host")):
            respond(protocol, _NO_HOST, path, headers.get("content-type"))
            return
        if path == "/healthz":
            protocol.response_bytes(200, _JSON, _HEALTHY)
            return
        if path == "/readyz" and ending.is_ending.is_set():
            protocol.response_bytes(503, _JSON, ending.NOT_READY)
            return
        if uploads.is_upload(scope):
            await self._upload(scope, protocol)
            return
        length = headers.get("content-length")
        body = b""
        cutter = LongTextCutter() if path.startswith(HOOKS) and "content-encoding" not in headers else None
        has_body = (length is not None and length != "0") or "transfer-encoding" in headers
        # Without a key, the API needs no body, except where a code becomes one.
        if has_body and (not path.startswith("/api/") or "authorization" in headers or path == EXCHANGE):
            try:
                limit = MAX_TELEMETRY_BYTES if otlp_responses.is_otlp(path) else MAX_BODY_BYTES
                body = await self._bodies.read(protocol, length, cutter, limit=limit)
            except BodyTimeout:
                respond(protocol, _TOO_SLOW, path, headers.get("content-type"))
                return
            except BodyIncomplete:
                respond(protocol, _INCOMPLETE, path, headers.get("content-type"))
                return
        kind = traffic.traffic_of(path)
        seconds = traffic.seconds_of(kind, headers.get(traffic.BUDGET_HEADER), self._guard_seconds)
        call = ServedRequest(self, kind, self._payer(scope), body, scope, protocol)
        if cutter is not None and str(cutter.received) == length:
            call.environ["CONTENT_LENGTH"] = str(len(body))
        await self._answer(call, seconds)

    async def _answer(self, call: ServedRequest, seconds: float) -> None:
        """Have a thread answer, and wait for that."""
        call.environ["loopguard.deadline"] = time.monotonic() + seconds - min(MARGIN_SECONDS, seconds / 10)
        if call.traffic == Traffic.PROBE:
            self._probes.put(call)
        elif not self._turns.put(call):
            call.respond(_TOO_MANY)
            return
        timer = self.loop.call_later(seconds, self._expire, call)
        await call.responded
        timer.cancel()

    async def _upload(self, scope: RsgiScope, protocol: Any) -> None:
        """Answer a request whose body goes to disk: the application first says whether it may, and then reads it."""
        size = int(scope.headers["content-length"])
        admission = uploads.UploadAdmission()
        asked = ServedRequest(self, Traffic.INTERACTIVE, self._payer(scope), b"", scope, admission)
        asked.environ |= uploads.admission_environ(scope.path, size)
        await self._answer(asked, traffic.SECONDS[Traffic.INTERACTIVE])
        try:
            if not admission.is_granted:
                await self._uploads.drop(scope, protocol)
                admission.respond(protocol)
                return
            file = await self._uploads.read(protocol, size)
        except BodyTimeout:
            respond(protocol, _TOO_SLOW, scope.path, scope.headers.get("content-type"))
            return
        except uploads.UploadRejected as error:
            respond(protocol, error.problem, scope.path, scope.headers.get("content-type"))
            return
        call = ServedRequest(self, Traffic.BULK, self._payer(scope), b"", scope, protocol)
        call.environ["wsgi.input"] = file
        await self._answer(call, uploads.ANSWER_SECONDS)
        if not call.started_at:
            file.close()  # no thread has taken it

    def note_payer(self, environ: dict[str, Any]) -> None:
        """Remember whose key a request came with, once the application has accepted it."""
        principal = environ.get("loopguard.principal")
        if principal is not None:
            if len(self._principals) >= MAX_PAYERS:
                self._principals.clear()
            self._principals[environ["HTTP_AUTHORIZATION"]] = principal

    def _payer(self, scope: RsgiScope) -> tuple[str, str]:
        """Return the project and key that a request is charged to; of an unknown key, the client's address."""
        principal = self._principals.get(scope.headers.get("authorization", ""))
        if principal is None:
            return scope.client.rpartition(":")[0], ""
        return principal.project_slug, principal.public_id

    def _expire(self, call: ServedRequest) -> None:
        """Respond in place of a thread: the deadline has passed."""
        self.miss(call, is_waiting=call.traffic != Traffic.PROBE and self._turns.leave(call))

    def miss(self, call: ServedRequest, *, is_waiting: bool) -> None:
        """Respond to a request whose deadline has passed, in the event loop, and count it if it is one of the guard."""
        problem = problems.unavailable(problems.DEADLINE_PASSED)
        if call.respond(problem) and call.traffic == Traffic.GUARD:
            principal = self._principals.get(call.environ.get("HTTP_AUTHORIZATION", ""))
            problems.note_missed_guard("waiting" if is_waiting else "running", problem, principal)

    def _serve(self) -> None:
        while True:
            call = self._turns.take()
            try:
                call.answer()
            finally:
                self._turns.done(call)

    def _serve_probes(self) -> None:
        while True:
            call = self._probes.get()
            if not call.responded.done():
                call.answer()


def respond(protocol: Any, problem: Problem, path: str, content_type: str | None) -> None:
    """Send the response of a problem to a request with this path and content type."""
    request_id = f"req_{random.getrandbits(96):024x}"
    status, kind, body = problems.rendered(problem, request_id, path, content_type or "")
    headers = {"content-type": kind, "x-request-id": request_id, **problems.headers_of(problem, status)}
    protocol.response_bytes(status, [*headers.items()], body)
