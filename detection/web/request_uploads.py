"""Writes uploaded files to disk as they arrive, for the page that accepts files; other pages receive none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, BinaryIO

from django.core.files.uploadhandler import FileUploadHandler, SkipFile, StopUpload

from detection.services.errors import ServiceError
from detection.services.ingestion import import_files

_PATH = re.compile("|".join(import_files.UPLOAD_PATHS))


class UploadedTranscript:
    """A file that has arrived; removed at the end of the request unless it was moved elsewhere."""

    def __init__(self, name: str, path: Path, size: int) -> None:
        self.name, self.path, self.size = name, path, size

    def close(self) -> None:
        """Remove the file, if it is still there."""
        self.path.unlink(missing_ok=True)


class TranscriptUploadHandler(FileUploadHandler):
    """Django's upload handler of the whole site."""

    _file: BinaryIO | None = None
    _path: Path

    def __init__(self, request: Any = None) -> None:
        super().__init__(request)
        self._count, self._bytes = 0, 0

    def new_file(self, *arguments: Any, **more: Any) -> None:
        """Start a file; skip it on other pages."""
        super().new_file(*arguments, **more)
        if self.request is None or not _PATH.fullmatch(self.request.path_info):
            raise SkipFile
        self._count += 1
        if self._count > import_files.MAX_FILES:
            self._stop(import_files.too_many())
        try:
            import_files.check_upload(0)
            self._path = import_files.new_file()
            self._file = self._path.open("wb")
        except ServiceError as error:
            self._stop(error)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        """Write a piece."""
        self._bytes += len(raw_data)
        if self._bytes > import_files.MAX_UPLOAD_BYTES:
            self._stop(import_files.too_large())
        if self._file is not None:
            try:
                self._file.write(raw_data)
            except OSError:
                self._stop(import_files.storage_full())

    def file_complete(self, file_size: int) -> Any:
        """Return the file."""
        if self._file is None:
            return None
        try:
            self._file.close()
        except OSError:
            self._stop(import_files.storage_full())
        self._file = None
        return UploadedTranscript(self.file_name or "", self._path, file_size)

    def upload_interrupted(self) -> None:
        """Remove the file that was being written."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _stop(self, error: ServiceError) -> None:
        # The rest of the body is read and dropped, because a browser shows no response before it has sent everything.
        self.request.upload_error = error  # type: ignore[union-attr]
        self.upload_interrupted()
        raise StopUpload(connection_reset=False)
