"""Healthy runs, some of which look like loops."""

from __future__ import annotations

from detection.demo.scenario import DemoCall, Scenario

_QUESTIONS = (
    {"topic": "password reset mails", "product": "Mailroom", "id": "4411"},
    {"topic": "invoice exports", "product": "Ledger", "id": "4502"},
    {"topic": "calendar sync", "product": "Planner", "id": "4478"},
)
_MODULES = (
    {"file": "app/billing/tax.py", "test": "tests/test_tax.py", "name": "round_half_even"},
    {"file": "app/search/ranking.py", "test": "tests/test_ranking.py", "name": "score_of"},
    {"file": "app/mail/quota.py", "test": "tests/test_quota.py", "name": "used_bytes"},
)

HEALTHY: tuple[Scenario, ...] = (
    Scenario(
        name="answer",
        agent="researcher",
        backend="openai",
        model="gpt-5",
        stuck=False,
        subjects=_QUESTIONS,
        says="Why do customers write to us about $topic?",
        opening=(
            DemoCall(
                "search_web",
                {"q": "$product $topic not working"},
                "6 hits: help centre, forum (4), status page",
            ),
            DemoCall(
                "fetch_url",
                {"url": "https://help.example/$product/$id"},
                "Known cause: sender limits. Updated in spring.",
            ),
            DemoCall(
                "search_tickets", {"query": "$topic", "since": "30d"}, "41 tickets; 33 mention the mobile app"
            ),
            DemoCall("read_ticket", {"id": "$id"}, "Customer says it began after the last app update."),
            DemoCall(
                "search_web",
                {"q": "$product mobile app release notes"},
                "3 hits: release notes 7.2, 7.1, 7.0",
            ),
            DemoCall(
                "fetch_url",
                {"url": "https://help.example/$product/releases"},
                "7.2 moved $topic behind a new permission.",
            ),
        ),
        close=(
            DemoCall(
                "write_answer", {"text": "It began with app 7.2, which asks for a new permission."}, "saved"
            ),
        ),
    ),
    Scenario(
        name="fix-tests",
        agent="coder",
        backend="anthropic",
        model="sonnet-5",
        stuck=False,
        subjects=_MODULES,
        says="Make $test pass.",
        opening=(
            DemoCall("list_directory", {"path": "app"}, "billing/ mail/ search/ __init__.py", seconds=1),
            DemoCall(
                "read_file", {"path": "$file"}, "def $name(value):\n    return value  # 214 lines follow"
            ),
            DemoCall(
                "bash",
                {"command": "pytest -q $test"},
                "9 failed, 12 passed in 1.31s",
                is_error=True,
                seconds=3,
            ),
        ),
        repeated=(
            DemoCall(
                "edit_file",
                {"path": "$file", "find": "case $n", "replace": "case $n, handled"},
                "1 replacement, line $m",
            ),
            DemoCall(
                "bash",
                {"command": "pytest -q $test"},
                "failed: test_$name[$m]; $roll assertions looked at",
                is_error=True,
                seconds=3,
            ),
        ),
        laps=5,
        close=(
            DemoCall(
                "edit_file",
                {"path": "$file", "find": "return value", "replace": "return whole(value)"},
                "1 replacement, line 88",
            ),
            DemoCall("bash", {"command": "pytest -q $test"}, "21 passed in 1.28s", seconds=3),
            DemoCall(
                "bash",
                {"command": "git commit -am 'handle every case in $name'"},
                "1 file changed, 23 insertions(+)",
            ),
        ),
    ),
    Scenario(
        name="wait-for-report",
        agent="poller",
        backend="openai",
        model="gpt-5-mini",
        stuck=False,
        subjects=({"job": "job-2291"}, {"job": "job-2307"}, {"job": "job-2350"}),
        opening=(DemoCall("start_job", {"kind": "monthly_report"}, '{"job": "$job", "state": "queued"}'),),
        repeated=(
            DemoCall(
                "get_job_status",
                {"job": "$job"},
                '{"job": "$job", "state": "running", "done": $m}',
                seconds=6,
            ),
        ),
        laps=9,
        close=(
            DemoCall(
                "get_job_status",
                {"job": "$job"},
                '{"job": "$job", "state": "finished", "done": 100}',
                seconds=6,
            ),
            DemoCall("download", {"job": "$job"}, "report.csv, 14,302 rows"),
        ),
    ),
    Scenario(
        name="page-orders",
        agent="bookkeeper",
        backend="local",
        model="qwen3-32b",
        stuck=False,
        endpoint="events",
        subjects=({"shop": "north"}, {"shop": "harbour"}),
        repeated=(
            DemoCall(
                "list_orders", {"shop": "$shop", "page": "$n"}, "25 orders, first number $roll", seconds=1.5
            ),
        ),
        laps=14,
        close=(DemoCall("write_file", {"path": "orders-$shop.csv"}, "350 lines written"),),
    ),
    Scenario(
        name="follow-log",
        agent="watcher",
        backend="local",
        model="qwen3-32b",
        stuck=False,
        endpoint="events",
        repeated=(
            DemoCall(
                "read_log", {"service": "checkout"}, "$roll new lines, the last one at step $n", seconds=5
            ),
        ),
        laps=8,
        close=(DemoCall("post_message", {"channel": "ops", "text": "checkout looks healthy"}, "posted"),),
    ),
    Scenario(
        name="read-many",
        agent="coder",
        backend="anthropic",
        model="sonnet-5",
        stuck=False,
        together=True,
        opening=(DemoCall("glob", {"pattern": "app/**/*.py"}, "38 files"),),
        repeated=(
            DemoCall(
                "read_file", {"path": "app/models/part_$n.py"}, "class Part$n: ...  # $roll lines", seconds=2
            ),
            DemoCall(
                "read_file",
                {"path": "app/views/part_$n.py"},
                "def part_$n(request): ...  # $roll lines",
                seconds=0,
            ),
            DemoCall(
                "read_file",
                {"path": "tests/test_part_$n.py"},
                "def test_part_$n(): ...  # $roll lines",
                seconds=0,
            ),
        ),
        laps=6,
        close=(
            DemoCall(
                "write_file", {"path": "docs/map.md", "content": "What lies where."}, "written, 2,114 bytes"
            ),
        ),
    ),
    Scenario(
        name="monthly-figures",
        agent="analyst",
        backend="openai",
        model="gpt-5",
        stuck=False,
        subjects=({"table": "orders", "measure": "revenue"}, {"table": "visits", "measure": "sign_ups"}),
        opening=(
            DemoCall("run_sql", {"query": "select count(*) from $table"}, "1 row: $roll"),
            DemoCall("describe_table", {"table": "$table"}, "id, created_at, country, $measure"),
            DemoCall(
                "run_sql", {"query": "select sum(${measure}) from $table"}, "column is text", is_error=True
            ),
            DemoCall("run_sql", {"query": "select sum(${measure}::numeric) from $table"}, "1 row: $roll.20"),
            DemoCall(
                "run_sql",
                {"query": "select country, sum(${measure}::numeric) from $table group by 1"},
                "31 rows",
            ),
        ),
        close=(DemoCall("make_chart", {"kind": "bar", "title": "$measure by country"}, "chart-81.svg"),),
    ),
    Scenario(
        name="book-travel",
        agent="browser",
        backend="openai",
        model="computer-use",
        stuck=False,
        opening=(
            DemoCall("browser_navigate", {"url": "https://trains.example"}, "Title: Find a train"),
            DemoCall("browser_type", {"ref": "from", "text": "Harbour"}, "ok", seconds=1),
            DemoCall("browser_type", {"ref": "to", "text": "Old Town"}, "ok", seconds=1),
            DemoCall("browser_click", {"ref": "search"}, "12 trains found"),
        ),
        repeated=(DemoCall("browser_scroll", {"by": 600}, "shows trains $n to $m", seconds=1.5),),
        laps=4,
        close=(DemoCall("browser_click", {"ref": "train-7"}, "Seat 24 held for 10 minutes"),),
    ),
)
