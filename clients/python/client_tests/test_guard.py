"""The guard against a real server, and without one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest

from loopguard_client import Call, CallBlocked, Guard, HardStop, RunStopped, Status, Verdict

from .proxy import Proxy

PATIENT = 20.0
"""Seconds that a check may take where its time is not the subject: the machine may be busy."""


@pytest.fixture
def guard(server) -> Iterator[Guard]:
    guard = Guard(server.url, server.key, agent="tester", budget_seconds=PATIENT)
    yield guard
    assert guard.close(PATIENT)


@pytest.fixture
def proxy(server) -> Iterator[Proxy]:
    with Proxy(server.url).running() as running:
        yield running


@pytest.fixture
def away(server, proxy) -> Iterator[Guard]:
    """A guard whose server can go away."""
    guard = Guard(proxy.url, server.key, agent="tester", budget_seconds=PATIENT, fail_closed=["delete_*"])
    yield guard
    proxy.released.set()
    guard.close(0)


def eventually(check: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 40
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def played(session, times: int, tool: str = "search", content: str = "0 hits") -> list[Verdict]:
    """Make one call over and over, and run it when that is allowed."""
    verdicts = []
    for _ in range(times):
        verdicts.append(verdict := session.check(tool, {"q": "x"}))
        if verdict.may_run:
            session.result(verdict, content)
    return verdicts


# Verdicts


def test_three_of_ten_identical_calls_run(guard, server, name):
    verdicts = played(guard.session(name), 10)
    assert [verdict.decision for verdict in verdicts[:3]] == ["allow", "allow", "warn"]
    assert sum(verdict.may_run for verdict in verdicts) == 3
    assert [verdict.decision for verdict in verdicts[3:]] == ["block"] * 4 + ["stop"] * 3
    assert verdicts[3].message
    assert verdicts[3].incident.startswith("inc_")
    assert {verdict.source for verdict in verdicts} == {"server"}
    assert guard.status == Status()
    calls = server.calls(name)
    assert [call["agent"] for call in calls] == ["tester"] * 10
    assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3


def test_a_command_in_another_directory_is_another_call(guard, server, name):
    session = guard.session(name)
    for number in range(6):
        verdict = session.check("bash", {"command": "git pull"}, cwd=f"/src/repo-{number}")
        assert verdict.decision == "allow"
        session.result(verdict, "Already up to date.")
    here = [session.check("bash", {"command": "git pull"}, cwd="/src/repo-0").decision for _ in range(4)]
    assert "block" in here
    assert server.calls(name)[1]["cwd"] == "/src/repo-1"


async def test_three_of_ten_identical_calls_run_in_an_event_loop(guard, name):
    session = guard.session(name)
    runs = 0
    for _ in range(10):
        verdict = await session.acheck("search", {"q": "x"})
        if verdict.may_run:
            runs += 1
            session.result(verdict, "0 hits")
    assert runs == 3


def ladder(server, name, *rungs, **values):
    server.post("/events", {"type": "message", "session": name, "content": "go"})
    server.patch(f"/sessions/{name}/policy", {"mode": list(rungs), **values})


def test_the_known_answer_of_a_read_comes_back_and_is_no_error(guard, server, name):
    ladder(server, name, "reuse")
    session = guard.session(name)
    verdict = played(session, 4, tool="read_file", content="three notes")[-1]
    assert (verdict.decision, verdict.ending, verdict.is_answer) == ("block", "reuse", True)
    assert verdict.message.endswith("\nthree notes")

    @guard.tool(name="read_file", message_as_result=True)
    def read(q: str) -> str:
        raise AssertionError("it must not run")

    with session:
        assert read("x").endswith("\nthree notes")
    server.patch(f"/sessions/{name}/policy", {"mode": ["finish"]})
    verdict = session.check("read_file", {"q": "x"})
    assert (verdict.ending, verdict.is_answer, verdict.may_run) == ("finish", False, False)


async def test_a_delayed_call_waits_as_long_as_the_guard_may_and_runs(guard, server, name):
    ladder(server, name, "delay", delay_seconds=1)
    verdicts = [await guard.session(name).acheck("fetch_page", {"q": "x"}) for _ in range(3)]
    started = time.monotonic()
    verdicts += [await guard.session(name).acheck("fetch_page", {"q": "x"})]
    assert verdicts[-1].decision == "allow"
    assert time.monotonic() - started > 1
    guard.max_delay_seconds = 0
    refused = await guard.session(name).acheck("fetch_page", {"q": "x"})
    assert (refused.decision, refused.ending, refused.retry_after_seconds) == ("block", "delay", 2.0)
    assert "Wait 2 s" in refused.message
    assert [call["decision"] for call in server.calls(name)][-2:] == ["allow", "block"]


def test_pauses_of_one_response_pass_together_and_named_tools_need_a_verdict(
    proxy, server, name, monkeypatch
):
    ladder(server, name, "delay", delay_seconds=1)
    guard = Guard(proxy.url, server.key, budget_seconds=PATIENT, fail_closed=["search_*"])
    pauses, wait = [], guard.wait

    def waiting(request):
        if request.method == "SLEEP":
            pauses.append(request.seconds)
            proxy.mode = "refuse" if len(pauses) == 2 else "pass"
        return wait(request)

    monkeypatch.setattr(guard, "wait", waiting)
    assert [guard.session(name).check("search_web").may_run for _ in range(3)] == [True] * 3
    verdicts = guard.session(name).check_calls([Call("search_web"), Call("search_web")])
    assert [(verdict.decision, verdict.ending) for verdict in verdicts] == [("allow", ""), ("block", "delay")]
    assert len(pauses) == 2
    assert verdicts[1].retry_after_seconds == 2
    assert max(pauses) <= 1
    guard.close(0)


def test_results_that_change_are_progress(guard, name):
    session = guard.session(name)
    for number in range(8):
        verdict = session.check("read_status", {"job": 1})
        assert verdict.decision == "allow"
        session.result(verdict, f"{number * 10} % done, step {'abcdefgh'[number]}")


def test_the_same_write_of_one_response_runs_once(guard, name):
    session = guard.session(name)
    order, look = Call("place_order", {"sku": "B-1"}), Call("get_order", {"id": 7})
    verdicts = session.check_calls([order, look, order, look])
    assert [one.decision for one in verdicts] == ["allow", "allow", "block", "allow"]
    assert "The result of that call is the result of this one" in verdicts[2].message
    later = session.check("send_email", {"to": "bo@example.org"}, round="resp_1")
    again = session.check("send_email", {"to": "bo@example.org"}, round="resp_1")
    assert (later.decision, again.decision) == ("allow", "block")


def test_calls_of_one_response_take_one_request(server, proxy, name):
    guard = Guard(proxy.url, server.key, budget_seconds=PATIENT)
    verdicts = guard.session(name).check_calls(
        [Call("read", {"path": "a"}, "c1"), Call("read", '{"path": "b"}', "c2")], round="resp_1"
    )
    assert [(verdict.call_id, verdict.decision) for verdict in verdicts] == [("c1", "allow"), ("c2", "allow")]
    assert proxy.seen == ["POST /api/v1/guard"]
    assert [call["round"] for call in server.calls(name)] == ["resp_1"] * 2
    assert guard.session(name).check_calls([]) == []
    guard.close()


def test_the_last_result_and_the_end_arrive_without_another_call(guard, server, name):
    session = guard.session(name)
    session.user_message("Find it.")
    verdict = session.check("search", {"q": "x"})
    session.heartbeat(verdict)
    session.result(verdict, {"hits": [1, 2]})
    session.end("failed")
    assert eventually(lambda: server.session(name)["outcome"] == "failed")
    assert guard.status.dropped_events == 0, "the server knows heartbeats"
    assert server.calls(name)[0]["result"]["content"] == '{"hits":[1,2]}'


def test_reused_call_ids_count_as_calls_of_their_own(guard, name):
    session = guard.session(name)
    decisions = []
    for _ in range(6):
        verdict = session.check("search", {"q": "x"}, call_id="call_0")
        decisions.append(verdict.may_run)
        if verdict.may_run:
            session.result("call_0", "0 hits")
    assert decisions == [True] * 3 + [False] * 3


def test_a_held_call_waits_for_its_approval(guard, server, name):
    session = guard.session(name)
    played(session, 1)
    server.patch(f"/sessions/{name}/policy", {"mode": "ask"})
    answers = []

    def decide() -> None:
        def waiting() -> list[dict[str, str]]:
            return [one for one in server.get("/approvals")["items"] if one["session"] == name]

        assert eventually(lambda: bool(waiting()))
        answers.append(server.post(f"/approvals/{waiting()[0]['id']}/decision", {"choice": "allow_once"}))

    person = threading.Thread(target=decide, daemon=True)
    person.start()
    verdicts = played(session, 3)
    person.join(PATIENT)
    assert answers
    assert [verdict.decision for verdict in verdicts] == ["allow", "warn", "allow"]


def test_a_held_call_does_not_run_if_nobody_decides(server, name):
    with contextlib.closing(Guard(server.url, server.key, budget_seconds=PATIENT, hold_seconds=1.5)) as guard:
        session = guard.session(name)
        played(session, 1)
        server.patch(f"/sessions/{name}/policy", {"mode": "ask"})
        verdict = played(session, 3)[-1]
    assert verdict.decision == "block"
    assert verdict.message.endswith("It did not run. Try something else.")


# Decorator and context manager


def test_a_decorated_function_runs_three_times(guard, name):
    runs = []

    @guard.tool
    def search(q: str, limit: int = 10) -> str:
        runs.append((q, limit))
        return "0 hits"

    with guard.session(name):
        assert [search("x"), search(q="x")] == ["0 hits"] * 2
        warned = search("x", limit=10)
        assert warned.endswith("\n\n0 hits")
        assert len(warned) > len("\n\n0 hits")
        with pytest.raises(CallBlocked, match="search"):
            search("x")
        for _ in range(3):
            with contextlib.suppress(CallBlocked):
                search("x")
        with pytest.raises(RunStopped, match="search"):
            search("x")
    assert runs == [("x", 10)] * 3


async def test_a_hard_stop_is_no_exception_that_a_framework_makes_a_result_of(guard, name):
    runs = []

    @guard.tool(hard_stop=True, message_as_result=True)
    def search(q: str) -> str:
        runs.append(q)
        return "0 hits"

    @guard.tool(name="search", hard_stop=True, message_as_result=True)
    async def search_async(q: str) -> str:
        runs.append(q)
        return "0 hits"

    async def framework() -> None:
        for number in range(40):
            with contextlib.suppress(Exception):
                if number % 2:
                    await search_async("x")
                else:
                    search("x")

    with guard.session(name), pytest.raises(HardStop, match="search") as ended:
        await framework()
    assert runs == ["x"] * 3
    assert ended.value.verdict.decision == "stop"


async def test_a_decorated_coroutine_gives_the_message_as_result(guard, server, name):
    runs = []
    session = guard.session(name)

    @guard.tool(name="lookup", message_as_result=True)
    async def search(q: str) -> str:
        runs.append(q)
        return "0 hits"

    async with session:
        answers = [await search("y") for _ in range(4)]
    assert runs == ["y"] * 3
    assert "lookup" in answers[3]


def test_a_raised_exception_is_the_result(guard, server, name):
    @guard.tool
    def search(q: str) -> str:
        raise KeyError(q)

    with guard.session(name), pytest.raises(KeyError):
        search("x")
    assert guard.flush(PATIENT)
    assert server.calls(name)[0]["result"]["is_error"] is True
    assert server.calls(name)[0]["result"]["content"] == "KeyError: 'x'"


def test_a_block_of_code_is_guarded(guard, server, name):
    session = guard.session(name)
    with session.call("search", {"q": "x"}) as call:
        assert call.result("0 hits") == "0 hits"
    with session.call("search", {"q": "y"}):
        pass
    assert guard.flush(PATIENT)
    assert [call["result"]["content"] for call in server.calls(name)] == ["0 hits", None]


def test_a_session_without_a_name_ends_with_its_block(guard, server):
    with guard.session() as session:
        assert guard.current_session() is session
        session.check("search")
    assert guard.current_session() is not session
    assert guard.flush(PATIENT)
    assert eventually(lambda: server.session(session.name)["outcome"] == "completed")


def test_generators_are_not_guarded(guard):
    def lines():
        yield 1

    with pytest.raises(TypeError, match="generator"):
        guard.tool(lines)


# Values of all kinds


class Broken(dict):
    """A mapping of an application that cannot be read."""

    def items(self):
        raise RuntimeError("not now")

    __str__ = items


@pytest.mark.parametrize(
    "arguments",
    [
        Broken(a=1),
        {"x": math.nan, "y": -math.inf, "z": 10**400, "n": 1e308},
        {"text": "\ud800 \x00 \u202e", "bytes": b"\x00\xff", "set": {2, 1}, "key": object},
        {"file": "A" * 5_000_000},
        {"many": [{"path": f"{n}", "text": "y" * 50} for n in range(20_000)]},
        "not JSON " * 10_000,
        '{"q": ' + "[" * 500 + "]" * 500 + "}",
        {"deep": json.loads("[" * 300 + "]" * 300)},
        {"q": "[" * 500 + "]" * 500},
        {"k" * 1000: 1, 5: 2},
    ],
    ids=[
        "broken",
        "numbers",
        "characters",
        "large",
        "many",
        "text",
        "deep text",
        "deep",
        "deep text inside",
        "keys",
    ],
)
def test_arguments_of_any_kind_get_a_verdict_of_the_server(guard, name, arguments):
    session = guard.session(name)
    verdict = session.check("write\nfile" + "x" * 300, arguments, call_id="c\t1" + "y" * 400, round="r" * 999)
    assert (verdict.source, verdict.decision, verdict.reason) == ("server", "allow", "")
    session.result(verdict, arguments)
    assert guard.flush(PATIENT)
    assert guard.status == Status()


def test_large_arguments_that_differ_at_their_end_are_different_calls(guard, name):
    session = guard.session(name)
    for number in range(5):
        assert session.check("write_file", {"text": "A" * 100_000 + str(number)}).decision == "allow"


def test_a_large_result_keeps_its_length_and_digest(guard, server, name):
    session = guard.session(name)
    session.result(session.check("read_file", {"path": "a"}), "B" * 3_000_000)
    assert guard.flush(PATIENT)
    assert "3000000 characters, sha256" in server.calls(name)[0]["result"]["content"]


# Without a server


@pytest.mark.promise("REL-28")
def test_calls_run_while_the_server_is_away_and_count_when_it_is_back(away, proxy, server, name):
    session = away.session(name)
    played(session, 1, content="first")
    proxy.mode = "refuse"
    verdicts = [session.check("read", {"path": str(number)}, call_id=f"c{number}") for number in range(5)]
    for verdict in verdicts:
        session.result(verdict, f"file {verdict.call_id}")
    assert {verdict.decision for verdict in verdicts} == {"allow"}
    assert {verdict.source for verdict in verdicts} == {"client"}
    assert "failed" in verdicts[0].reason
    assert away.degraded
    assert away.status.unguarded_calls == 5
    assert away.status.waiting_events >= 10
    proxy.mode = "pass"
    assert eventually(lambda: not away.degraded and not away.status.waiting_events)
    assert eventually(lambda: server.session(name)["pending_events"] == 0)
    assert [call["call_id"] for call in server.calls(name)[1:]] == [f"c{number}" for number in range(5)]
    assert [call["result"]["content"] for call in server.calls(name)[1:]] == [f"file c{n}" for n in range(5)]


@pytest.mark.promise("REL-28")
def test_the_fourth_identical_call_does_not_run_while_the_server_is_away(away, proxy, server, name):
    proxy.mode = "refuse"
    verdicts = played(away.session(name), 10)
    assert [verdict.decision for verdict in verdicts] == ["allow"] * 3 + ["block"] * 4 + ["stop"] * 3
    assert "call 4 of `search`" in verdicts[3].message
    proxy.mode = "pass"
    assert eventually(lambda: not away.status.waiting_events)
    assert len(server.calls(name)) == 10


def test_calls_that_the_server_has_decided_count_when_it_is_away_in_between(away, proxy, server, name):
    session = away.session(name)
    first = played(session, 1)
    proxy.mode = "busy"  # the database is away
    second = played(session, 1)
    proxy.mode = "pass"
    assert eventually(lambda: not away.degraded)
    third = played(session, 1)
    proxy.mode = "silent"
    away.budget_seconds = 0.1
    fourth = played(session, 1)
    assert [one.source for one in (*first, *second, *third, *fourth)] == [
        "server",
        "client",
        "server",
        "client",
    ]
    assert [one.may_run for one in (*first, *second, *third, *fourth)] == [True, True, True, False]
    assert "call 4 of `search`" in fourth[0].message


def test_calls_that_the_server_allows_beyond_the_limit_are_no_loop_without_it(away, proxy, server, name):
    session = away.session(name)
    played(session, 1)
    server.patch(f"/sessions/{name}/policy", {"max_repeats": 9})
    assert all(one.may_run for one in played(session, 4))
    proxy.mode = "refuse"
    assert [one.may_run for one in played(session, 3)] == [True, True, False]


def test_changing_results_are_progress_while_the_server_is_away(away, proxy, name):
    proxy.mode = "refuse"
    session = away.session(name)
    for number in range(12):
        assert played(session, 1, content=f"{number} %")[0].decision == "allow"


def test_named_tools_do_not_run_without_a_verdict(away, proxy, name):
    proxy.mode = "refuse"
    verdict = away.session(name).check("delete_repository", {"name": "x"})
    assert (verdict.decision, verdict.source) == ("block", "client")
    assert "did not run" in verdict.message


def test_a_stopped_session_stays_stopped_while_the_server_is_away(away, proxy, server, name):
    session = away.session(name)
    played(session, 1)
    server.post(f"/sessions/{name}/stop", {})
    assert session.check("read", {"path": "a"}).decision == "stop"
    proxy.mode = "refuse"
    assert session.check("read", {"path": "b"}).decision == "stop"


@pytest.mark.parametrize("mode", ["refuse", "silent", "fail", "busy"])
def test_a_server_that_fails_is_left_alone_after_three_requests(server, proxy, name, mode):
    proxy.mode = mode
    notes: list[Status] = []
    guard = Guard(proxy.url, server.key, budget_seconds=0.1, on_status=notes.append)
    session = guard.session(name)
    for number in range(3):
        assert session.check("read", {"path": str(number)}).decision == "allow"
    assert not guard.breaker.permits()
    assert guard.degraded
    assert notes[0].degraded
    assert guard.status.unguarded_calls == 3
    before = len(proxy.seen)
    assert session.check("read", {"path": "3"}).source == "client"
    assert len(proxy.seen) == before
    proxy.released.set()
    guard.close(0)


def test_an_answer_that_trickles_in_has_a_deadline(away, proxy, name):
    proxy.mode = "trickle"
    away.budget_seconds = 0.1
    session = away.session(name)
    assert session.check("read", {"path": "a"}).source == "client"
    assert not away.flush(0.1)  # in this thread, as at the end of a process


def test_a_call_whose_answer_was_lost_counts_once(away, proxy, server, name):
    session = away.session(name)
    proxy.mode = "lose"
    session.result(session.check("read", {"path": "a"}), "text")
    proxy.mode = "pass"
    session.result(session.check("read", {"path": "b"}), "text")
    assert away.flush(PATIENT)
    assert [call["arguments"] for call in server.calls(name)] == ['{"path":"a"}', '{"path":"b"}']
    assert server.calls(name)[0]["result"]["content"] == "text"


def test_an_address_without_a_server(name):
    guard = Guard("http://127.0.0.1:9", "lg_x", fail_closed=["pay"])
    session = guard.session(name)
    assert session.check("read").decision == "allow"
    assert session.check("pay").decision == "block"
    assert guard.status.reason == "No server listens at http://127.0.0.1:9."


def test_a_wrong_key_is_visible_and_not_in_the_log(server, name, caplog):
    key = server.key[:-4] + "0000"
    guard = Guard(server.url, key, budget_seconds=PATIENT)
    with caplog.at_level(logging.DEBUG):
        assert guard.session(name).check("read").decision == "allow"
    assert "answered 401" in guard.status.reason
    assert not guard.breaker.permits()
    assert "answered 401" in caplog.text
    assert key not in caplog.text + repr(guard) + repr(guard.status)


def test_another_server_is_not_taken_for_loopguard(name):
    with Proxy("http://127.0.0.1:9").running() as other:
        other.mode = "fail"
        guard = Guard(other.url, "lg_x")
        assert guard.session(name).check("read").source == "client"
        assert "answered 500" in guard.status.reason


def test_a_key_that_may_only_ask_still_reports_results(away, proxy, server, name):
    proxy.mode = "no-events"
    session = away.session(name)
    session.result(session.check("read", {"path": "a"}), "text")
    assert eventually(lambda: not away.status.waiting_events)
    assert server.calls(name)[0]["result"]["content"] == "text"
    assert not away.degraded


@pytest.mark.parametrize(
    ("url", "key", "wrong"),
    [
        ("", "lg_x", "the address"),
        ("http://x", "", "an API key"),
        ("ftp://x", "lg_x", "HTTP address"),
        ("http://x:0", "lg_x", "HTTP address"),
        ("http://x", "a b", "key"),
    ],
)
def test_a_wrong_configuration_is_an_error_at_the_start(url, key, wrong, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LOOPGUARD_URL", raising=False)
    monkeypatch.delenv("LOOPGUARD_KEY", raising=False)
    with pytest.raises(ValueError, match=wrong):
        Guard(url, key)


def test_an_unusual_call_that_the_server_rejects_is_dropped_and_counted(away, proxy, name):
    session = away.session(name)
    session.outbox.append({"type": "nonsense", "id": "evt-1", "session": session.name})
    assert session.check("read").source == "server"
    assert away.status.dropped_events == 1
    assert not away.degraded


# Threads, event loops, processes


def test_threads_share_a_session(guard, server, name):
    session = guard.session(name)
    verdicts: list[Verdict] = []

    def work(worker: int) -> None:
        for number in range(5):
            verdict = session.check("read", {"path": f"{worker}/{number}"})
            session.result(verdict, "text")
            verdicts.append(verdict)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * PATIENT)
    assert guard.flush(PATIENT)
    assert {verdict.source for verdict in verdicts} == {"server"}
    assert len(verdicts) == len(server.calls(name)) == 40
    assert all(call["result"] for call in server.calls(name))


def test_identical_calls_of_threads_count_one_by_one(guard, server, name):
    session = guard.session(name)
    played(session, 1)
    verdicts: list[Verdict] = []
    threads = [
        threading.Thread(target=lambda: verdicts.append(session.check("search", {"q": "x"})), daemon=True)
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT)
    assert sum(verdict.may_run for verdict in verdicts) == 2
    assert len(server.calls(name)) == 7


async def test_the_event_loop_continues_while_the_server_is_silent(server, proxy, name):
    proxy.mode = "silent"
    guard = Guard(proxy.url, server.key, budget_seconds=0.5)
    check = asyncio.create_task(guard.session(name).acheck("read"))
    ticks = 0
    async with asyncio.timeout(PATIENT):
        while not check.done():
            ticks += 1
            await asyncio.sleep(0.01)
    assert check.result().source == "client"
    assert ticks > 3
    proxy.released.set()
    guard.close(0)


async def test_a_cancelled_check_leaves_no_open_call(away, proxy, server, name):
    session = away.session(name)
    await session.acheck("read", {"path": "a"})
    proxy.mode = "silent"
    check = asyncio.create_task(session.acheck("read", {"path": "b"}))
    async with asyncio.timeout(PATIENT):
        while len(proxy.seen) < 2:
            await asyncio.sleep(0.01)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    proxy.mode = "pass"
    proxy.released.set()
    assert await asyncio.to_thread(eventually, lambda: not away.status.waiting_events)
    assert server.calls(name)[1]["result"]["content"] == "Cancelled before it ran."


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_guards_its_own_calls(guard, server, name):
    session = guard.session(name)
    first = session.check("read", {"path": "parent"})
    session.result(first, "parent's result")
    child = os.fork()
    if child == 0:
        try:
            assert not session.outbox
            verdict = session.check("read", {"path": "child"})
            session.result(verdict, "child's result")
            os._exit(0 if verdict.source == "server" and guard.flush(PATIENT) else 1)
        except BaseException:  # noqa: BLE001 (the child must not return into pytest)
            traceback.print_exc()
            os._exit(2)
    ends = threading.Timer(3 * PATIENT, os.kill, (child, signal.SIGKILL))
    ends.start()
    status = os.waitpid(child, 0)[1]
    ends.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    assert session.check("read", {"path": "after"}).source == "server"
    assert guard.flush(PATIENT)
    results = {call["arguments"]: (call["result"] or {}).get("content") for call in server.calls(name)}
    assert results == {
        '{"path":"parent"}': "parent's result", '{"path":"child"}': "child's result", '{"path":"after"}': None,
    }  # fmt: skip


def test_a_guard_that_is_not_used_any_more_ends_its_thread(server, name):
    guard = Guard(server.url, server.key, budget_seconds=PATIENT)
    guard.session(name).result("c1", "text")
    sender = guard._sender
    assert sender is not None
    assert guard.close(PATIENT)
    sender.join(20)
    assert not sender.is_alive()


# With other integrations


def test_hooks_and_client_on_one_agent_count_a_call_once(guard, server, name):
    session = guard.session(name)
    runs = 0
    for number in range(10):
        body = {
            "session_id": name, "hook_event_name": "PreToolUse", "tool_name": "search", "tool_input": {"q": "x"},
            "tool_use_id": f"toolu_{number}",
        }  # fmt: skip
        hook = server.post("/hooks/claude-code", body).get("hookSpecificOutput", {})
        verdict = session.check("search", {"q": "x"}, call_id=f"toolu_{number}")
        assert (hook.get("permissionDecision") == "deny") is not verdict.may_run
        if verdict.may_run:
            runs += 1
            session.result(verdict, "0 hits")
            server.post(
                "/hooks/claude-code", {**body, "hook_event_name": "PostToolUse", "tool_response": "0 hits"}
            )
    assert runs == 3
    assert guard.flush(PATIENT)
    assert len(server.calls(name)) == 10
    assert server.get(f"/incidents?session={name}")["items"][0]["calls_in_loop"] == 10


def test_two_processes_on_one_session_count_together(server, name):
    guards = [Guard(server.url, server.key, agent=agent, budget_seconds=PATIENT) for agent in ("one", "two")]
    runs = 0
    for number in range(8):
        session = guards[number % 2].session(name)
        verdict = session.check("search", {"q": "x"})
        if verdict.may_run:
            runs += 1
            session.result(verdict, "0 hits")
            assert guards[number % 2].flush(PATIENT)
    assert runs == 3
    assert [guard.close(PATIENT) for guard in guards] == [True, True]


def test_a_call_of_a_killed_process_is_no_obstacle(guard, server, name):
    """Its result never arrives; the agent starts again in another process, with the same session."""
    killed = Guard(server.url, server.key, budget_seconds=PATIENT)
    assert killed.session(name).check("search", {"q": "x"}, call_id="c0").may_run
    del killed
    assert [verdict.may_run for verdict in played(guard.session(name), 4)].count(True) >= 2


def test_sessions_have_the_tags_and_metadata_of_guard_and_session(server, monkeypatch):
    monkeypatch.setenv("LOOPGUARD_TAGS", "run-1, run-2")
    guard = Guard(server.url, server.key, tags=["team-a"], metadata={"env": "prod"}, budget_seconds=PATIENT)
    session = guard.session("labelled", tags=["nightly", "x" * 80], metadata={"customer": "acme"})
    session.check("search", {"q": "1"})
    guard.session("labelled", tags=["late"]).check("search", {"q": "2"})
    found = server.session("labelled")
    assert found["tags"][:4] == ["team-a", "run-1", "run-2", "nightly"]
    assert len(found["tags"][4]) == 64
    assert found["tags"][5] == "late"
    assert found["metadata"] == {"env": "prod", "customer": "acme"}
    assert guard.close(PATIENT)
