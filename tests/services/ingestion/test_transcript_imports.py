"""Imports of uploaded transcripts: what a worker makes of good, bad, hostile, cancelled and interrupted ones."""

import gzip
import io
import json
import os
import time
import zipfile

import pytest

from detection.integrations.events import ReportedEvent
from detection.integrations.labels import NO_LABELS
from detection.models import (
    AlertEvent,
    Event,
    Incident,
    Notification,
    Session,
    TranscriptImport,
)
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, ServiceError
from detection.services.gateway import prices
from detection.services.ingestion import (
    import_files,
    import_worker,
    run_import,
    transcript_files,
    transcript_imports,
)
from detection.services.ingestion.transcript_imports import Arrived
from detection.services.retention import retention
from detection.services.storage.disk_space import disk_monitor
from detection.tasks import imports
from detection.tasks.periodic import stop_all
from tests.support.projects import make_project
from tests.support.transcripts import claude_code, lines, openai

pytestmark = pytest.mark.django_db
ANA = Actor("ana")


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path / "imports")
    return tmp_path / "imports"


@pytest.fixture
def project(db):
    return make_project("support")


def arrived(content, name="run.jsonl"):
    path = import_files.new_file()
    path.write_bytes(content)
    return Arrived(name, path)


def upload(project, *contents, kind="claude-code", names=(), **more):
    files = [
        arrived(content, name) for content, name in zip(contents, names or ["run.jsonl"] * 9, strict=False)
    ]
    return transcript_imports.create_import(project.pk, ANA, kind=kind, files=files, **more)


def worked(row, should_stop=lambda: False):
    import_worker.run_waiting(should_stop)
    row.refresh_from_db()
    return row


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return buffer.getvalue()


def test_an_upload_becomes_sessions_and_a_summary_and_its_files_are_removed(project, folder):
    row = worked(upload(project, lines(claude_code(["make test"] * 8)), prices=(3, 15)))
    assert (row.state, row.error, row.sessions, row.done_bytes) == ("finished", "", 1, row.total_bytes)
    assert row.summary["calls"] == 8
    assert row.summary["loops"] == 1
    assert row.summary["loop_cost_usd"] > 0
    assert [loop["tool"] for loop in row.summary["worst"]] == ["Bash"]
    session = Session.objects.get()
    assert session.is_imported
    assert session.ended_at is not None
    assert list(folder.iterdir()) == []


def test_without_given_prices_those_of_the_project_apply(project):
    prices.save_price(
        project.pk,
        ANA,
        model="claude-*",
        input_usd=10,
        output_usd=20,
        cached_input_usd=1,
        cache_write_usd=None,
    )
    worked(upload(project, lines(claude_code(["make test"]))))
    # 100 tokens of input, 900 read from a cache, 50 of output.
    assert float(Session.objects.get().cost_usd) == pytest.approx((100 * 10 + 900 * 1 + 50 * 20) / 1_000_000)


def test_imported_loops_alert_nobody(project, receiver):
    from tests.support.alerts import make_route, make_webhook

    make_route(project, make_webhook(project, receiver))
    worked(upload(project, lines(claude_code(["make test"] * 12))))
    assert Incident.objects.count() == 1
    assert (AlertEvent.objects.count(), Notification.objects.count()) == (0, 0)


def test_the_same_file_again_adds_nothing_and_one_that_has_grown_adds_the_rest(project):
    first = worked(upload(project, lines(claude_code(["make test"] * 4))))
    again = worked(upload(project, lines(claude_code(["make test"] * 4))))
    assert (again.events, again.summary) == (0, first.summary)
    grown = worked(upload(project, lines(claude_code(["make test"] * 8))))
    assert (grown.events, grown.summary["calls"]) == (8, 8)


