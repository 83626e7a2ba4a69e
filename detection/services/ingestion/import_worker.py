"""The work on uploaded transcripts, in a worker: check all files, store their sessions, and write the summary.

One worker at a time works on the imports of a project, under a lock that ends with its connection: when it dies,
another one starts the import again, and skips the events that are already stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import structlog
from django.db import OperationalError
from django.db.models import F
from django.utils import timezone

from detection.engine import durations
from detection.integrations.transcripts import TranscriptError
from detection.models import JobState, TranscriptImport
from detection.models.jobs import OPEN_STATES
from detection.selectors.prices import load_prices
from detection.services.ingestion import import_files, transcript_files
from detection.services.ingestion.run_import import FileImport, importer, summarise
from detection.services.ingestion.transcript_files import LimitExceeded, TranscriptFile
from detection.services.maintenance import recalculations
from detection.services.storage.disk_space import disk_monitor
from detection.sql.advisory_locks import AdvisoryLock, try_lock
from detection.stream.hints import Hint
from detection.stream.publisher import publish_now

log = structlog.get_logger(__name__)
MAX_SESSIONS: Final = 10_000
MAX_STARTS: Final = 10
"""Number of workers that may die during an import before it fails."""
MAX_SECONDS: Final = 4 * 3600.0
"""A judgement: 512 MB that are mostly calls take about an hour beside other work."""
QUICK_SECONDS: Final = 60.0
"""What takes longer leaves the thread that is kept free for the imports of others."""
PROGRESS_SECONDS: Final = 0.5


class ImportFailure(Exception):
    """The import cannot continue; `code` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class _ImportInterrupted(Exception):
    """The import was cancelled, or this worker shuts down."""


class _NotQuick(_ImportInterrupted):
    """The import takes longer than one may take in this thread."""


_long_imports: set[int] = set()
"""Those that took longer in the quick thread of this process."""


def run_waiting(should_stop: Callable[[], bool], *, is_quick: bool = False) -> int:
    """Work on the open imports of all projects, the oldest of each first. Returns how many ended.

    Parameters
    ----------
    should_stop
        Whether this worker shuts down; checked often. Another worker then continues the import.
    is_quick
        Leave what takes longer than `QUICK_SECONDS` to other threads, which begin it again.
    """
    rows = TranscriptImport.objects.filter(state__in=OPEN_STATES).order_by("pk")
    ended = 0
    for project_id in dict.fromkeys(rows.values_list("project_id", flat=True)):
        with try_lock(AdvisoryLock.IMPORT, project_id) as is_locked:
            row = rows.filter(project_id=project_id).select_related("project").first() if is_locked else None
            if row is None or should_stop() or (is_quick and row.pk in _long_imports):
                continue
            ended += _ImportWork(row, should_stop, is_quick=is_quick).run()
    return ended


