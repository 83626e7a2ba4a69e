"""Access to the gateway: finds the grant of a request, even while the database is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from django.db import DatabaseError

from detection.gateway.client import Client
from detection.gateway.errors import GatewayError
from detection.gateway.workers import DatabaseWorkers
from detection.services import keys
from detection.services.gateway.conversations import OpenRequest
from detection.services.gateway.grants import (
    Grant,
    GrantCache,
    GrantDenied,
    grant_by_key,
    grant_by_path_token,
    looks_like_token,
)
from detection.services.keys import Principal
from detection.web.access_watch import PROJECT_ARCHIVED, AgentAccess, access_watch
from detection.web.known_keys import KnownKeys

log = structlog.get_logger(__name__)
Found = TypeVar("Found")
LOOKUP_SECONDS: Final = 2.0
KEY_HEADER: Final = "loopguard-key"
_DENIED: Final = {
    "unknown_key": (401, "The key or token is unknown, revoked or expired."),
    "missing_scope": (403, "The key needs the `guard` scope."),
    "project_archived": (403, keys.PROJECT_ARCHIVED),
    "unknown_backend": (404, "The project has no enabled backend with this name."),
}


@dataclass(frozen=True, slots=True)
class Address:
    """A path below ``/gateway/``.

    Attributes
    ----------
    backend
        Name of the backend.
    token
        The token in the path, or empty.
    path
        What follows, as the client sent it: the path for the backend.
    """

    backend: str
    token: str
    path: bytes


def read_address(raw_path: bytes) -> Address:
    """Read ``/gateway/{backend}/…`` or ``/gateway/{backend}/{token}/…``."""
    _, _, backend, *rest = raw_path.split(b"/")
    if any(segment.lower().replace(b"%2e", b".") in (b".", b"..") for segment in rest):
        raise GatewayError(400, "invalid_path", "The path must not contain `.` or `..` as a segment.")
    token = ""
    if rest and rest[0].startswith(b"lgw_"):
        token, rest = rest[0].decode("latin-1"), rest[1:]
    return Address(backend.decode("latin-1"), token, b"/" + b"/".join(rest) if rest else b"")


class Access:
    """The grants of one event loop.

    Parameters
    ----------
    workers, untrusted
        Look up keys that were valid lately, and all others.
    """

    def __init__(self, workers: DatabaseWorkers, untrusted: DatabaseWorkers) -> None:
        self._workers, self._untrusted = workers, untrusted
        self._known = KnownKeys()
        self._cache = GrantCache()
        self._lookups: dict[tuple[str, str], asyncio.Task[Grant]] = {}

    async def grant(self, address: Address, key: str) -> Grant:
        """Return the grant of a request.

        Raises
        ------
        GatewayError
            401, 403 or 404; 503 for a key that is not known while the database is away.
        """
        token = address.token or key
        if not token:
            raise GatewayError(
                401, "missing_key", "Send a key of the project in the header `LoopGuard-Key: lg_…`."
            )
        known_form = (
            looks_like_token(token) if address.token else token.isascii() and keys.looks_like_key(token)
        )
        if not known_form:
            raise _denied("unknown_key")
        cache_key = (keys.digest_of(token), address.backend)
        return self._cache.fresh(cache_key) or await self._looked_up(address, token, cache_key)

    async def _looked_up(self, address: Address, token: str, cache_key: tuple[str, str]) -> Grant:
        task = self._lookups.get(cache_key)
        if task is None:
            task = asyncio.create_task(self._look_up(address, token, cache_key))
            self._lookups[cache_key] = task
            task.add_done_callback(lambda _: self._lookups.pop(cache_key, None))
        try:
            return await asyncio.shield(task)
        except GrantDenied as denied:
            raise _denied(denied.code) from None
        except DatabaseError as error:
            log.warning("gateway_database_unavailable", error=str(error)[:200])
            stale = self._cache.stale(cache_key)
            if stale is None:
                detail = "The database is unavailable and the key is not known yet. Try again."
                raise GatewayError(503, "unavailable", detail, [(b"retry-after", b"2")]) from None
            return stale

    async def _look_up(self, address: Address, token: str, cache_key: tuple[str, str]) -> Grant:
        find = grant_by_path_token if address.token else grant_by_key
        try:
            grant = await self.look_up(token, lambda: find(token, address.backend))
        except GrantDenied:
            self._cache.discard(cache_key)
            raise
        self._cache.put(cache_key, grant)
        return grant

    async def look_up(self, token: str, find: Callable[[], Found]) -> Found:
        """Return what `find` returns in a thread: None or an exception for a key that is not valid."""
        digest = keys.digest_of(token)
        workers = self._workers if digest in self._known else self._untrusted
        try:
            found = await workers.run(find, LOOKUP_SECONDS)
        except GrantDenied:
            self._known.note(digest, is_valid=False)
            raise
        self._known.note(digest, is_valid=found is not None)
        return found


@asynccontextmanager
async def while_granted(principal: Principal, client: Client) -> AsyncIterator[None]:
    """Cancel the block within a second once its key or token is revoked or has expired, or its project is archived.

    Raises
    ------
    GatewayError
        401 or 403, as for the next request.
    """
    task = asyncio.current_task()
    reasons: list[str] = []

    def end(reason: str) -> None:
        reasons.append(reason)
        if task is not None and not client.is_denied:
            client.is_denied = True
            task.cancel()

    try:
        with access_watch.watching(AgentAccess(principal.key_id), end):
            yield
    except asyncio.CancelledError:
        if task is None or not client.is_denied or task.uncancel():
            raise  # the client has left
        raise _denied("project_archived" if reasons[0] == PROJECT_ARCHIVED else "unknown_key") from None


async def while_not_contained(
    asked: OpenRequest, client: Client, may_end: Callable[[], bool], answering: Coroutine[Any, Any, None]
) -> str:
    """Answer the client, or cancel that within a second once a containment stops the agent.

    Parameters
    ----------
    may_end
        Whether the answer can end cleanly now; if not, it is asked again.

    Returns
    -------
    str
        The message for the agent of a cancelled answer, or empty.
    """
    task, own, texts = asyncio.ensure_future(answering), asyncio.current_task(), list[str]()

    def end(text: str) -> None:
        if not (texts or client.has_answer or client.is_denied) and may_end():
            texts.append(text)
            task.cancel()

    try:
        with access_watch.watching(asked, end):
            await task
    except asyncio.CancelledError:
        if not texts or own is None or own.cancelling():
            raise  # the client has left, or its access has ended
        return texts[0]
    return ""


def _denied(code: str) -> GatewayError:
    status, detail = _DENIED[code]
    return GatewayError(status, code, detail)
