"""Response times of every list of the console and the API on a database with a million events.

A month of work is laid down by `history`; then each page is asked for by one client, one request after the other,
signed in as the operator (or with a key, for the API), and the time is taken from sending the request to having the
whole answer; of exports, to having the first bytes. It is thus the server's own time and a local round trip. Each page
is asked for `WARM` times unseen, so that connections and statements are there as on a server that runs, then `TIMES`
times; the p95 is what is promised, the p50 stands beside it. The rows lie in the machine's memory: no disk is waited
for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import inf, isinf
from urllib.parse import quote

import httpx

from benchmarks import history, requests
from benchmarks.load import Connection
from benchmarks.report import Figure, percentile
from benchmarks.stack import Stack

MUST_MS = 300
WARM, TIMES = 3, 30
_RUN = quote(history.LONG_RUN, safe="")


def run(stack: Stack) -> Iterator[Figure]:
    """Fill the database of the stack and request every list."""
    found = history.fill(stack)
    for table in ("event", "session", "incident", "loop"):
        yield Figure(f"{table}s in the database", found[table], "rows")
    yield from _bare(stack)
    yield from ask(stack.url, stack.session_cookie(), stack.headers)


def _bare(stack: Stack) -> Iterator[Figure]:
    """Measure the bare endpoint of the same server in the same way."""
    connection = Connection(stack.url, stack.headers)
    spent: list[float] = []
    for number in range(WARM + TIMES):
        before = time.perf_counter()
        connection.send("POST", *requests.bare(0, number))
        spent.append(1000 * (time.perf_counter() - before))
    connection.close()
    half = f"bare endpoint, p50 {percentile(spent[WARM:], 0.5):.1f} ms"
    yield Figure(f"{half}, p95", percentile(spent[WARM:], 0.95), "ms")


def ask(url: str, cookie: str, headers: dict[str, str]) -> Iterator[Figure]:
    """Request every list of a filled server."""
    with (
        httpx.Client(base_url=f"{url}/p/default/", headers={"Cookie": cookie}, timeout=60) as browser,
        httpx.Client(base_url=f"{url}/api/v1/", headers=headers, timeout=60) as program,
    ):
        for client, kind, paths in (
            (browser, "", _pages(program)),
            (program, "API ", _lists(program)),
        ):
            for name, path in paths.items():
                spent = _spent(client, path)
                half = f"{kind}{name}, p50 {percentile(spent, 0.5):.0f} ms"
                yield Figure(f"{half}, p95", percentile(spent, 0.95), "ms", MUST_MS)


def _spent(client: httpx.Client, path: str) -> list[float]:
    """Ask again and again; a page that is not answered as it should be takes for ever, and is not asked for again."""
    spent: list[float] = []
    while len(spent) < WARM + TIMES:
        spent.append(_milliseconds(client, path))
        if isinf(spent[-1]):
            return spent[-1:]
    return spent[WARM:]


def _milliseconds(client: httpx.Client, path: str) -> float:
    before = time.perf_counter()
    with client.stream("GET", path) as answer:
        if answer.status_code != 200:
            return inf
        if "Content-Disposition" in answer.headers:
            next(answer.iter_raw())
        else:
            answer.read()
        spent = time.perf_counter() - before
    return 1000 * spent


def _deep(program: httpx.Client, path: str) -> str:
    """Return the cursor of the list's fifth page."""
    cursor = ""
    for _ in range(4):
        cursor = program.get(path, params={"cursor": cursor, "limit": 500}).json()["next_cursor"]
    return cursor