class _ImportWork:
    """The work on one import."""

    def __init__(self, row: TranscriptImport, should_stop: Callable[[], bool], *, is_quick: bool) -> None:
        self._row, self._should_stop, self._is_quick = row, should_stop, is_quick
        self._began_at = time.monotonic()
        self._file_import: FileImport | None = None
        self._read_bytes: Callable[[], int] = lambda: 0
        self._rows = TranscriptImport.objects.filter(project_id=row.project_id, pk=row.pk)
        self._noted_at = 0.0
        self._priced_at = timezone.now()
        self._counts: Counter[str] = Counter(events=row.events)
        self._session_ids: set[int] = set()
        self._skipped: list[str] = []

    def run(self) -> bool:
        """Work until the import has ended; False if another worker has to continue."""
        row = self._row
        self._rows.filter(state=JobState.WAITING).update(started_at=timezone.now())
        self._rows.filter(state__in=OPEN_STATES).update(
            state=JobState.RUNNING, starts=F("starts") + 1, done_bytes=0, done_sessions=0
        )
        try:
            if row.starts >= MAX_STARTS:
                raise ImportFailure("interrupted", f"The import was interrupted {MAX_STARTS} times.")
            if not row.is_checked:
                self._check_or_explain()
            self._store()
        except _NotQuick:
            _long_imports.add(row.pk)
            self._rows.update(starts=F("starts") - 1)  # nothing has died
            return False
        except _ImportInterrupted:
            return self._end_if_cancelled()
        except ImportFailure as error:
            self._fail(error.code, str(error))
        except OperationalError:
            # The database restarts, or ends this transaction for another one: the import is started again.
            log.warning("import_interrupted", id=row.public_id, exc_info=True)
            return False
        except FileNotFoundError:
            if not self._end_if_cancelled():
                self._fail(
                    "file_missing",
                    "The worker cannot find the files. LOOPGUARD_IMPORT_FOLDER "
                    "must be the same folder for web and worker.",
                )
        except Exception:
            log.exception("import_failed", id=row.public_id)
            self._fail("internal_error", "Internal error. The worker log has the details.")
        else:
            self._end(JobState.FINISHED)
        return True

    def _check_or_explain(self) -> None:
        try:
            self._check()
        except LimitExceeded as error:
            raise ImportFailure("too_large", str(error)) from None
        except TranscriptError as error:
            raise ImportFailure("invalid_file", f"{error}{self._hint()}") from None

    def _check(self) -> None:
        """Read everything once, and store nothing: a file with an error is not imported in part."""
        sessions: set[str] = set()
        calls, empty = 0, []
        for file in self._files():
            count = 0
            for number, (name, event) in enumerate(transcript_files.events(self._row.kind, file)):
                count, calls = count + 1, calls + (event["type"] == "call")
                sessions.add(name)
                if len(sessions) > MAX_SESSIONS:
                    raise ImportFailure(
                        "too_many_sessions",
                        f"The files have more than {MAX_SESSIONS:,} sessions. Upload them in parts.",
                    )
                if number % 256 == 0:
                    self._keep_going()
            if not count:
                empty.append(file.name)
            self._note_skipped_lines(file)
        if not calls:
            raise TranscriptError(f"No tool call of the kind {self._row.kind} was found.")
        if empty:
            more = f" and {len(empty) - 3:,} more" if len(empty) > 3 else ""
            self._skipped.append(f"No {self._row.kind} session in {', '.join(empty[:3])}{more}.")
        self._rows.update(is_checked=True, sessions=len(sessions), skipped=self._skipped)
        self._row.skipped = self._skipped

    def _note_skipped_lines(self, file: TranscriptFile) -> None:
        if file.skipped_lines and len(self._skipped) < 10:
            self._skipped.append(
                f"{file.name}: {file.skipped_lines:,} lines are not JSON, the first is line {file.first_skipped:,}."
            )

    def _hint(self) -> str:
        """Return a sentence with the likely kind of the first file, if it differs."""
        with contextlib.suppress(ImportFailure, TranscriptError, OSError):
            for file in self._files():
                kind = transcript_files.guess_kind(file)
                return f" {file.name} looks like {kind}." if kind and kind != self._row.kind else ""
        return ""

    def _store(self) -> None:
        principal, self._priced_at = importer(self._row.project), timezone.now()
        prices = load_prices(self._row.project_id)
        for file in self._files():
            runs = self._file_import = FileImport(
                principal, self._row.kind, self._row.labels, self._row.prices, prices
            )
            try:
                for number, (name, event) in enumerate(transcript_files.events(self._row.kind, file)):
                    runs.add(name, event)
                    if number % 64 == 0:
                        self._keep_going()
                        if disk_monitor.is_full():
                            raise ImportFailure(
                                "storage_full",
                                "The disk of the database is nearly full. Free some space and upload the files again: "
                                "the import continues where it stopped.",
                            )
            finally:
                # Also of an import that ends early: a session that stays open looks alive.
                self._file_import = None
                for run in runs.end():
                    self._counts.update(events=run.added, omitted=run.omitted, live=run.session_id is None)
                    self._counts["sessions"] += 1
                    self._session_ids.update([] if run.session_id is None else [run.session_id])

    def _files(self) -> Iterator[TranscriptFile]:
        row, allowed, before = self._row, transcript_files.allowance(self._keep_going), 0
        for number, named in enumerate(row.files):
            self._read_bytes = partial(int, before)  # the file before is closed
            path = import_files.path_of(row.public_id, number)
            if path.stat().st_size != named["bytes"]:
                raise ImportFailure("incomplete_file", f"{named['name']} is incomplete. Upload it again.")
            for file in transcript_files.files_of(path, named["name"], allowed):
                self._read_bytes = self._position(before, file)
                yield file
            before += named["bytes"]

    def _position(self, before: int, file: TranscriptFile) -> Callable[[], int]:
        return lambda: min(before + file.position(), self._row.total_bytes)

    def _keep_going(self) -> None:
        """Store the progress, at most every `PROGRESS_SECONDS`, and check whether to continue."""
        now = time.monotonic()
        if now < self._noted_at + PROGRESS_SECONDS:
            return
        self._noted_at = now
        if self._should_stop():
            raise _ImportInterrupted
        if now > self._began_at + MAX_SECONDS:
            raise ImportFailure(
                "too_slow",
                f"The import took longer than {durations.span(MAX_SECONDS)}. Upload the files in parts.",
            )
        if self._is_quick and now > self._began_at + QUICK_SECONDS:
            raise _NotQuick
        is_running = self._rows.filter(state=JobState.RUNNING).update(
            done_bytes=self._read_bytes(),
            done_sessions=self._counts["sessions"],
            events=self._counts["events"] + (self._file_import.added if self._file_import else 0),
        )
        if not is_running:
            raise _ImportInterrupted
        publish_now(self._row.project_id, Hint("import", self._row.public_id))

    def _end_if_cancelled(self) -> bool:
        state = self._rows.values_list("state", flat=True).first()
        if state == JobState.CANCELLED:
            self._end(JobState.CANCELLED)
        return state != JobState.RUNNING

    def _fail(self, code: str, detail: str) -> None:
        self._end(JobState.FAILED, error=detail[:500], error_code=code)

    def _end(self, state: JobState, **values: Any) -> None:
        """Store the result of an import that has ended; an import that has been cancelled stays cancelled."""
        if self._session_ids:
            values |= {"summary": self._summary()}
        values |= {
            "events": self._counts["events"],
            "done_sessions": self._counts["sessions"],
            "skipped": [*self._row.skipped, *self._passed_over()],
        }
        if state == JobState.FINISHED:
            values["done_bytes"] = self._row.total_bytes
        ended = {"state": state, "finished_at": timezone.now()}
        if not self._rows.filter(state=JobState.RUNNING).update(**ended, **values):
            values.pop("error", None)
            values.pop("error_code", None)
            self._rows.filter(state=JobState.CANCELLED).update(**values)
        import_files.remove(self._row.public_id)
        recalculations.request_if_changed(self._row.project_id, self._priced_at)
        publish_now(self._row.project_id, Hint("import", self._row.public_id), Hint("session"))
        log.info("import_ended", id=self._row.public_id, state=str(state), events=self._counts["events"])

    def _passed_over(self) -> Iterator[str]:
        if live := self._counts["live"]:
            yield f"{live:,} sessions were recorded live and are not changed."
        if omitted := self._counts["omitted"]:
            yield f"{omitted:,} events were too large or invalid and are omitted."

    def _summary(self) -> dict[str, object]:
        return dataclasses.asdict(summarise(self._row.project, self._session_ids))
