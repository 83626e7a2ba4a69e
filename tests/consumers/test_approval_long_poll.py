"""An agent that waits for the answer to its approval, through the ASGI application that `live` serves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection
from django.utils import timezone

from detection.consumers import approval_long_poll
from detection.engine.scopes import PROJECT
from detection.models import ApiKey, Approval, Incident, Session
from detection.selectors.approvals import closed_among
from detection.services import keys
from detection.services.approvals import decisions
from detection.services.audit import Actor
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.policies import overrides
from detection.services.sessions import actions
from loopguard_site.asgi import application

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = Actor("ana")
END_WHO_WAITS = """
    SELECT count(pg_terminate_backend(pid)) FROM (SELECT pg_stat_clear_snapshot()) AS anew, pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@sync_to_async
def held(project, **values):
    """Hold a call on an approval; its id and a key to wait with."""
    overrides.save_override(project.pk, PROJECT, {"mode": "ask", **values}, OPERATOR)
    _, token = keys.create_key(project, "agent", OPERATOR)
    principal = keys.authenticate(token)
    for number in range(4):
        call = EventRecord(
            type="call", session="s-1", call_id=f"c-{number}", tool="search", arguments='{"q": "x"}'
        )
        out = guard(principal, GuardRequest(session="s-1", calls=(call,)))
    return out.verdicts[0].approval["id"], token


answer = sync_to_async(decisions.decide)


@pytest.fixture(autouse=True)
def long_poll():
    """Create the middleware anew, as it belongs to one event loop."""
    served = application.application_mapping["http"]
    application.application_mapping["http"] = fresh = approval_long_poll.ApprovalLongPoll(served._application)
    yield fresh
    application.application_mapping["http"] = served


def client(token=""):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(application)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=30)


async def wait_for(token, public_id, seconds=20, **more):
    async with client(token) as http:
        return await http.get(f"/api/v1/approvals/{public_id}", params={"wait": seconds, **more})


async def until(check):
    """Let the other tasks run until the check holds."""
    async with asyncio.timeout(30):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.servers
async def test_the_wait_ends_with_the_decision_and_not_before(project, monkeypatch, long_poll):
    monkeypatch.setattr(approval_long_poll, "POLL_SECONDS", 60.0)  # only a hint of the broker ends the wait
    public_id, token = await held(project)
    waiting = asyncio.create_task(wait_for(token, public_id))
    await until(lambda: public_id in long_poll.waiters._joined)
    assert not waiting.done()
    await answer(project.pk, public_id, "allow_once", OPERATOR)
    told = (await waiting).json()
    assert (told["state"], told["decision"], told["choice"], told["decided_by"]) == (
        "decided",
        "allow",
        "allow_once",
        "ana",
    )
    assert len(long_poll.waiters) == 0


async def test_without_a_broker_the_decision_comes_with_the_next_poll(project, settings, no_broker):
    address = {"address": no_broker, "socket_connect_timeout": 1}
    layer = {**settings.CHANNEL_LAYERS["default"], "CONFIG": {"hosts": [address]}}
    settings.CHANNEL_LAYERS = {"default": layer}
    public_id, token = await held(project)
    waiting = asyncio.create_task(wait_for(token, public_id))
    await asyncio.sleep(0.3)
    await answer(project.pk, public_id, "skip", OPERATOR)
    told = (await asyncio.wait_for(waiting, 20)).json()
    assert told["decision"] == "block"


async def test_unanswered_the_default_comes_at_the_deadline_without_anybodys_help(project):
    public_id, token = await held(project, answer_timeout_seconds=1, unattended_reaction="stop")
    told = (await wait_for(token, public_id)).json()
    assert (told["state"], told["decision"], told["reason"]) == ("expired", "stop", "expired")
    approval = await Approval.objects.aget()
    assert 0 <= (approval.decided_at - approval.deadline).total_seconds() < 1


async def test_a_long_poll_that_times_out_returns_the_open_approval(project):
    public_id, token = await held(project)
    told = (await wait_for(token, public_id, seconds=0.2)).json()
    assert (told["state"], told["decision"], told["message"]) == ("open", None, "")


async def test_an_approval_with_an_id_of_an_earlier_version_can_be_waited_for(project):
    _, token = await held(project)
    await sync_to_async(Approval.objects.update)(public_id="que_0123456789")
    response = await wait_for(token, "que_0123456789", seconds=0)
    assert (response.status_code, response.json()["id"]) == (200, "que_0123456789")


async def test_stopping_the_session_ends_the_wait(project):
    public_id, token = await held(project)
    waiting = asyncio.create_task(wait_for(token, public_id))
    await asyncio.sleep(0.2)
    await sync_to_async(actions.stop)(project.pk, "s-1", OPERATOR, "enough")
    assert (await waiting).json()["decision"] == "stop"