@pytest.mark.parametrize("shape", ["gzip", "zip", "zip of gzip", "document", "lines", "list of runs"])
def test_files_may_be_packed_and_hold_one_run_or_several(project, shape):
    runs = [openai(["a"] * 6, "first"), openai(["b"] * 6, "second")]
    content = {
        "gzip": lambda: gzip.compress(lines(runs)),
        "zip": lambda: zipped(
            one_json=json.dumps(runs[0], indent=1), two_json=json.dumps({"messages": runs[1]})
        ),
        "zip of gzip": lambda: zipped(both_jsonl_gz=gzip.compress(lines(runs)), note_txt="not read"),
        "document": lambda: json.dumps([{"messages": run} for run in runs], indent=2).encode(),
        "lines": lambda: b"\n\n" + lines({"messages": run} for run in runs),
        "list of runs": lambda: json.dumps(runs).encode(),
    }[shape]()
    row = worked(upload(project, content, kind="openai"))
    assert (row.error, row.sessions, row.summary["loops"]) == ("", 2, 2)


def test_several_files_are_one_import_and_equal_names_do_not_mix_runs(project, monkeypatch):
    # On a slow machine the progress is noted between two files as well.
    monkeypatch.setattr(import_worker, "PROGRESS_SECONDS", 0.0)
    contents = [
        json.dumps(openai(["a"] * 6, "first")).encode(),
        json.dumps(openai(["b"] * 3, "second")).encode(),
    ]
    row = worked(upload(project, *contents, kind="openai", names=["run.json", "run.json"]))
    assert (row.sessions, row.summary["calls"]) == (2, 9)
    assert set(Session.objects.values_list("call_count", flat=True)) == {6, 3}


def test_sessions_whose_lines_alternate_are_told_apart(project):
    one, two = (list(claude_code([f"cat {name}{n}" for n in range(6)], name)) for name in "ab")
    row = worked(upload(project, lines(line for pair in zip(one, two, strict=True) for line in pair)))
    assert (row.error, row.sessions) == ("", 2)
    assert set(Session.objects.values_list("external_id", "call_count")) == {("a", 6), ("b", 6)}


GOOD = lines(claude_code(["make"] * 3))
BAD = {
    "not JSON": ("claude-code", b"hello\n", "run.jsonl, line 1: not JSON"),
    "another kind": ("claude-code", lines([openai(["a"])]), "looks like openai"),
    "another kind of lists": ("anthropic", GOOD, "looks like claude-code"),
    "no list": ("openai", b'{"messages": 7}', "run.jsonl, run 1: A transcript must be a list"),
    "a bad run": ("openai", lines([openai(["a"]), 7]), "run.jsonl, run 2:"),
    "a bad line": ("openai", lines([openai(["a"])]) + b"{", "run.jsonl, line 2: not JSON"),
    "a bad trace": ("trace", lines([{"session": "s", "tool": "t"}, {"session": "s"}]), "line 2: not a call"),
    "a cut archive": ("claude-code", zipped(a_jsonl=GOOD)[:-30], "not a complete zip archive"),
    "a damaged member": ("claude-code", zipped(a_jsonl=GOOD).replace(b"a.jsonl", b"b.jsonl", 1), "damaged"),
    "cut gzip": ("claude-code", gzip.compress(GOOD)[:-9], "damaged or end too early"),
    "an empty archive": ("claude-code", zipped(a_txt=b"x"), "has no .jsonl or .json file"),
    "a long line": ("claude-code", b'{"a":"' + b"x" * 3_000 + b'"}\n', "line 1: longer than"),
    "a bomb": ("claude-code", gzip.compress(b"{}\n" * 20_000), "unpack to more than"),
}


EMPTY_LINES = {
    "lines": lambda: gzip.compress(b"\n" * 3_000_000),
    "lines of nothing": lambda: gzip.compress(b"null\n" * 3_000_000),
    "members": lambda: gzip.compress(b"") * 300_000,
    "spaces": lambda: gzip.compress((b" " * 1_000 + b"\r\n") * 300_000),
    "files of an archive": lambda: zipped(**{f"a{number}_jsonl": b"\n" * 1_000 for number in range(3_000)}),
}


