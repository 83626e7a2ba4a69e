"""Runs that get stuck, each in its own way."""

from __future__ import annotations

from detection.demo.scenario import DemoCall, Scenario

_FAILED_SEARCHES = (
    {"q": "how to reset admin password on device", "say": "That article is gone; asking the vendor instead."},
    {"q": "warranty terms for pump P-40", "say": "No public page; asking sales."},
    {"q": "error 0x5F2 printer driver", "say": "Nobody wrote about it; asking the customer for a photo."},
)

STUCK: tuple[Scenario, ...] = (
    Scenario(
        name="same-search",
        agent="triage",
        backend="openai",
        model="gpt-5",
        stuck=True,
        subjects=_FAILED_SEARCHES,
        opening=(DemoCall("read_ticket", {"id": "9120"}, "Customer asks: $q"),),
        repeated=(DemoCall("search_web", {"q": "$q", "limit": 10}, "0 hits"),),
        laps=8,
        close=(DemoCall("write_answer", {"text": "$say"}, "saved"),),
    ),
    Scenario(
        name="hammer",
        agent="deploy-bot",
        backend="local",
        model="qwen3-32b",
        stuck=True,
        says="Roll out the web service. !/set(tool-loop-mode=chance_then_break)",
        opening=(DemoCall("kubectl", {"args": "get deploy web"}, "web 0/3 ready"),),
        repeated=(
            DemoCall(
                "kubectl",
                {"args": "apply -f web.yaml"},
                "error: field image is not known",
                is_error=True,
                seconds=1.5,
            ),
        ),
        laps=12,
        on_block="hammers",
        close=(DemoCall("post_message", {"channel": "ops", "text": "web.yaml is refused"}, "posted"),),
    ),
    Scenario(
        name="open-and-grep",
        agent="coder",
        backend="anthropic",
        model="sonnet-5",
        stuck=True,
        subjects=({"name": "parse_header"}, {"name": "flush_queue"}),
        opening=(DemoCall("list_directory", {"path": "src"}, "core/ io/ main.py"),),
        repeated=(
            DemoCall(
                "read_file", {"path": "src/core/parser.py"}, "# 412 lines, $name is imported from io.legacy"
            ),
            DemoCall("grep", {"pattern": "def $name", "path": "src"}, "no matches"),
        ),
        laps=7,
        recovers=0.5,
        close=(DemoCall("bash", {"command": "git log -S '$name' --oneline"}, "8f2c1aa drop io.legacy"),),
    ),
    Scenario(
        name="cookie-wall",
        agent="browser",
        backend="openai",
        model="computer-use",
        stuck=True,
        endpoint="events",
        opening=(
            DemoCall(
                "browser_navigate", {"url": "https://news.example/archive"}, "Title: We value your privacy"
            ),
        ),
        repeated=(
            DemoCall("browser_snapshot", {}, "dialog: accept or leave", seconds=1.5),
            DemoCall("browser_click", {"ref": "accept"}, "clicked", seconds=1),
            DemoCall(
                "browser_navigate",
                {"url": "https://news.example/archive"},
                "Title: We value your privacy",
                seconds=1.5,
            ),
        ),
        laps=7,
    ),
    Scenario(
        name="reworded",
        agent="researcher",
        backend="openai",
        model="gpt-5-mini",
        stuck=True,
        subjects=({"thing": "tidal clock"}, {"thing": "paper kite"}),
        opening=(
            DemoCall("search_web", {"q": "$thing founder interview"}, "No results found for your search."),
        ),
        repeated=(
            DemoCall(
                "search_web",
                {"q": "$thing founder interview transcript part $n"},
                "No results found for your search.",
            ),
        ),
        laps=10,
        recovers=0.2,
        close=(DemoCall("write_answer", {"text": "There is no such interview."}, "saved"),),
    ),
    Scenario(
        name="failing-endpoint",
        agent="bookkeeper",
        backend="local",
        model="qwen3-32b",
        stuck=True,
        endpoint="events",
        repeated=(
            DemoCall(
                "call_api",
                {"method": "GET", "path": "/v2/customers/$roll"},
                '{"error": {"code": 503, "message": "upstream is not available"}}',
                is_error=True,
            ),
        ),
        laps=11,
    ),
    Scenario(
        name="same-answer",
        agent="analyst",
        backend="anthropic",
        model="haiku-5",
        stuck=True,
        repeated=(
            DemoCall(
                "run_sql",
                {"query": "select * from refunds where note ilike '%case $n%'"},
                "0 rows of 18,220 looked at",
            ),
        ),
        laps=12,
        recovers=0.15,
        close=(DemoCall("write_answer", {"text": "Refunds carry no note."}, "saved"),),
    ),
    Scenario(
        name="edit-not-found",
        agent="coder",
        backend="local",
        model="qwen3-32b",
        stuck=True,
        endpoint="events",
        opening=(
            DemoCall("read_file", {"path": "settings.toml"}, "[server]\nport = 8080\n# 40 lines follow"),
        ),
        repeated=(
            DemoCall(
                "str_replace",
                {"path": "settings.toml", "old": "port: 8080", "new": "port: 9090"},
                "old text not found",
                is_error=True,
            ),
            DemoCall(
                "read_file", {"path": "settings.toml"}, "[server]\nport = 8080\n# 40 lines follow", seconds=1
            ),
        ),
        laps=6,
    ),
    Scenario(
        name="impatient-poll",
        agent="poller",
        backend="openai",
        model="gpt-5-mini",
        stuck=True,
        opening=(DemoCall("start_job", {"kind": "reindex"}, '{"job": "job-77", "state": "queued"}'),),
        repeated=(
            DemoCall(
                "get_job_status", {"job": "job-77"}, '{"job": "job-77", "state": "queued"}', seconds=0.4
            ),
        ),
        laps=24,
        recovers=0.3,
        close=(
            DemoCall("sleep", {"seconds": 60}, "slept"),
            DemoCall("get_job_status", {"job": "job-77"}, '{"state": "finished"}'),
        ),
    ),
    Scenario(
        name="not-even-json",
        agent="helper",
        backend="local",
        model="tiny-3b",
        stuck=True,
        repeated=(
            DemoCall(
                "calculator", "add 2 and 2 please", "arguments must be an object", is_error=True, seconds=1
            ),
        ),
        laps=9,
        on_block="hammers",
    ),
    Scenario(
        name="heeds-a-warning",
        agent="triage",
        backend="anthropic",
        model="sonnet-5",
        stuck=True,
        subjects=_FAILED_SEARCHES,
        repeated=(DemoCall("search_tickets", {"query": "$q"}, "0 tickets"),),
        laps=5,
        recovers=1.0,
        close=(
            DemoCall("search_tickets", {"query": "device"}, "212 tickets"),
            DemoCall("write_answer", {"text": "$say"}, "saved"),
        ),
    ),
    Scenario(
        name="asks-first",
        agent="refunds",
        backend="openai",
        model="gpt-5",
        stuck=True,
        subjects=({"order": "A-20931"}, {"order": "A-20977"}, {"order": "A-21004"}),
        says="Refund order $order. !/set(tool-loop-mode=ask)",
        opening=(DemoCall("get_order", {"id": "$order"}, '{"id": "$order", "paid": 49.0}'),),
        repeated=(
            DemoCall(
                "refund_payment",
                {"order": "$order", "amount": 49.0},
                "the payment provider did not answer in time",
                is_error=True,
            ),
        ),
        laps=9,
        close=(DemoCall("write_answer", {"text": "A colleague will refund $order."}, "saved"),),
    ),
    Scenario(
        name="over-budget",
        agent="crawler",
        backend="anthropic",
        model="haiku-5",
        stuck=True,
        says="Read the whole wiki. !/set(tool-loop-budget-enabled=true, tool-loop-budget-max-calls=12)",
        repeated=(
            DemoCall("fetch_page", {"path": "/wiki/page-$n"}, "page $n of the wiki, $roll words", seconds=1),
        ),
        laps=20,
    ),
    Scenario(
        name="never-done",
        agent="planner",
        backend="openai",
        model="gpt-5",
        stuck=True,
        endpoint="events",
        opening=(DemoCall("write_plan", {"goal": "tidy the wiki"}, "plan of 4 points"),),
        repeated=(
            DemoCall("think", {"about": "point $n of the plan"}, "noted", seconds=0.8),
            DemoCall("read_page", {"page": "page-$n"}, "nothing to do here", seconds=0.8),
        ),
        laps=56,
    ),
)
