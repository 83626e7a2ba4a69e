"""What the index of contents costs, and how fast contents are found in it.

Agents send calls whose texts have words, numbers and names in them: some occur everywhere, some once. The cost is the
processor time of all processes, first of ingestion and evaluation alone, then of indexing the same events. Then the
same texts with other numbers are laid down until the database has as many events as wanted, and one client searches.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import psycopg

from benchmarks.http import wait_for_workers
from benchmarks.load import Connection
from benchmarks.report import Figure, percentile
from benchmarks.stack import Stack

EVENTS = 1_000_000
SENT_SESSIONS, CALLS_PER_SESSION = 400, 30
TIMES = 30
_WAIT_SECONDS, _IDLE_SECONDS = 1_800.0, 8.0
_SYLLABLES = (
    "ka",
    "lo",
    "mi",
    "ter",
    "sun",
    "ve",
    "ro",
    "pan",
    "dil",
    "gor",
    "ha",
    "ne",
    "que",
    "sti",
    "bra",
    "um",
)
_RANDOM = random.Random(1)
_WORDS = tuple("".join(_RANDOM.choices(_SYLLABLES, k=_RANDOM.randint(1, 5))) for _ in range(4_000))
_TOOLS = ("get_order", "search_files", "run_tests", "send_mail", "read_page")
_COPY = """
INSERT INTO detection_session (id, project_id, external_id, agent, last_seq, evaluated_seq, call_count,
    state, started_at, last_event_at, {rest})
SELECT ((floor(extract(epoch FROM now()) / 86400)::bigint - c.n %% 25) << 32)
        | (nextval('detection_session_counter') & 4294967295),
    s.project_id, s.external_id || '-' || c.n, s.agent, s.last_seq, s.evaluated_seq, s.call_count, 'ended',
    now() - (c.n %% 25) * interval '1 day', now() - (c.n %% 25) * interval '1 day', {rest}
FROM detection_session s, generate_series(%(first)s::int, %(last)s::int) AS c (n)
WHERE s.external_id ~ '^sent-[0-9]+$'
"""
_COPY_EVENTS = """
INSERT INTO detection_event (project_id, session_id, seq, type, tool, call_id, arguments, content, content_length, closes,
    call_number, call_key, result_digest, received_at, agent)
SELECT e.project_id, s.id, e.seq, e.type, e.tool, e.call_id,
    regexp_replace(e.arguments, '[0-9]{5}', lpad(((hashint8(s.id + e.seq) & 2147483647) %% 100000)::text, 5, '0')),
    regexp_replace(e.content, '[0-9]{5}', lpad(((hashint8(s.id - e.seq) & 2147483647) %% 100000)::text, 5, '0')),
    e.content_length, e.closes, e.call_number, e.call_key, e.result_digest, s.started_at, e.agent
FROM detection_session s JOIN detection_session o
    ON o.project_id = s.project_id AND o.external_id = regexp_replace(s.external_id, '-[0-9]+$', '')
JOIN detection_event e ON e.project_id = o.project_id AND e.session_id = o.id
WHERE s.external_id ~ '^sent-[0-9]+-[0-9]+$'
    AND split_part(s.external_id, '-', 3)::int BETWEEN %(first)s AND %(last)s
"""
_SIZES = """
SELECT sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname LIKE 'detection_event\\_%%' OR c.relname = 'detection_event'),
    sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname = 'detection_searchblock')
FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
"""
_LEFT = """
SELECT count(*) FROM detection_session s LEFT JOIN LATERAL (
    SELECT last_seq FROM detection_searchblock b WHERE b.project_id = s.project_id AND b.session_id = s.id
    ORDER BY b.first_seq DESC LIMIT 1
) b ON true WHERE s.evaluated_seq > coalesce(b.last_seq, 0)
"""


def run(events: int) -> Iterator[Figure]:
    """Measure cost, space and times."""
    with Stack() as stack, stack.connect() as database:
        _set_searchable(stack, wanted=False)
        time.sleep(_IDLE_SECONDS)  # until all threads have started
        idle, _ = _spent(stack, lambda: time.sleep(_IDLE_SECONDS))
        idle /= _IDLE_SECONDS
        sent = SENT_SESSIONS * CALLS_PER_SESSION * 2
        ingesting, seconds = _spent(stack, lambda: _send(stack, database))
        ingesting -= idle * seconds
        _set_searchable(stack, wanted=True)
        indexing, seconds = _spent(stack, lambda: _wait_until_indexed(database))
        indexing -= idle * seconds
        yield Figure("ingestion and evaluation, processor time an event", 1e6 * ingesting / sent, "us")
        yield Figure("indexing, processor time an event", 1e6 * indexing / sent, "us")
        yield Figure("indexing, of that of ingestion", 100 * indexing / ingesting, "%", 10)
        _fill(database, events)
        _wait_until_indexed(database)
        database.execute("VACUUM ANALYZE detection_searchblock")
        database.execute("ANALYZE detection_event")
        row = database.execute("SELECT count(*) FROM detection_event").fetchone()
        yield Figure("events in the database", float(str(row[0] if row else 0)), "rows")
        sizes = [float(str(size)) for size in database.execute(_SIZES).fetchone() or ()]
        yield Figure("events with their indexes", sizes[0] / 2**20, "MB")
        yield Figure("index of contents", sizes[1] / 2**20, "MB")
        yield Figure("index of contents, of the events", 100 * sizes[1] / sizes[0], "%", 25)
        yield from _search(stack, database)


def _spent(stack: Stack, work: Callable[[], None]) -> tuple[float, float]:
    """Return the processor time of all processes during some work, and how long it took."""
    before, started = sum(stack.processor_seconds().values()), time.perf_counter()
    work()
    return sum(stack.processor_seconds().values()) - before, time.perf_counter() - started


def _set_searchable(stack: Stack, *, wanted: bool) -> None:
    connection = Connection(stack.url, stack.headers)
    status, body = connection.send("PATCH", "/api/v1/project", json.dumps({"is_searchable": wanted}).encode())
    connection.close()
    if status != 200:
        raise RuntimeError(f"the project was not changed: {body!r}")


def _sentence(words: int) -> str:
    # As in texts of people, few words make up most of it.
    return " ".join(_WORDS[int(len(_WORDS) * _RANDOM.random() ** 3)] for _ in range(words))


def _send(stack: Stack, database: psycopg.Connection[tuple[object, ...]]) -> None:
    """Send calls with their results, and wait until they are evaluated."""
    connection = Connection(stack.url, stack.headers)
    for session in range(SENT_SESSIONS):
        batch: list[dict[str, object]] = []
        for number in range(CALLS_PER_SESSION):
            common = {"session": f"sent-{session}", "call_id": f"c{number}"}
            arguments = {
                "order": f"ORD-{_RANDOM.randrange(100_000):05}",
                "note": _sentence(12),
                "page": number,
            }
            batch += [
                {**common, "type": "call", "tool": _TOOLS[number % 5], "arguments": arguments, "agent": f"a-{session % 9}"},
                {**common, "type": "result", "content": f"customer {_RANDOM.randrange(100_000):05}: {_sentence(60)}"},
            ]  # fmt: skip
        status, body = connection.send("POST", "/api/v1/events", json.dumps({"events": batch}).encode())
        if status != 202:
            raise RuntimeError(f"a batch was refused: {status} {body[:300]!r}")
    connection.close()
    wait_for_workers(database, _WAIT_SECONDS)


def _fill(database: psycopg.Connection[tuple[object, ...]], events: int) -> None:
    """Copy the sessions with other numbers until there are so many events."""
    per_copy = 2 * SENT_SESSIONS * CALLS_PER_SESSION
    copies = max(0, events // per_copy - 1)
    rest = "backend, model, parent_external_id, is_demo, outcome, token_count, cost_usd, last_tool, meter_kind, meter_count"
    rest += ", meter_limit, blocked_count, stop_reason, stopped_by, policy_values, strip"
    for first in range(1, copies + 1, 10):
        part = {"first": first, "last": min(first + 9, copies)}
        database.execute(_COPY.format(rest=rest), part)
        database.execute(_COPY_EVENTS, part)


def _wait_until_indexed(database: psycopg.Connection[tuple[object, ...]]) -> None:
    ends_at = time.monotonic() + _WAIT_SECONDS
    while database.execute(_LEFT).fetchone() != (0,):
        if time.monotonic() > ends_at:
            raise TimeoutError("the index did not catch up")
        time.sleep(1)


def _search(stack: Stack, database: psycopg.Connection[tuple[object, ...]]) -> Iterator[Figure]:
    """Search for what occurs once, often, and never."""
    connection = Connection(stack.url, stack.headers)
    orders = [
        json.loads(str(row[0]))["order"]
        for row in database.execute(
            "SELECT arguments FROM detection_event TABLESAMPLE SYSTEM (1) WHERE type = 'call' LIMIT %s",
            [TIMES],
        )
    ]
    for name, queries in (
        ("a number in arguments", orders),
        ("its digits alone", [order[-5:] for order in orders]),
        ("a frequent word", [*_WORDS[:TIMES]]),
        ("a rare word", [*_WORDS[-TIMES:]]),
        ("two words", [f"{_WORDS[n]} {_WORDS[-n - 1]}" for n in range(TIMES)]),
        ("a tool and a number", [f"get_order {order}" for order in orders]),
    ):
        spent = [_seconds_to_first(connection, query) for query in queries]
        yield Figure(f"{name}, first hits, p95", 1000 * percentile(spent, 0.95), "ms", 1_000, 300)
    for name, query in (("nothing that exists", "xylophonquartett"), ("a number, to the end", orders[0])):
        yield Figure(f"{name}, complete", _seconds_to_the_end(connection, query), "s", 10)
    connection.close()


def _get(connection: Connection, **parameters: object) -> dict[str, object]:
    status, body = connection.send("GET", f"/api/v1/search?{urlencode(parameters)}")
    if status != 200:
        raise RuntimeError(f"a search failed: {status} {body[:300]!r}")
    found: dict[str, object] = json.loads(body)
    return found


def _seconds_to_first(connection: Connection, query: str) -> float:
    """Return the time to the first page with a hit, or to the end."""
    before, cursor = time.perf_counter(), ""
    while True:
        page = _get(connection, q=query, cursor=cursor)
        if page["items"] or page["next_cursor"] is None:
            return time.perf_counter() - before
        cursor = str(page["next_cursor"])


def _seconds_to_the_end(connection: Connection, query: str) -> float:
    before, cursor = time.perf_counter(), ""
    while True:
        page = _get(connection, q=query, cursor=cursor, limit=100, seconds=5)
        if page["next_cursor"] is None:
            return time.perf_counter() - before
        cursor = str(page["next_cursor"])