@pytest.mark.parametrize("case", EMPTY_LINES)
@pytest.mark.parametrize("ends_by", ["cancel", "time", "shutdown"])
def test_what_unpacks_to_nothing_shows_progress_and_ends(project, case, ends_by, monkeypatch):
    monkeypatch.setattr(import_worker, "PROGRESS_SECONDS", 0.0)
    if ends_by == "time":
        monkeypatch.setattr(import_worker, "MAX_SECONDS", 0.05)
    row = upload(project, EMPTY_LINES[case]())
    seen = []

    def should_stop():
        seen.append(TranscriptImport.objects.get(pk=row.pk).done_bytes)
        if ends_by == "cancel" and len(seen) == 20:
            transcript_imports.cancel_import(project.pk, row.public_id, ANA)
        return ends_by == "shutdown" and len(seen) == 20

    worked(row, should_stop)
    expected = {"cancel": ("cancelled", ""), "time": ("failed", "too_slow"), "shutdown": ("running", "")}
    assert (row.state, row.error_code) == expected[ends_by]
    assert len(seen) <= 20 or ends_by == "time"
    assert seen == sorted(seen)
    assert max(seen) > 0 or ends_by == "time"


@pytest.mark.parametrize("case", ["lines", "spaces", "files of an archive"])
def test_lines_are_limited_over_all_files_and_read_once(project, case, monkeypatch):
    monkeypatch.setattr(transcript_files, "MAX_LINES", 250_000)
    row = worked(upload(project, GOOD, EMPTY_LINES[case](), names=["good.jsonl", "bad.jsonl"]))
    assert (row.state, row.error_code) == ("failed", "too_large")
    assert "have more than 250,000 lines" in row.error
    assert "looks like" not in row.error
    assert not Event.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_long_imports_of_some_projects_leave_a_thread_to_those_of_others(monkeypatch):
    monkeypatch.setattr(import_worker, "QUICK_SECONDS", 0.5)
    monkeypatch.setattr(import_worker, "PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(imports, "PERIOD_SECONDS", 0.1)
    bomb = gzip.compress(b"\n" * 900_000_000, 9)
    assert len(bomb) < 900_000
    long = [upload(make_project(f"p{number}"), bomb) for number in range(imports.THREADS)]
    imports._start()
    try:
        deadline = time.monotonic() + 60
        while TranscriptImport.objects.filter(done_bytes__gt=0).count() < imports.THREADS:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        short = upload(make_project("short"), GOOD)
        while TranscriptImport.objects.get(pk=short.pk).state != "finished":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        states = [
            *TranscriptImport.objects.filter(pk__in=[row.pk for row in long]).values_list("state", "starts")
        ]
        assert [state for state, _ in states] == ["running"] * imports.THREADS
        assert {starts for _, starts in states} <= {0, 1}
    finally:
        stop_all()


@pytest.mark.parametrize("case", BAD)
def test_an_upload_that_cannot_be_read_is_explained_and_nothing_of_it_is_stored(
    project, folder, case, monkeypatch
):
    if case == "a long line":
        monkeypatch.setattr(transcript_files, "MAX_DOCUMENT_BYTES", 2_000)
    monkeypatch.setattr(transcript_files, "MAX_UNPACKED_BYTES", 30_000)
    kind, content, reason = BAD[case]
    before = [GOOD] if kind == "claude-code" and case != "another kind" else []
    row = worked(upload(project, *before, content, kind=kind))
    assert row.state == "failed"
    assert reason in row.error
    assert (Session.objects.count(), row.summary) == (0, None)
    assert list(folder.iterdir()) == []


def test_lines_that_a_killed_run_has_cut_are_counted_and_passed_over(project):
    content = GOOD + b'{"type": "assis\n' + lines(claude_code(["ls"] * 2, "other"))
    row = worked(upload(project, content))
    assert row.state == "finished"
    assert row.skipped == ["run.jsonl: 1 lines are not JSON, the first is line 12."]


def test_hostile_values_are_omitted_or_cut_to_what_the_database_stores(project):
    calls = [
        {"session": "s\x00", "source": "x", "tool": "t" * 500, "arguments": {"a": "\x00"}, "ts": "0001-01-01T00:00:00Z"},
        {"session": "s\x00", "source": "x", "tool": "t", "arguments": "y" * 300_000, "model": "m" * 999, "is_error": "no"},
        {"session": "s\x00", "source": "x", "tool": "t", "arguments": [[1e300]], "result": {"a": [1]}, "ts": "9999-12-31T23:59:59Z"},
    ]  # fmt: skip
    row = worked(upload(project, lines(calls), kind="trace"))
    assert (row.state, row.error) == ("finished", "")
    assert row.skipped == ["1 events were too large or invalid and are omitted."]
    assert Event.objects.filter(type="call").count() == 2


def test_a_session_that_was_recorded_live_is_left_alone(project, agent_of):
    agent_of(project, "5d1c")
    row = worked(upload(project, GOOD))
    assert (row.state, row.summary) == ("finished", None)
    assert row.skipped == ["1 sessions were recorded live and are not changed."]


@pytest.fixture
def agent_of():
    from detection.services.events.event_records import EventRecord
    from detection.services.ingestion.guard import GuardRequest, guard

    def ask(project, session):
        call = EventRecord(type="call", session=session, tool="t", call_id="c", arguments="{}")
        guard(run_import.importer(project), GuardRequest(session=session, calls=(call,)))

    return ask


def after(count):
    """Return a function that is true from its call number `count` on."""
    calls = iter(range(10**6))
    return lambda: next(calls) >= count


@pytest.fixture
def eager(monkeypatch):
    """Progress is noted, and batches are stored, at every opportunity."""
    monkeypatch.setattr(import_worker, "PROGRESS_SECONDS", 0)
    monkeypatch.setattr(run_import, "BATCH_EVENTS", 10)


@pytest.mark.parametrize("stops_at", [2, 4, 6, 9, 12])
def test_an_interrupted_import_continues_in_another_worker_without_doubles(project, eager, stops_at):
    content = lines(claude_code([f"cat {n % 50}" for n in range(200)]))
    row = worked(upload(project, content), after(stops_at))
    assert row.state == "running"
    row = worked(row)
    assert (row.state, row.starts, row.summary["calls"]) == ("finished", 2, 200)
    assert Event.objects.filter(type="call").count() == 200


def test_an_import_whose_workers_die_again_and_again_fails(project):
    row = upload(project, GOOD)
    TranscriptImport.objects.update(state="running", starts=import_worker.MAX_STARTS)
    assert worked(row).error_code == "interrupted"


def test_two_importers_of_one_record_store_it_once(project):
    principal = run_import.importer(project)
    pair = [run_import.FileImport(principal, "trace", NO_LABELS) for _ in range(2)]
    for number in range(30):
        event: ReportedEvent = {
            "type": "call",
            "tool": "t",
            "call_id": f"c{number}",
            "arguments": {"n": number},
        }
        for one in pair:
            one.add("s", event)
    assert [run.added for one in pair for run in one.end()] == [30, 0]
    assert Event.objects.count() == 30


def test_a_long_record_is_whole_though_another_import_has_stored_its_beginning(project, monkeypatch):
    monkeypatch.setattr(run_import, "BATCH_EVENTS", 5)
    principal = run_import.importer(project)
    longer, shorter = (run_import.RunImport(principal, "trace", "s", NO_LABELS) for _ in range(2))
    events: list[ReportedEvent] = [
        {"type": "call", "tool": "t", "call_id": f"c{number}", "arguments": {"n": number}}
        for number in range(17)
    ]
    for run, given in ((shorter, events[:3]), (longer, events)):
        for event in given:
            run.add(event)
        run.end()
    stored = Event.objects.filter(type="call").order_by("seq").values_list("call_id", flat=True)
    assert [*stored] == [event["call_id"] for event in events]
    assert longer.added == 14


def test_a_cancelled_import_stops_and_its_sessions_are_ended(project, folder, eager):
    row = upload(project, lines(claude_code([f"cat {n % 50}" for n in range(400)])))

    def cancel_on_the_way():
        if Event.objects.exists() and TranscriptImport.objects.filter(state="running").exists():
            transcript_imports.cancel_import(project.pk, row.public_id, ANA)
        return False

    assert worked(row, cancel_on_the_way).state == "cancelled"
    assert 0 < row.summary["calls"] < 400
    assert Session.objects.get().ended_at is not None
    assert list(folder.iterdir()) == []
    with pytest.raises(Conflict):
        transcript_imports.cancel_import(project.pk, row.public_id, ANA)


def test_a_cancelled_import_that_waits_is_never_started(project, folder, django_capture_on_commit_callbacks):
    row = upload(project, GOOD)
    with django_capture_on_commit_callbacks(execute=True):
        transcript_imports.cancel_import(project.pk, row.public_id, ANA)
    assert list(folder.iterdir()) == []
    assert worked(row).state == "cancelled"
    assert Session.objects.count() == 0


def test_a_full_disk_of_the_database_ends_the_import_with_the_reason(project, settings, tmp_path):
    row = upload(project, GOOD)
    settings.DATABASE_FOLDER, settings.MIN_FREE_SHARE, settings.MIN_FREE_BYTES = str(tmp_path), 1.0, 2**60
    disk_monitor.expire()
    try:
        assert worked(row).error_code == "storage_full"
    finally:
        settings.DATABASE_FOLDER = ""
        disk_monitor.expire()


@pytest.mark.parametrize(("change", "code"), [(lambda path: path.unlink(), "file_missing"), (lambda path: path.write_bytes(b"x"), "incomplete_file")])  # fmt: skip
def test_files_that_the_worker_does_not_find_whole_are_explained(project, change, code):
    row = upload(project, GOOD)
    change(import_files.path_of(row.public_id, 0))
    assert worked(row).error_code == code


@pytest.mark.parametrize(
    ("given", "code"),
    [({"kind": "csv"}, "invalid_value"), ({"prices": (-1, 2)}, "out_of_range"), ({"prices": (1, float("nan"))}, "out_of_range")],
)  # fmt: skip
def test_wrong_requests_are_rejected_and_leave_no_file(project, given, code):
    with pytest.raises(Invalid) as error:
        upload(project, GOOD, **({"kind": "claude-code"} | given))
    assert error.value.code == code
    assert TranscriptImport.objects.count() == 0


def test_too_many_empty_and_too_large_files_are_rejected(project, monkeypatch):
    for files, code in (([], "missing"), ([b""], "empty_file"), ([b"x"] * 3, "too_many_files"), ([b"x" * 99] * 2, "too_large")):  # fmt: skip
        monkeypatch.setattr(import_files, "MAX_FILES", 2)
        monkeypatch.setattr(import_files, "MAX_UPLOAD_BYTES", 100)
        with pytest.raises(ServiceError) as error:
            upload(project, *files)
        assert error.value.code == code


def test_a_project_has_a_bounded_number_of_open_imports(project):
    for _ in range(transcript_imports.MAX_OPEN):
        upload(project, GOOD)
    with pytest.raises(Conflict, match="Wait until one has finished"):
        upload(project, GOOD)
    upload(make_project("rivals"), GOOD)


def test_housekeeping_removes_what_belongs_to_no_import_and_the_oldest_summaries(
    project, folder, monkeypatch
):
    kept, old = upload(project, GOOD), time.time() - 2 * import_files.LEFT_OVER_SECONDS
    for name in (kept.public_id, "imp_unknown"):
        (folder / name).mkdir(exist_ok=True)
        os.utime(folder / name, (old, old))
    left, fresh = arrived(b"x").path, arrived(b"x").path
    os.utime(left, (old, old))
    retention.trim()
    assert {path.name for path in folder.iterdir()} == {kept.public_id, fresh.name}
    for _ in range(3):
        worked(upload(project, GOOD))
    monkeypatch.setattr(transcript_imports, "MAX_KEPT", 2)
    retention.trim()
    assert TranscriptImport.objects.count() == 2


def test_retention_counts_from_the_import_of_an_old_run(project):
    worked(upload(project, GOOD))
    imported = Session.objects.get()
    Session.objects.create(
        id=imported.pk - ((project.retention_days + 1) << 32), project=project, external_id="imported long ago",
        integration=imported.integration, started_at=imported.started_at, last_event_at=imported.last_event_at,
    )  # fmt: skip
    retention.purge(project)
    assert list(Session.objects.all()) == [imported]
