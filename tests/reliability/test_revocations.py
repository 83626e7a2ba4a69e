"""A right that ends in one process ends the sockets and long polls of another one within a second."""

import contextlib
import re
import threading
import time

import httpx
import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Origin

from detection.engine.scopes import PROJECT
from detection.models import ApiKey, Role
from detection.services.audit import SYSTEM
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.keys import authenticate
from detection.services.policies import overrides
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain_http import PLAIN
from tests.support.projects import make_member

pytestmark = pytest.mark.servers

PASSWORD = "right horse"
PUBLIC_URL = "http://127.0.0.1:8300"


class Person:
    """A browser of a member, with a socket to `live` and pages of `web`."""

    def __init__(self, installation, name):
        self.url, self.live_url = installation.url, installation.live_url
        self.browser = httpx.Client(
            base_url=self.url, timeout=20, verify=PLAIN, headers={"Referer": self.url}
        )
        self.post("/sign-in", "/sign-in", username=name, password=PASSWORD)
        cookies = "; ".join(f"{key}={value}" for key, value in self.browser.cookies.items())
        socket = connect(
            f"{self.live_url.replace('http', 'ws')}/ws/p/support/",
            additional_headers={"Cookie": cookies},
            origin=Origin(PUBLIC_URL),
        )
        self.open = contextlib.ExitStack()
        self.socket = self.open.enter_context(socket)
        assert "ready" in self.socket.recv(timeout=PATIENCE_SECONDS)

    def post(self, page, path, **form):
        token = re.search(r'csrfmiddlewaretoken" value="([^"]+)"', self.browser.get(page).text)[1]
        answer = self.browser.post(path, data={**form, "csrfmiddlewaretoken": token})
        assert answer.status_code in (200, 302), (
            answer.status_code,
            re.findall(r"<p[^>]*>(.*?)</p>", answer.text, re.DOTALL),
        )
        return answer

    def closing_code(self):
        """Wait until the server closes the socket."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                self.socket.recv(timeout=PATIENCE_SECONDS)
            except ConnectionClosed as closed:
                return closed.rcvd.code
        raise AssertionError("still open")


def member(project, username, role=Role.ADMIN):
    """A member whose password is stored as the processes store it; tests store theirs in a cheaper way."""
    user = make_member(project, role, username=username)
    hasher = PBKDF2PasswordHasher()
    user.password = hasher.encode(PASSWORD, hasher.salt(), iterations=1000)
    user.save()
    return user


@pytest.fixture
def people(project, install):
    """Signs members in; the first call starts `web` and `live`."""
    installation = install(worker=False)
    installation.start_live()
    opened = []

    def sign_in(name):
        opened.append(Person(installation, name))
        return opened[-1]

    yield sign_in
    for person in opened:
        person.open.close()
        person.browser.close()


@pytest.mark.promise("SEC-02")
def test_rights_that_end_in_web_end_sockets_and_long_polls_of_live(people, project, token):
    member(project, "boss")
    ana = member(project, "ana", Role.OPERATOR)
    boss_here, ana_here, ana_there = people("boss"), people("ana"), people("ana")

    # Signing out, and revoking a sign-in elsewhere.
    row = re.search(r'name="sign_in" value="([^"]+)"', ana_here.browser.get("/account").text)[1]
    ana_here.post("/account", "/account", action="end", sign_in=row)
    assert ana_there.closing_code() == 4401
    ana_there = people("ana")
    ana_there.post("/account", "/sign-out")
    assert ana_there.closing_code() == 4401

    # Another role reconnects the page; a new password ends the other browser and not the one that changed it.
    boss_here.post("/p/support/members", "/p/support/members", action="role", member=ana.pk, role="viewer")
    assert ana_here.closing_code() == 1012
    ana_there, ana_here = people("ana"), people("ana")
    form = {
        "old_password": PASSWORD,
        "new_password1": "another long one",
        "new_password2": "another long one",
    }
    ana_here.post("/account", "/account", action="password", **form)
    assert ana_there.closing_code() == 4401

    # A removed member.
    ben = member(project, "ben", Role.VIEWER)
    ben_here = people("ben")
    boss_here.post("/p/support/members", "/p/support/members", action="remove", member=ben.pk)
    assert ben_here.closing_code() == 4404

    # A key that waits for an approval.
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    for number in range(4):
        call = EventRecord(type="call", session="s", call_id=f"c{number}", tool="t", arguments="{}")
        verdict = guard(authenticate(token), GuardRequest(session="s", calls=(call,))).verdicts[0]
    answers = []

    def wait():
        url = f"{ben_here.live_url}/api/v1/approvals/{verdict.approval['id']}?wait=60"
        headers = {"Authorization": f"Bearer {token}"}
        answers.append(httpx.get(url, headers=headers, timeout=70, verify=PLAIN))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(1.5)
    assert waiting.is_alive()
    key = ApiKey.objects.get().public_id
    boss_here.post("/p/support/keys", "/p/support/keys/revoke", key=key)
    waiting.join(20)
    assert (answers[0].status_code, answers[0].json()["code"]) == (401, "unknown_key")
    assert boss_here.socket.ping().wait(20), "the socket of somebody else stays open"
