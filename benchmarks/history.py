"""A month of data in the database: runs that are played through the API once and then copied within the database.

LoopGuard created everything that pages show of a copy for the original run: strips, keys, verdicts, evidence.
Times, names, states, labels and actions of people vary by the number of the copy.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator

import psycopg

from benchmarks import requests
from benchmarks.load import Connection
from benchmarks.stack import Stack
from detection.demo.player import Player

Database = psycopg.Connection[tuple[object, ...]]

EVENTS = 1_000_000
LONG_RUN = "migrate-repository/night-shift"
LONG_RUN_CALLS = 10_000
WORDY_RUNS, WORDY_CALLS = 8, 62
TOOLS = ("read_file", "search_files", "run_tests", "edit_file", "list_directory", "fetch_url")


def fill(stack: Stack) -> dict[str, int]:
    """Fill the stack's database; return how many rows the larger tables have. About a minute on two cores."""
    _play(stack)
    with stack.connect() as database:
        _wait_until_evaluated(database)
        database.execute(_WEEKS)
        _copy_runs(database)
        for statement in _AROUND:
            database.execute(statement)
        database.execute("VACUUM ANALYZE")
        tables = (
            "event",
            "session",
            "incident",
            "loop",
            "auditentry",
            "notification",
            "approval",
            "callcount",
        )
        found = {}
        for table in tables:
            row = database.execute(f"SELECT count(*) FROM detection_{table}").fetchone()
            found[table] = int(str(row[0])) if row else 0
        return found


def _play(stack: Stack) -> None:
    """Play the demo's scenarios twice, some runs with long texts, and one of ten thousand calls."""
    key, fixed = stack.shown["api_key"], random.Random(1)
    player = Player(
        url=stack.url, key=key, agents=12, speed=300, rounds=2, write=lambda _: None, random=fixed
    )
    asyncio.run(player.play())
    connection = Connection(stack.url, stack.headers)
    for batch in (*_long_run(), *_wordy_runs()):
        status, body = connection.send("POST", "/api/v1/events", json.dumps({"events": batch}).encode())
        if status != 202:
            raise RuntimeError(f"a batch was refused: {status} {body[:300]!r}")
    connection.close()


def _long_run() -> Iterator[list[dict[str, object]]]:
    for start in range(0, LONG_RUN_CALLS, 50):
        yield [
            event
            for number in range(start, start + 50)
            for event in _call(LONG_RUN, number, "migrator", again=number % 40 > 35)
        ]


