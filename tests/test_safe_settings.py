"""Settings and small rules that security rests on: addresses of clients, formats of messages, cookies."""

import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test import RequestFactory
from kombu.exceptions import ContentDisallowed
from kombu.serialization import dumps, loads

from detection.request_context import client_address
from loopguard_site.celery import app
from loopguard_site.layout import ROOT

PEER = "10.0.0.1"
SHOW = "import django; django.setup(); from django.conf import settings as s; print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SESSION_COOKIE_HTTPONLY, s.SESSION_COOKIE_SAMESITE)"


@pytest.mark.parametrize(
    ("forwarded", "proxies", "address"),
    [
        ("", 0, PEER), ("1.2.3.4", 0, PEER), ("1.2.3.4", 1, "1.2.3.4"), ("6.6.6.6, 1.2.3.4", 1, "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4, 10.0.0.2", 2, "1.2.3.4"), ("1.2.3.4", 2, PEER), ("nobody", 1, PEER),
    ],
)  # fmt: skip
def test_what_a_client_writes_into_forwarded_addresses_is_not_believed(forwarded, proxies, address):
    request = RequestFactory().get("/", REMOTE_ADDR=PEER, HTTP_X_FORWARDED_FOR=forwarded)
    assert client_address(request, proxies) == address


def test_tasks_sessions_and_cache_know_no_pickle():
    kind, encoding, body = dumps({"x": 1}, serializer="pickle")
    with pytest.raises(ContentDisallowed):
        loads(body, kind, encoding, accept=app.conf.accept_content)
    assert settings.SESSION_SERIALIZER.endswith("JSONSerializer")
    cache.set("x", 1)
    assert cache.get("x") is None


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
