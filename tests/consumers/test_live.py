import asyncio
import contextlib

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.contrib.auth import get_user_model
from django.db import InterfaceError

from detection.consumers import live
from detection.models import Membership, Project, Role
from detection.stream.hints import Hint, project_group
from detection.stream.publisher import publish_now
from detection.web import access_watch as access_watch_module
from detection.web.access_watch import access_watch

from .conftest import open_page, sign_in, socket_to

pytestmark = pytest.mark.django_db(transaction=True)


async def next_hints(socket):
    frame = await socket.frame()
    assert frame["type"] == "hints"
    return frame["hints"]


@pytest.mark.servers
async def test_a_member_gets_hints_of_changes(project, member):
    async with open_page(project, member) as socket:
        publish_now(project.pk, Hint("session", "run-7"))
        assert await next_hints(socket) == [{"topic": "session", "id": "run-7", "change": "changed"}]


async def test_the_first_frame_carries_the_cursor_to_go_on_from(project, member):
    socket = socket_to("/ws/p/support/", member)
    await socket.connect()
    frame = await socket.frame()
    assert frame["type"] == "ready"
    assert int(frame["cursor"]) > 0
    await socket.leave()


@pytest.mark.servers
async def test_many_changes_of_one_object_are_one_hint(project, member):
    async with open_page(project, member) as socket:
        layer = get_channel_layer()
        for _ in range(50):
            hint = Hint("session", "busy").as_message()
            await layer.group_send(project_group(project.pk), {"type": "hints", "hints": [hint]})
        told = await next_hints(socket)
        while await socket.receive_nothing(timeout=0.4) is False:
            told += await next_hints(socket)
        assert 1 <= len(told) <= 5


@pytest.mark.promise("REL-20")
async def test_more_changes_than_can_wait_become_one_resync(project, member, monkeypatch):
    monkeypatch.setattr(live, "BATCH_SECONDS", 1.0)
    async with open_page(project, member) as socket:
        layer = get_channel_layer()
        for portion in range(0, 400, 100):
            hints = [
                Hint("session", f"run-{number}").as_message() for number in range(portion, portion + 100)
            ]
            await layer.group_send(project_group(project.pk), {"type": "hints", "hints": hints})
        frames = [await socket.frame()]
        while {"type": "resync"} not in frames:
            frames.append(await socket.frame())
        assert all(len(frame.get("hints", [])) <= 300 for frame in frames)


@pytest.mark.servers
async def test_hints_of_other_projects_are_never_sent(project, member):
    other = await Project.objects.acreate(slug="other", name="Other")
    async with open_page(project, member) as socket:
        publish_now(other.pk, Hint("session", "theirs"))
        publish_now(project.pk, Hint("session", "ours"))
        assert [hint["id"] for hint in await next_hints(socket)] == ["ours"]


async def test_a_page_can_filter_its_hints(project, member):
    async with open_page(project, member) as socket:
        await socket.send({"type": "watch", "topics": ["session", "incident"], "session": "run-1"})
        await socket.send({"type": "ping"})
        assert await socket.frame() == {"type": "pong"}
        for hint in (
            Hint("session", "run-2"),
            Hint("attempt"),
            Hint("incident", "inc_1"),
            Hint("session", "run-1"),
        ):
            publish_now(project.pk, hint)
        told = await next_hints(socket)
        while not await socket.receive_nothing(timeout=0.4):
            told += await next_hints(socket)
        assert {hint["id"] for hint in told} == {"inc_1", "run-1"}


async def test_a_visitor_who_is_not_signed_in_is_rejected_with_401(project):
    assert await socket_to("/ws/p/support/").connect() == 401


@pytest.mark.promise("SEC-05")
@pytest.mark.parametrize("path", ["/ws/p/unknown/", "/ws/p/other/", "/ws/elsewhere/", "/"])
async def test_what_is_not_theirs_and_what_does_not_exist_are_rejected_alike(path, project, member):
    await Project.objects.acreate(slug="other", name="Other")
    assert await socket_to(path, member).connect() == 403


@pytest.mark.promise("SEC-07")
async def test_signing_out_closes_the_sockets_of_that_sign_in_only(project, member, rf):
    from django.contrib.auth import logout

    elsewhere = await sync_to_async(sign_in)(member.user)
    async with open_page(project, member) as first, open_page(project, elsewhere) as second:
        request = rf.post("/sign-out")
        request.session, request.user = member.session, member.user
        await sync_to_async(logout)(request)
        assert await first.closing_code() == 4401
        publish_now(project.pk, Hint("session", "still"))
        assert await next_hints(second)


