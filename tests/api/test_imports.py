"""POST, GET /imports: files as bodies, progress and summaries."""

import gzip
import json
import sqlite3
from contextlib import closing

import pytest

from detection.integrations import opencode_files
from detection.services.ingestion import import_files, import_worker
from tests.support.transcripts import claude_code, lines, opencode

pytestmark = pytest.mark.django_db
LOOP = lines(claude_code(["make test"] * 8))


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path / "imports")
    return tmp_path / "imports"


def send(api, content=LOOP, media_type="application/x-ndjson", **params):
    return api.request(
        "POST", "/imports", content=content, headers={"Content-Type": media_type}, params=params
    )


@pytest.mark.parametrize(
    ("content", "media_type"), [(LOOP, "application/x-ndjson"), (gzip.compress(LOOP), "application/gzip")]
)
def test_a_file_is_accepted_imported_and_summarised(api, folder, content, media_type):
    answer = send(
        api, content, media_type, name="run.jsonl", usd_per_million_input=3, usd_per_million_output=15
    )
    assert answer.status_code == 202
    made = answer.json()
    assert (made["state"], made["files"]) == ("waiting", [{"name": "run.jsonl", "bytes": len(content)}])
    import_worker.run_waiting(lambda: False)
    shown = api.get(f"/imports/{made['id']}").json()
    assert (shown["state"], shown["error"], shown["summary"]["loops"]) == ("finished", None, 1)
    assert shown["summary"]["loop_cost_usd"] > 0
    assert api.get("/imports").json()["items"] == [shown]
    assert list(folder.iterdir()) == []


def test_imported_sessions_get_the_tags_and_metadata_of_the_headers(api):
    labels = {"LoopGuard-Tags": "nightly", "LoopGuard-Metadata": '{"customer": "acme"}'}
    headers = {"Content-Type": "application/x-ndjson", **labels}
    made = api.request("POST", "/imports", content=LOOP, headers=headers).json()
    assert made["metadata"] == {"customer": "acme"}
    assert made["tags"][0] == "nightly"
    import_worker.run_waiting(lambda: False)
    (session,) = api.get("/sessions", q="tag:nightly metadata:customer=acme").json()["items"]
    assert (session["tags"], session["metadata"]) == (made["tags"], {"customer": "acme"})
    headers["LoopGuard-Metadata"] = "acme"
    wrong = api.request("POST", "/imports", content=LOOP, headers=headers)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_json")


def test_a_failed_import_has_a_code_and_a_reason(api):
    made = send(api, b"hello", name="notes.txt").json()
    import_worker.run_waiting(lambda: False)
    shown = api.get(f"/imports/{made['id']}").json()
    assert shown["error"]["code"] == "invalid_file"
    assert shown["error"]["detail"].startswith("notes.txt, line 1: not JSON")


@pytest.mark.parametrize(("limit", "at_most"), [("MAX_MESSAGE_BYTES", 6_000), ("MAX_MESSAGE_VALUES", 3_000)])
def test_a_message_in_a_database_is_no_larger_than_a_line(api, tmp_path, monkeypatch, limit, at_most):
    """Parts of a message are together in memory, and a database decides how many there are."""
    file = opencode(tmp_path / "a.db", {"s": ["make test"]})
    with closing(sqlite3.connect(file)) as made, made:
        part = json.dumps({"type": "text", "text": "a," * 1_000})
        rows = [(f"p{number}", "s-0001", "s", part) for number in range(4)]
        made.executemany("INSERT INTO part VALUES (?, ?, ?, ?)", rows)
    kinds = {"media_type": "application/octet-stream", "kind": "opencode"}
    whole = send(api, file.read_bytes(), **kinds).json()
    import_worker.run_waiting(lambda: False)
    assert api.get(f"/imports/{whole['id']}").json()["state"] == "finished"
    monkeypatch.setattr(opencode_files, limit, at_most)
    made = send(api, file.read_bytes(), **kinds).json()
    import_worker.run_waiting(lambda: False)
    error = api.get(f"/imports/{made['id']}").json()["error"]
    assert error["code"] == "invalid_file"
    assert "a message is too large" in error["detail"]


def _other_database(tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.db")) as made, made:
        made.execute("CREATE TABLE notes (text)")
    return (tmp_path / "other.db").read_bytes()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_other_database, "is no database of a coding agent, or damaged"),
        (lambda _: gzip.compress(LOOP)[:60], "the compressed data are damaged or end too early"),
        (
            lambda _: gzip.compress(LOOP)[:20] + b"\xff" * 90,
            "the compressed data are damaged or end too early",
        ),
    ],
)
def test_a_file_that_is_damaged_from_its_beginning_on_is_named_as_such(api, tmp_path, content, reason):
    made = send(api, content(tmp_path), "application/octet-stream", kind="opencode").json()
    import_worker.run_waiting(lambda: False)
    error = api.get(f"/imports/{made['id']}").json()["error"]
    assert (error["code"], reason in error["detail"]) == ("invalid_file", True), error


def test_names_in_a_database_that_are_no_texts_are_none(api, tmp_path):
    file = opencode(tmp_path / "a.db", {"s": ["make test"]})
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("UPDATE session SET directory = x'ff', parent_id = x'00'")
        made.execute("UPDATE part SET data = x'ff' WHERE message_id = 's-0000'")
    made = send(api, file.read_bytes(), "application/octet-stream", kind="opencode").json()
    import_worker.run_waiting(lambda: False)
    assert api.get(f"/imports/{made['id']}").json()["state"] == "finished"


def test_an_import_can_be_cancelled_once(api):
    made = send(api).json()
    assert api.post(f"/imports/{made['id']}/cancel").json()["state"] == "cancelled"
    assert api.post(f"/imports/{made['id']}/cancel").json()["code"] == "conflict"


def test_lists_have_pages(api):
    ids = [send(api).json()["id"] for _ in range(3)]
    first = api.get("/imports", limit=2).json()
    rest = api.get("/imports", limit=2, cursor=first["next_cursor"]).json()
    assert [row["id"] for row in first["items"] + rest["items"]] == ids[::-1]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"content": b""}, 422, "empty_file"),
        ({"kind": "csv"}, 422, "invalid"),
        ({"usd_per_million_input": -1}, 422, "invalid"),
        ({"color": "red"}, 422, "unknown_parameter"),
        ({"media_type": "text/csv"}, 415, "unsupported_media_type"),
        ({"content": iter([LOOP])}, 411, "length_required"),
        ({"content": LOOP * 2}, 413, "too_large"),
    ],
)
def test_what_cannot_be_accepted_is_rejected_with_a_code(api, folder, monkeypatch, given, status, code):
    monkeypatch.setattr(import_files, "MAX_UPLOAD_BYTES", len(LOOP) + 1)
    answer = send(api, **given)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not folder.exists() or list(folder.iterdir()) == []


def test_too_many_open_imports_of_a_project_are_rejected(api):
    for _ in range(5):
        assert send(api).status_code == 202
    assert send(api).json()["code"] == "too_many_imports"
