"""Settings and small rules that security rests on: addresses of clients, formats of messages, cookies, logs, markup."""

import json
import logging
import os
import re
import subprocess
import sys

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test import Client, RequestFactory
from kombu.exceptions import ContentDisallowed
from kombu.serialization import dumps, loads

from detection.models import AuditEntry, FailedSignIns
from detection.web.request_context import client_address
from loopguard_site import env
from loopguard_site.celery import app
from loopguard_site.layout import ROOT
from tests.support.projects import make_key, make_member, make_project

PEER = "10.0.0.1"
SHOW = "import django; django.setup(); from django.conf import settings as s; print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SESSION_COOKIE_HTTPONLY, s.SESSION_COOKIE_SAMESITE)"


@pytest.mark.promise("SEC-22")
@pytest.mark.parametrize(
    ("forwarded", "proxies", "address"),
    [
        ("", 0, PEER), ("1.2.3.4", 0, PEER), ("1.2.3.4", 1, "1.2.3.4"), ("6.6.6.6, 1.2.3.4", 1, "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4, 10.0.0.2", 2, "1.2.3.4"), ("1.2.3.4", 2, PEER), ("nobody", 1, PEER),
        ("1.2.3.4:4711", 1, "1.2.3.4"), ("[2001:DB8::9]:4711", 1, "2001:db8::9"), ("fe80::1%eth0", 1, "fe80::1"), ("<script>", 1, PEER),
    ],
)  # fmt: skip
def test_what_a_client_writes_into_forwarded_addresses_is_not_believed(forwarded, proxies, address):
    request = RequestFactory().get("/", REMOTE_ADDR=PEER, HTTP_X_FORWARDED_FOR=forwarded)
    assert client_address(request, proxies) == address


@pytest.mark.promise("SEC-22")
@pytest.mark.django_db
def test_a_forged_address_neither_evades_the_throttle_nor_reaches_the_audit():
    make_member(make_project(), username="ana")
    for number in range(7):
        client = Client(HTTP_X_FORWARDED_FOR=f"203.0.113.{number}")
        answer = client.post("/sign-in", {"username": "ana", "password": "wrong"})
    assert answer.status_code == 429
    assert FailedSignIns.objects.count() == 3
    client.force_login(make_member(make_project()))
    client.post("/account", {"action": "email", "email": "b@example.org", "email_password": "right horse"})
    assert AuditEntry.objects.get(action="account.email").address == "127.0.0.1"


@pytest.mark.promise("SEC-03")
@pytest.mark.django_db
def test_no_key_and_no_password_reaches_a_log_and_no_key_is_accepted_in_an_address(client, caplog):
    caplog.set_level(logging.DEBUG)
    token = make_key(make_project())
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    make_member(make_project(), username="ana")
    for one in (token, wrong):
        for path in ("/api/v1/sessions", "/api/v1/none", "/api/v1/guard"):
            client.get(path, headers={"Authorization": f"Bearer {one}"})
            client.post(
                path, "{", content_type="application/json", headers={"Authorization": f"Bearer {one}"}
            )
    for name in ("key", "token", "api_key", "authorization"):
        assert client.get(f"/api/v1/sessions?{name}={token}").status_code == 401
    client.post("/sign-in", {"username": "ana", "password": "a wrong secret"})
    client.post("/sign-in", {"username": "ana", "password": "right horse"})
    client.post("/account", {"action": "password", "old_password": "a wrong secret"})
    for secret in (token[14:], "a wrong secret", "right horse"):
        assert secret not in caplog.text


@pytest.mark.promise("SEC-08")
@pytest.mark.django_db
def test_ingestion_ignores_cookies_and_forms(client):
    project = make_project()
    client.force_login(make_member(project))
    event = '{"type": "call", "session": "s", "tool": "t"}'
    assert client.post("/api/v1/events", event, content_type="application/json").status_code == 401
    key = {"Authorization": f"Bearer {make_key(project)}"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert client.post("/api/v1/events", event, content_type=kind, headers=key).status_code == 415


@pytest.mark.promise("SEC-10")
@pytest.mark.django_db
def test_htmx_evaluates_nothing_and_stays_on_this_site(client):
    page = client.get("/sign-in").content.decode()
    config = json.loads(re.search(r"name=\"htmx-config\"\s+content='(.*?)'", page, re.DOTALL)[1])
    assert config["allowEval"] is config["allowScriptTags"] is config["includeIndicatorStyles"] is False
    assert config["selfRequestsOnly"] is True
    assert config["historyCacheSize"] == 0


@pytest.mark.promise("SEC-11")
def test_templates_load_nothing_from_elsewhere_and_mark_nothing_as_safe():
    for file in (ROOT / "templates").rglob("*.html"):
        markup = file.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape\s+off", markup), file
        for tag in re.findall(r"<(?:script|link|img)\b[^>]*>", markup):
            assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//", tag), f"{file}: {tag}"


@pytest.mark.promise("SEC-27")
@pytest.mark.parametrize(
    ("variable", "value"),
    [("LOOPGUARD_SECRET_KEY", ""), ("LOOPGUARD_SECRET_KEY", "short"), ("LOOPGUARD_ALLOWED_HOSTS", "*")],
)
def test_production_needs_a_key_and_named_hosts(variable, value):
    safe = {
        "LOOPGUARD_MODE": "production",
        "LOOPGUARD_SECRET_KEY": "".join(map(chr, range(48, 112))),
        "LOOPGUARD_URL": "https://loopguard.example",
    }
    with pytest.raises(env.EnvironmentProblem, match=f"^{variable} must"):
        env.read(safe | {variable: value})


@pytest.mark.promise("SEC-30")
def test_tasks_sessions_and_cache_know_no_pickle():
    kind, encoding, body = dumps({"x": 1}, serializer="pickle")
    with pytest.raises(ContentDisallowed):
        loads(body, kind, encoding, accept=app.conf.accept_content)
    assert settings.SESSION_SERIALIZER.endswith("JSONSerializer")
    cache.set("x", 1)
    assert cache.get("x") is None


@pytest.mark.promise("SEC-08")
def test_cookies_of_production_are_bound_to_host_and_https():
    environment = {
        "PATH": os.environ["PATH"], "DJANGO_SETTINGS_MODULE": "loopguard_site.settings", "LOOPGUARD_MODE": "production",
        "LOOPGUARD_URL": "https://loopguard.example", "LOOPGUARD_SECRET_KEY": "".join(map(chr, range(48, 112))),
        "DATABASE_URL": "postgresql://u:p@127.0.0.1/x", "REDIS_URL": "redis://127.0.0.1:1/0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == [
        "__Host-loopguard",
        "__Host-loopguard-csrf",
        "True",
        "True",
        "True",
        "Lax",
    ], done.stderr