async def end_session(project, member):
    await sync_to_async(member.session.delete)()
    return 4401


async def change_password(project, member):
    member.user.set_password("another long password")
    await member.user.asave()
    return 4401


async def deactivate(project, member):
    await get_user_model().objects.filter(pk=member.user.pk).aupdate(is_active=False)
    return 4401


async def leave_project(project, member):
    await Membership.objects.filter(user=member.user).adelete()
    return 4404


async def change_role(project, member):
    await Membership.objects.filter(user=member.user).aupdate(role=Role.OPERATOR)
    return 1012


async def restore_an_old_password(project, member):
    """A sign-in that began before, whose digest of the password another process has replaced."""
    await get_user_model().objects.filter(pk=member.user.pk).aupdate(password="!")
    return 4401


RIGHT_ENDS = [end_session, change_password, deactivate, leave_project, change_role, restore_an_old_password]


@pytest.mark.promise("SEC-07")
@pytest.mark.parametrize("happens", RIGHT_ENDS)
async def test_a_socket_ends_with_the_right_without_a_broker_and_without_being_told(
    happens, project, member, settings, no_broker
):
    address = {"address": no_broker, "socket_connect_timeout": 1}
    layer = {**settings.CHANNEL_LAYERS["default"], "CONFIG": {"hosts": [address]}}
    settings.CHANNEL_LAYERS = {"default": layer}
    socket = socket_to("/ws/p/support/", member)
    await socket.connect()
    assert (await socket.frame())["type"] == "ready"
    code = await happens(project, member)
    assert await socket.closing_code() == code
    assert access_watch._open == {}


async def test_all_open_pages_are_checked_by_one_look(project, member, monkeypatch):
    looks = []

    def counted(accesses, now):
        looks.append(len(accesses))
        return original(accesses, now)

    original = access_watch_module.ended
    monkeypatch.setattr(access_watch_module, "ended", counted)
    others = [await sync_to_async(sign_in)(member.user) for _ in range(4)]
    async with contextlib.AsyncExitStack() as pages:
        for person in (member, *others):
            await pages.enter_async_context(open_page(project, person))
        looks.clear()
        async with asyncio.timeout(10):
            while len(looks) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert set(looks) == {5}


async def test_the_look_outlives_a_broken_connection_to_the_database(project, member, monkeypatch):
    looks = []

    def broken_twice(accesses, now):
        looks.append(len(accesses))
        if len(looks) <= 2:
            raise InterfaceError("connection already closed")
        return original(accesses, now)

    original = access_watch_module.ended
    monkeypatch.setattr(access_watch_module, "ended", broken_twice)
    async with open_page(project, member) as page:
        code = await end_session(project, member)
        assert await page.closing_code() == code
    assert len(looks) > 2


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"ping"', '{"type": "subscribe"}', '{"type": "ping", "more": 1}', '{"type": "watch"}',
     '{"type": "watch", "topics": ["everything"]}', '{"type": "watch", "topics": [{}]}',
     '{"type": "watch", "topics": [], "session": 7}', "[" * 300, '{"type": "ping", "a": NaN}'],
)  # fmt: skip
async def test_a_message_that_is_not_understood_closes_the_socket(text, project, member):
    async with open_page(project, member) as socket:
        await socket.send_input({"type": "websocket.receive", "text": text})
        assert await socket.closing_code() == 1008


async def test_bytes_close_the_socket(project, member):
    async with open_page(project, member) as socket:
        await socket.send_input({"type": "websocket.receive", "bytes": b"\0\xff"})
        assert await socket.closing_code() == 1008


async def test_a_large_message_closes_the_socket(project, member):
    async with open_page(project, member) as socket:
        await socket.send_input({"type": "websocket.receive", "text": " " * 513})
        assert await socket.closing_code() == 1009


@pytest.mark.promise("SEC-07")
async def test_too_many_messages_close_the_socket(project, member):
    async with open_page(project, member) as socket:
        for _ in range(21):
            await socket.send({"type": "ping"})
        assert await socket.closing_code() == 1008


async def test_a_beat_says_that_hints_would_arrive(project, member, monkeypatch):
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.5)
    async with open_page(project, member) as socket:
        assert await socket.frame() == {"type": "beat", "broker": True}