def _pages(program: httpx.Client) -> dict[str, str]:
    largest: dict[str, int | str] = {"limit": 1, "sort": "-incidents"}
    loop = program.get("loops", params=largest).json()["items"][0]["id"]
    incident = program.get("incidents", params={"loop_id": loop, "limit": 1}).json()["items"][0]["id"]
    alerts = ("routes", "sent", "silences")
    tabs = ("open", "ended", "done", "not_a_loop")
    states = ("running", "looping", "held", "stopped", "idle", "ended")
    return {
        "Now": "now",
        "Policies": "policies",
        "Policies, all settings": "policies/settings",
        "Sessions": "sessions",
        **{f"Sessions, {state}": f"sessions?q=is:{state}" for state in states},
        "Sessions, an agent": "sessions?q=agent:coder",
        "Sessions, an agent that is not there": "sessions?q=agent:nobody",
        "Sessions, text that is found": "sessions?q=pull-request",
        "Sessions, text that is nowhere": "sessions?q=%22no+such+text%22",
        "Sessions, everything but": "sessions?q=-agent:coder+-tool:bash*",
        "Sessions, by cost": "sessions?sort=-cost",
        "Sessions, by state": "sessions?sort=-state",
        "Sessions, page 41": f"sessions?cursor={_deep(program, 'sessions')}",
        "Sessions, rows after a hint": "session/rows?since=1",
        "Sessions, figures after a hint": "session/tabs",
        "Session of 10,000 calls": f"sessions/{_RUN}",
        "Session of 10,000 calls, table": f"sessions/{_RUN}?tab=table",
        "Session of 10,000 calls, an early call": f"sessions/{_RUN}?call=900",
        **{f"History, {tab}": f"loops/history?q=is:{tab}" for tab in tabs},
        "History, all": "loops/history?q=",
        "History, a kind and an agent": "loops/history?q=detector:cycle+agent:coder",
        "History, an agent that is not there": "loops/history?q=agent:nobody",
        "History, everything but": "loops/history?q=-agent:coder+-tool:bash*+cost:%3E0.001",
        "History, text that is found": "loops/history?q=search",
        "History, text that is nowhere": "loops/history?q=%22no+such+text%22",
        "History, by cost": "loops/history?q=&sort=-cost",
        "History, of a week": "loops/history?q=&range=7d",
        "History, completions": "filter-values/incidents?field=tool&text=s",
        "History, page 41": f"loops/history?q=&cursor={_deep(program, 'incidents')}",
        "A run of a loop": f"loops/{loop}?run={incident}",
        "Loops": "loops",
        "Loops, all": "loops?q=",
        "Loops, a kind and an agent, by cost": "loops?q=detector:cycle+agent:coder&sort=-cost",
        "Loops, of a week": "loops?q=&range=7d",
        "Loops, text that is nowhere": "loops?q=%22no+such+text%22",
        "Loop": f"loops/{loop}",
        "Held calls": "held",
        **{f"Insights, {span}": f"insights?range={span}" for span in ("24h", "30d", "365d")},
        "Insights, a year of an agent": "insights?range=365d&q=agent:coder",
        "Insights, 30d by tool": "insights?range=30d&by=tool",
        **{f"Alerts, {tab}": f"alerts?tab={tab}" for tab in alerts},
        "Alerts, failed notifications": "alerts?tab=sent&q=is:failed",
        "Connect": "connect",
        "Ingest": "ingest",
        "Audit": "audit",
        "Audit, a kind": "audit?q=action:key.*",
        "Audit, a person who is not there": "audit?q=actor:nobody",
        "Audit, export, first bytes": "export/audit?format=csv",
        "System": "system",
    }


def _lists(program: httpx.Client) -> dict[str, str]:
    now = datetime.now(UTC)
    month = quote((now - timedelta(days=30)).isoformat())
    return {
        "sessions": "sessions",
        "sessions, 500 of them": "sessions?limit=500",
        "sessions, text that is nowhere": "sessions?q=%22no+such+text%22",
        "sessions, the demo's": "sessions?demo=true",
        "calls of 10,000, first": f"sessions/{_RUN}/calls?limit=500",
        "calls of 10,000, late": f"sessions/{_RUN}/calls?limit=500&cursor=c15000",
        "incidents": "incidents",
        "incidents, 500 of them": "incidents?limit=500",
        "incidents, text that is nowhere": "incidents?q=%22no+such+text%22",
        "incidents, not labelled and resolved": "incidents?label=none&status=resolved",
        "loops": "loops",
        "loops, text that is nowhere": "loops?q=%22no+such+text%22",
        "loops, 500 of them": "loops?limit=500",
        "views": "views",
        "approvals": "approvals",
        "audit": "audit",
        "audit, of a subject that is not there": "audit?subject=nothing",
        "statistics, a week by hour": "statistics?by=hour",
        "statistics, a month by day": f"statistics?by=day&from={month}",
        "statistics, a month by tool": f"statistics?by=tool&from={month}",
        "alerts, notifications": "alerts/notifications",
        "incidents' export, first bytes": "incidents/export",
        "audit's export, first bytes": "audit/export",
    }
