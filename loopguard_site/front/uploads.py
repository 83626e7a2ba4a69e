"""Large uploads: the application is asked first, without the body; only then is the body read, to disk.

A body of another path, or one that fits into memory, never comes here. At most `MAX_UPLOADS` are read at a time in each
process of `web`, under the rule of `detection.web.unfinished_bodies`, into a file without a name, which vanishes with
the process.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Final, TypeVar, cast

from detection.api.problems import Problem, of_exception
from detection.api.request_bodies import INCOMPLETE, MAX_BODY_BYTES
from detection.services.ingestion import import_files
from detection.web.unfinished_bodies import BodyTimeout, UnfinishedBodies
from loopguard_site.front.wsgi_calls import Headers, RsgiScope

MAX_UPLOADS: Final = 8
MAX_DROPPED_BYTES: Final = 64 * 1024**2
"""Of a rejected upload: a browser shows the response only after it has sent everything."""
ANSWER_SECONDS: Final = 120.0
"""The longest time to the response, from the arrival of the last byte: the files are written once more."""
_PIECE_BYTES: Final = 1024**2
_SPACE_CHECK_BYTES: Final = 16 * 1024**2
_PATHS: Final = re.compile("|".join(import_files.UPLOAD_PATHS))
_API: Final = "/api/"
Value = TypeVar("Value")


class UploadRejected(Exception):
    """The upload cannot be read; `problem` is the response."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class UploadAdmission:
    """Takes the response to the question whether an upload may begin, in place of Granian's protocol object."""

    def __init__(self) -> None:
        self._response: tuple[int, Headers, bytes] = 500, [], b""

    @property
    def is_granted(self) -> bool:
        """Whether the body may be read."""
        return self._response[0] == 204

    def response_bytes(self, status: int, headers: Headers, body: bytes) -> None:
        """Take the response."""
        self._response = status, headers, body

    def respond(self, protocol: Any) -> None:
        """Send the response, which is a rejection."""
        status, headers, body = self._response
        protocol.response_bytes(status, [*headers, ("connection", "close")], body)


def is_upload(scope: RsgiScope) -> bool:
    """Return whether a request has a body that is too large for memory, on a path that accepts such bodies."""
    length = scope.headers.get("content-length") if scope.method == "POST" else None
    return (
        length is not None
        and length.isascii()
        and length.isdigit()
        and len(length) < 20
        and int(length) > MAX_BODY_BYTES
        and _PATHS.fullmatch(scope.path) is not None
    )


def admission_environ(path: str, size: int) -> dict[str, Any]:
    """Return what differs in the environ of the question. A form cannot be posted without its token, so it is a GET."""
    return {
        "REQUEST_METHOD": "POST" if path.startswith(_API) else "GET",
        "CONTENT_LENGTH": "",
        "loopguard.upload_bytes": size,
    }


class UploadReader:
    """Reads uploads; to be used in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="web-uploads")
        self._unfinished = UnfinishedBodies()
        self._reading = self._dropping = 0

    async def read(self, protocol: Any, size: int) -> BinaryIO:
        """Return a file with the body.

        Parameters
        ----------
        size
            Bytes of the body.

        Raises
        ------
        BodyTimeout
            If it is too slow.
        UploadRejected
            If too many are read at this time, the disk is full, or the body ends early.
        """
        if self._reading >= MAX_UPLOADS:
            raise UploadRejected(
                Problem(503, "too_many_uploads", "Too many uploads are in progress. Retry later.")
            )
        self._reading += 1
        file: BinaryIO | None = None
        try:
            file = await self._in_thread(_new_file)
            if await self._receive(protocol, file, size) < size:
                raise UploadRejected(Problem(400, "incomplete_body", INCOMPLETE))
            await self._in_thread(lambda: file.seek(0))
        except BaseException:
            if file is not None:
                file.close()
            raise
        finally:
            self._reading -= 1
        return file

    async def drop(self, scope: RsgiScope, protocol: Any) -> None:
        """Read the body of a rejected form and forget it, within limits."""
        if scope.path.startswith(_API) or self._dropping >= MAX_UPLOADS:
            return
        self._dropping += 1
        try:
            await self._receive(protocol, None, MAX_DROPPED_BYTES)
        except BodyTimeout:
            pass
        finally:
            self._dropping -= 1

    async def _receive(self, protocol: Any, file: BinaryIO | None, size: int) -> int:
        """Write the body to the file until `size` bytes have arrived. Returns how many did."""
        arrived, checked, waiting = 0, 0, 0
        pieces: list[bytes] = []
        parts = aiter(protocol)
        with self._unfinished.reading() as reading:
            while arrived < size:
                try:
                    part = await reading.part(anext(parts))
                except StopAsyncIteration:
                    break
                arrived += len(part)
                reading.arrived(len(part))
                if file is None:
                    continue
                pieces.append(part)
                waiting += len(part)
                if waiting >= _PIECE_BYTES or arrived >= size:
                    is_due = arrived >= checked + _SPACE_CHECK_BYTES
                    await self._in_thread(_write, file, pieces, size - arrived if is_due else None)
                    checked = arrived if is_due else checked
                    pieces, waiting = [], 0
        return arrived

    async def _in_thread(self, work: Callable[..., Value], *arguments: Any) -> Value:
        try:
            return await self._loop.run_in_executor(self._writer, work, *arguments)
        except OSError:
            raise UploadRejected(of_exception(import_files.storage_full())) from None


def _new_file() -> BinaryIO:
    return cast(
        "BinaryIO", tempfile.TemporaryFile(dir=import_files.folder(), prefix=import_files.ARRIVING_PREFIX)
    )


def _write(file: BinaryIO, pieces: list[bytes], missing: int | None) -> None:
    if missing is not None and import_files.free_bytes() < missing:
        raise OSError
    file.writelines(pieces)