async def test_many_agents_wait_for_one_query_a_second(project, monkeypatch, long_poll):
    looks = []

    def counted(public_ids, now):
        looks.append(len(public_ids))
        return original(public_ids, now)

    original = closed_among
    monkeypatch.setattr(approval_long_poll, "closed_among", counted)
    public_id, token = await held(project)
    waiting = [asyncio.create_task(wait_for(token, public_id)) for _ in range(40)]
    await until(lambda: len(long_poll.waiters) == 40 and looks)
    await answer(project.pk, public_id, "skip", OPERATOR)
    assert {told.json()["decision"] for told in await asyncio.gather(*waiting)} == {"block"}
    assert len(looks) < 40


async def test_the_response_has_the_requested_wire_shape(project):
    public_id, token = await held(project)
    await answer(project.pk, public_id, "skip", OPERATOR)
    told = (await wait_for(token, public_id, render="anthropic")).json()
    assert told["rendered"] == {
        "type": "tool_result",
        "tool_use_id": "c-3",
        "content": told["message"],
        "is_error": True,
    }


async def test_an_approval_that_goes_away_meanwhile_is_not_found(project):
    public_id, token = await held(project)
    waiting = asyncio.create_task(wait_for(token, public_id))
    await asyncio.sleep(0.2)
    await Incident.objects.aupdate(session=None)  # Only on one server does the database do so.
    await Session.objects.all().adelete()
    assert (await waiting).status_code == 404


@pytest.mark.parametrize(
    ("query", "code"),
    [("wait=61", "invalid_value"), ("wait=-1", "invalid_value"), ("wait=nan", "invalid_value"),
     ("wait=soon", "invalid_value"), ("render=html", "invalid_value"), ("waite=3", "unknown_parameter")],
)  # fmt: skip
async def test_an_invalid_request_is_a_problem_with_a_code(query, code, project):
    public_id, token = await held(project)
    async with client(token) as http:
        refused = await http.get(f"/api/v1/approvals/{public_id}?{query}")
    assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert refused.headers["content-type"] == "application/problem+json"


async def test_only_keys_of_the_project_with_the_scope_may_wait(project):
    public_id, token = await held(project)
    _, reader = await sync_to_async(keys.create_key)(project, "reader", OPERATOR, scopes=["read"])
    other = await type(project).objects.acreate(slug="rivals", name="Rivals")
    _, theirs = await sync_to_async(keys.create_key)(other, "agent", OPERATOR)
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    statuses = [(await wait_for(who, public_id)).status_code for who in ("", wrong, reader, theirs)]
    assert statuses == [401, 401, 403, 404]


@pytest.mark.promise("SEC-02")
@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_wait_ends_with_the_key_that_waits(ends, project, long_poll):
    public_id, token = await held(project)
    waiting = asyncio.create_task(wait_for(token, public_id, 60))
    await until(lambda: len(long_poll.waiters) == 1)
    key = await ApiKey.objects.aget()
    if ends == "revoked":
        await sync_to_async(keys.revoke_key)(project, key.public_id, OPERATOR)
    else:
        await ApiKey.objects.aupdate(expires_at=timezone.now())
    response = await asyncio.wait_for(waiting, 20)
    assert (response.status_code, response.json()["code"]) == (401, "unknown_key")
    assert len(long_poll.waiters) == 0


@pytest.mark.parametrize("table", ["apikey", "approval"])
async def test_a_connection_that_ends_while_it_reads_is_answered_with_503(table, project):
    public_id, _ = await held(project)
    _, token = await sync_to_async(keys.create_key)(project, "not cached", OPERATOR)
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        with other.transaction():
            other.execute(f"LOCK TABLE detection_{table}")
            waiting = asyncio.create_task(wait_for(token, public_id))
            await until(lambda: other.execute(END_WHO_WAITS) and waiting.done())
        response = await waiting
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0
    assert (await wait_for(token, public_id, 0)).status_code == 200


async def test_an_agent_that_hangs_up_leaves_no_place_behind(project, long_poll):
    public_id, token = await held(project)
    scope = {
        "type": "http", "method": "GET", "path": f"/api/v1/approvals/{public_id}", "query_string": b"wait=20",
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }  # fmt: skip
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    sent = []

    async def send(event):
        sent.append(event)

    serving = asyncio.create_task(long_poll(scope, incoming.get, send))
    await until(lambda: len(long_poll.waiters) == 1)
    await incoming.put({"type": "http.disconnect"})
    await asyncio.wait_for(serving, 30)
    assert len(long_poll.waiters) == 0
    assert sent == []


async def test_the_wait_url_of_a_held_verdict_points_to_the_live_address(project):
    public_id, _ = await held(project)
    approval = await Approval.objects.aget()
    assert approval.deadline > timezone.now() + timedelta(seconds=60)
    from detection.services.tracking.documents import approval_reference

    assert (
        approval_reference(approval)["wait_url"]
        == f"{settings.LIVE_URL}/api/v1/approvals/{public_id}?wait=30"
    )