def _wordy_runs() -> Iterator[list[dict[str, object]]]:
    """Yield runs that work for a while and then repeat the same call."""
    for run in range(WORDY_RUNS):
        for start in (0, WORDY_CALLS // 2):
            yield [
                event
                for number in range(start, start + WORDY_CALLS // 2)
                for event in _call(
                    f"reviewer/pull-request-{run}",
                    number,
                    f"reviewer-{run % 3}",
                    again=number >= WORDY_CALLS - 8,
                )
            ]
        yield [{"type": "end", "session": f"reviewer/pull-request-{run}", "content": "failed"}]


def _call(session: str, number: int, agent: str, *, again: bool) -> Iterator[dict[str, object]]:
    common = {"session": session, "call_id": f"c{number}"}
    tool = "search_files" if again else TOOLS[number % len(TOOLS)]
    arguments = {"path": f"src/part{0 if again else number}.py", "note": requests.PADDING}
    usage = {"input_tokens": 1800, "output_tokens": 90, "cost_usd": 0.004}
    yield {**common, "type": "call", "tool": tool, "arguments": arguments, "agent": agent, "backend": "anthropic",
           "model": "opus-5", "usage": usage}  # fmt: skip
    answer = "no matches" if again else f"{number} lines\n{requests.PADDING * 3}"
    yield {**common, "type": "result", "content": answer}


def _wait_until_evaluated(database: Database, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    behind = "SELECT 1 FROM detection_session WHERE evaluated_seq < last_seq LIMIT 1"
    while database.execute(behind).fetchone():
        if time.monotonic() > deadline:
            raise TimeoutError("the workers did not catch up")
        time.sleep(0.2)


def _copy_runs(database: Database) -> None:
    """Copy sessions with their events, and some of their incidents with their related rows."""
    for statement in _COPIES:
        database.execute(statement)
    later = "c.last_at - (c.of_last - t.{})"
    name = "regexp_replace(t.{}, '-[^-]*$', '') || '-' || to_char(c.number, 'FM000000')"
    incident = "'inc_' || substr(md5(c.id::text || {}), 1, 15)"
    _copy(
        database,
        "session",
        "t.project_id = c.project_id AND t.id = c.of_id",
        id="c.id",
        external_id=name.format("external_id"),
        started_at=later.format("started_at"),
        last_event_at="c.last_at",
        ended_at="CASE WHEN c.n > 0 AND c.number % 20 > 0 THEN c.last_at END",
        state="CASE WHEN c.n = 0 THEN (ARRAY['running', 'running', 'looping', 'held'])[c.number % 4 + 1]"
        " WHEN c.number % 20 > 0 THEN 'ended' WHEN c.number % 60 = 0 THEN 'stopped' ELSE 'running' END",
        stopped_by_kind="CASE WHEN c.n > 0 AND c.number % 60 = 0 THEN 'person' ELSE '' END",
        stopped_at="CASE WHEN c.n > 0 AND c.number % 60 = 0 THEN c.last_at END",
    )
    _copy(
        database,
        "event",
        "t.project_id = c.project_id AND t.session_id = c.of_id",
        session_id="c.id",
        received_at=later.format("received_at"),
        occurred_at=later.format("received_at"),
    )
    _copy(
        database,
        "incident",
        "t.project_id = c.project_id AND t.session_id = c.of_id",
        public_id=incident.format("t.id"),
        id="nextval(pg_get_serial_sequence('detection_incident', 'id'))",
        session_id="c.id",
        session_name=name.format("session_name"),
        status="(ARRAY['open', 'open', 'open', 'open', 'done', 'done', 'done'])[c.number % 7 + 1]",
        label="(ARRAY['', '', '', 'true_loop', 'false_alarm'])[c.number % 5 + 1]",
        opened_at=later.format("opened_at"),
        last_seen_at=later.format("last_seen_at"),
        ended_at="c.last_at",
    )
    for statement in _PATTERNS:
        database.execute(statement)
    of_copy = f"(SELECT id FROM detection_incident WHERE public_id = {incident.format('t.incident_id')})"
    own = "t.incident_id IN (SELECT id FROM detection_incident WHERE session_id = c.of_id) AND c.n % 8 < 3"
    for table, more in (("incidentactivity", {}), ("alertevent", {"state": "'routed'"})):
        identity = f"nextval(pg_get_serial_sequence('detection_{table}', 'id'))"
        _copy(database, table, own, id=identity, incident_id=of_copy, at=later.format("at"), **more)


def _copy(database: Database, table: str, join: str, **changed: str) -> None:
    """Insert the rows (`t`) of every run again for each of its copies (`c`), with some columns changed."""
    found = database.execute(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " AND attgenerated = '' ORDER BY attnum",
        [f"detection_{table}"],
    )
    names = [str(row[0]) for row in found]
    columns = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(changed.get(name, f't."{name}"') for name in names)
    database.execute(
        f"INSERT INTO detection_{table} ({columns}) SELECT {values} FROM detection_{table} t JOIN copied c ON {join}"
    )


# The partitions that a server which has run for a month would have made in time.
_WEEKS = """
DO $$
DECLARE this_week bigint := floor(extract(epoch FROM now()) / 604800);
BEGIN
    FOR week IN this_week - 5 .. this_week - 2 LOOP
        EXECUTE format('CREATE TABLE detection_event_%s PARTITION OF detection_event FOR VALUES FROM (%s) TO (%s)',
                       week * 7, (week::bigint * 7) << 32, ((week + 1)::bigint * 7) << 32);
    END LOOP;
END $$
"""

_COPIES = (
    # One copy of every run in each of some four hundred parts of the month, the last of them now.
    f"""
CREATE TEMP TABLE copied AS
WITH size AS (
    SELECT count(*) AS long, (SELECT count(*) FROM detection_event) AS every FROM detection_event
    WHERE session_id = (SELECT id FROM detection_session WHERE external_id = '{LONG_RUN}')
), copies AS (SELECT ceil(({EVENTS} - every) / (every - long)::numeric)::int AS number FROM size)
SELECT s.project_id, s.id AS of_id, n, row_number() OVER (ORDER BY n, s.id) AS number, 0::bigint AS id, s.last_event_at AS of_last,
       CASE n WHEN 0 THEN now() - interval '4 minutes' * row_number() OVER (ORDER BY n, s.id) / 60
              ELSE now() - interval '29 days' * (n - random()) / copies.number - interval '6 minutes' END AS last_at
FROM copies, generate_series(0, copies.number) n, detection_session s WHERE s.external_id <> '{LONG_RUN}'
""",
    # A session's id begins with the day of its start.
    """
UPDATE copied SET id = (floor(extract(epoch FROM last_at) / 86400)::bigint << 32)
                       | (nextval('detection_session_counter') & 4294967295)
""",
    "CREATE INDEX ON copied (of_id)",
    "ANALYZE copied",
)

_KEY = "substr(md5(p.key || '-' || {}), 1, 32)"
_PATTERNS = (
    f"""
INSERT INTO detection_loop (public_id, project_id, key, kind, tool, program, results, detail, label)
SELECT 'loop_' || substr(md5(p.id || '-' || n), 1, 15), p.project_id, {_KEY.format("n")}, p.kind, p.tool || '_' || n, p.program,
       p.results, p.detail, ''
FROM detection_loop p, generate_series(1, 15) n
""",
    f"""
UPDATE detection_incident i SET loop_id = c.id, tool = c.tool FROM detection_loop p, detection_loop c
WHERE p.id = i.loop_id AND i.id % 16 > 0 AND c.key = {_KEY.format("i.id % 16")}
""",
)
"""The same loops of other tools: some hundred loops."""

_PROJECT = "(SELECT min(id) FROM detection_project)"

_AROUND = (
    # Hourly counts as counting would have made them; it does not see the copies, whose transactions look old to it.
    """
INSERT INTO detection_callcount (project_id, hour, is_demo, backend, model, tool, checks, warned, blocked, token_count, cost_usd)
SELECT s.project_id, date_trunc('hour', e.received_at, 'UTC'), s.is_demo, e.backend, e.model, e.tool, count(*),
       count(*) FILTER (WHERE e.decision = 'warn'), count(*) FILTER (WHERE e.decision IN ('block', 'hold', 'stop')),
       sum(e.tokens), sum(e.cost_usd)
FROM detection_event e JOIN detection_session s ON s.project_id = e.project_id AND s.id = e.session_id WHERE e.type = 'call' GROUP BY 1, 2, 3, 4, 5, 6
ON CONFLICT DO NOTHING
""",
    """
INSERT INTO detection_sessiontool (project_id, session_id, tool, calls, warned, blocked)
SELECT project_id, session_id, tool, count(*), count(*) FILTER (WHERE decision = 'warn'),
       count(*) FILTER (WHERE decision IN ('block', 'hold', 'stop'))
FROM detection_event WHERE type = 'call' GROUP BY 1, 2, 3
ON CONFLICT DO NOTHING
""",
    f"""
INSERT INTO detection_auditentry (project_id, at, actor, action, subject, before, after, request_id)
SELECT CASE WHEN n % 10 > 0 THEN {_PROJECT} END, now() - interval '30 days' * n / 100000,
       (ARRAY['operator', 'key:3', 'anna', 'system'])[n % 4 + 1],
       (ARRAY['loop.assigned', 'loop.done', 'session.stop', 'policy.save', 'loop.fine', 'key.create'])[n % 6 + 1],
       'session-' || n, '{{"max_repeats": 4}}', '{{"max_repeats": 6, "mode": "warn_then_block"}}', md5(n::text)
FROM generate_series(1, 100000) n
""",
    f"""
INSERT INTO detection_attempt (project_id, at, route, key_hint, status, code, detail, accepted, duplicate, altered, rejected)
SELECT CASE WHEN n % 5 > 0 THEN {_PROJECT} END, now() - interval '1 second' * (1000 - n), 'guard', 'lg_0123456789',
       CASE WHEN n % 5 > 0 THEN 200 ELSE 401 END, CASE WHEN n % 5 > 0 THEN '' ELSE 'unknown_key' END, '', 1, 0, 0, 0
FROM generate_series(1, 1000) n
""",
    """
INSERT INTO detection_approval (public_id, project_id, session_id, incident_id, decider, state, seq, call_id, call_key,
    held_calls, tool, agent, run, calls_digest, kind, count, "limit", unit, summary, requested_at, deadline, unattended, choice,
    raise_by, decision, message, reason, decided_by, decided_at)
SELECT 'q_' || substr(md5(i.id::text), 1, 15), i.project_id, i.session_id, i.id, 'person',
       CASE WHEN n > 40 THEN 'decided' ELSE 'open' END, i.last_seq, 'c' || i.last_seq, '', 1, split_part(i.tool, ' ', 1),
       i.agent, '', i.calls_digest, i.kind, i.count, i."limit", '', 'The same call ' || i.count || ' times.',
       CASE WHEN n > 40 THEN i.last_seen_at ELSE now() END, CASE WHEN n > 40 THEN i.last_seen_at ELSE now() END + interval '1 day',
       'block', CASE WHEN n > 40 THEN 'skip' ELSE '' END, 0, CASE WHEN n > 40 THEN 'block' ELSE '' END, '',
       CASE WHEN n > 40 THEN 'decided' ELSE '' END, CASE WHEN n > 40 THEN 'operator' ELSE '' END,
       CASE WHEN n > 40 THEN i.last_seen_at END
FROM (SELECT *, row_number() OVER (ORDER BY last_seen_at DESC) AS n
      FROM (SELECT DISTINCT ON (session_id) * FROM detection_incident ORDER BY session_id, id) one) i
WHERE n <= 3000
""",
    """
INSERT INTO detection_judgecall (project_id, approval_id, incident_id, calls_digest, session_id, at, outcome, error, was_sent, host,
    model, prompt_hash, request, response, reason, guidance, rounds_proposed, rounds_granted, policy_version, latency_ms,
    input_tokens, output_tokens, cost_usd)
SELECT project_id, id, incident_id, calls_digest, session_id, requested_at, (ARRAY['denied', 'unclear', 'failed'])[id % 3 + 1], '', true,
       'judge.example', 'small', '', repeat('What was asked. ', 100), 'denied', 'No progress.', '', 0, 0, 1, 700, 1500, 60, 0.001
FROM detection_approval WHERE state <> 'open' AND id % 3 = 0
""",
    f"""
INSERT INTO detection_alertdestination (public_id, project_id, name, kind, address, shown_address, signing_secrets, is_enabled,
    failures_in_row, last_problem)
SELECT 'dst_' || n, {_PROJECT}, 'place ' || n, 'webhook', 'https://alerts.example/' || n, 'https://alerts.example', '{{}}', true,
       0, ''
FROM generate_series(1, 4) n
""",
    """
INSERT INTO detection_notification (public_id, project_id, destination_id, route_name, group_key, is_test, state, created_at,
    due_at, payload, title, attempt_count, tries_left, finished_at)
SELECT 'msg_' || d.id || '_' || t.id, t.project_id, d.id, 'all', '', false, CASE WHEN t.id % 50 > 0 THEN 'delivered' ELSE 'failed' END,
       t.at, t.at, t.facts::text, 'A loop', 1, 0, t.at
FROM detection_alertevent t, detection_alertdestination d WHERE t.type = 'opened' AND t.incident_id IS NOT NULL
""",
    """
INSERT INTO detection_notificationitem (project_id, notification_id, destination_id, event_id)
SELECT project_id, id, destination_id, split_part(public_id, '_', 3)::bigint FROM detection_notification
""",
    """
INSERT INTO detection_deliveryattempt
    (project_id, notification_id, number, at, duration_ms, is_success, status, problem, response)
SELECT project_id, id, 1, created_at, 120, state = 'delivered', CASE state WHEN 'delivered' THEN 200 ELSE 503 END, '', '' FROM detection_notification
""",
    f"""
INSERT INTO detection_alertsilence (public_id, project_id, reason, starts_at, ends_at, caught_up_at, created_by, kinds,
    severities, tools, agents, backends, model_names, tags)
SELECT 'sil_' || n, {_PROJECT}, 'maintenance ' || n, now() - interval '1 hour' * n, now() + interval '1 hour' * (20 - n),
       CASE WHEN n > 20 THEN now() END, 'operator', '{{}}', '{{}}', '{{no_such_tool}}', '{{}}', '{{}}', '{{}}', '{{}}'
FROM generate_series(1, 200) n
""",
    """
UPDATE detection_alertevent SET state = 'silenced',
    silence_id = (SELECT min(id) FROM detection_alertsilence) + detection_alertevent.id % 200
WHERE id % 10 = 0
""",
)