ASKED = "An operator has been asked."


@pytest.mark.parametrize(
    ("choice", "decision", "says"),
    [("allow_once", {}, ""), ("skip", {"permissionDecision": "deny"}, "an operator skipped it")],
)
async def test_a_hook_that_waits_is_answered_in_the_format_of_its_host(project, choice, decision, says):
    public_id, token = await held(project)
    waiting = asyncio.create_task(wait_for(token, public_id, hook="codex"))
    await answer(project.pk, public_id, choice, OPERATOR)
    document = (await waiting).json()
    assert document.get("hookSpecificOutput", {}).items() >= decision.items()
    assert says in str(document)
    assert ASKED not in str(document)


async def test_a_hook_that_waits_in_vain_denies_the_call(project):
    public_id, token = await held(project)
    document = (await wait_for(token, public_id, 0.05, hook="gemini-cli")).json()
    assert document["decision"] == "deny"
    assert ASKED in document["reason"]


async def test_a_decision_that_reached_the_hook_is_not_kept_for_the_next_call(project):
    public_id, token = await held(project)
    await sync_to_async(Approval.objects.update)(retry_keys=["k"])
    await answer(project.pk, public_id, "skip", OPERATOR)
    assert (await sync_to_async(Approval.objects.get)()).retry_keys
    await wait_for(token, public_id, hook="codex")
    assert not (await sync_to_async(Approval.objects.get)()).retry_keys


@pytest.mark.promise("SEC-38")
async def test_keys_that_anybody_may_make_up_wait_behind_those_that_were_valid(project, monkeypatch):
    public_id, token = await held(project)
    assert (await wait_for(token, public_id, seconds=0)).status_code == 200
    monkeypatch.setattr(approval_long_poll, "MAX_UNTRUSTED", 0)
    made_up = await wait_for(keys.new_token(keys.PREFIX)[1], public_id, seconds=0)
    assert (made_up.status_code, made_up.json()["code"]) == (503, "too_many_waiting")
    assert (await wait_for("lg_nonsense", public_id, seconds=0)).status_code == 401
    assert (await wait_for(token, public_id, seconds=0)).status_code == 200


async def test_agents_that_come_back_at_once_with_one_key_share_its_lookup(project, monkeypatch):
    public_id, token = await held(project)
    monkeypatch.setattr(approval_long_poll, "MAX_UNTRUSTED", 2)
    answers = await asyncio.gather(*(wait_for(token, public_id, seconds=0) for _ in range(30)))
    assert [one.status_code for one in answers] == [200] * 30
    made_up = [keys.new_token(keys.PREFIX)[1] for _ in range(30)]
    answers = await asyncio.gather(*(wait_for(one, public_id, seconds=0) for one in made_up))
    assert {one.status_code for one in answers} == {401, 503}


async def test_all_that_wait_for_one_approval_get_its_answer(project, long_poll):
    public_id, token = await held(project)
    waiting = [asyncio.create_task(wait_for(token, public_id)) for _ in range(30)]
    await until(lambda: len(long_poll.waiters) == 30)
    await answer(project.pk, public_id, "skip", OPERATOR)
    assert [(await one).json()["decision"] for one in waiting] == ["block"] * 30


async def test_an_unknown_host_is_named(project):
    public_id, token = await held(project)
    problem = (await wait_for(token, public_id, hook="emacs")).json()
    assert (problem["code"], problem["path"]) == ("invalid_value", "hook")


async def test_each_of_several_calls_is_answered_for_itself_by_the_decision_for_all(project):
    _, token = await held(project, preset="proxy")
    principal = await sync_to_async(keys.authenticate)(token)
    calls = [
        EventRecord(type="call", session="s-2", call_id=f"a b&{number}", tool="search", arguments="{}")
        for number in range(5)
    ]
    ask = sync_to_async(guard)
    verdicts = (await ask(principal, GuardRequest(session="s-2", calls=(*calls,)))).verdicts
    waiting = [one for one in verdicts if one.decision == "hold"]
    assert len(waiting) == 2
    assert len({one.approval["id"] for one in waiting}) == 1
    async with client(token) as http:
        urls = [one.approval["wait_url"].removeprefix(settings.LIVE_URL) for one in waiting]
        polls = [asyncio.create_task(http.get(f"{url}&render=openai")) for url in urls]
        await answer(project.pk, waiting[0].approval["id"], "skip", OPERATOR)
        told = [(await poll).json() for poll in polls]
    assert [one["decision"] for one in told] == ["block", "block"]
    assert [one["rendered"]["tool_call_id"] for one in told] == ["a b&3", "a b&4"]
