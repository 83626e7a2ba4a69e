import pytest
from django.conf import settings

from detection.consumers.origins import allowed_origins, origin_of

from .conftest import socket_to


@pytest.mark.promise("SEC-07")
@pytest.mark.parametrize(
    "origin",
    [
        None,
        "",
        "null",
        "http://evil.example",
        "https://127.0.0.1:8300",
        "http://127.0.0.1:8301",
        "http://127.0.0.1",
        "http://127.0.0.1:8300.evil.example",
        "http://127.0.0.1.evil.example:8300",
        "http://evil127.0.0.1:8300",
        "http://sub.localhost:8300",
        "http://localhost.:8300",
        "http://user@127.0.0.1:8300",
        "http://127.0.0.1:8300@evil.example",
        "http://127.0.0.1:8300/path",
        "http://127.0.0.1:8300/",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "file://127.0.0.1:8300",
        "http://127.0.0.1:8300, http://evil.example",
    ],
)
async def test_a_handshake_from_any_other_origin_is_rejected(origin, settings):
    settings.ALLOWED_HOSTS = ["*"]
    socket = socket_to("/ws/p/support/", origin=origin)
    assert await socket.connect() == 403


async def test_an_origin_sent_twice_is_rejected():
    socket = socket_to("/ws/p/support/")
    socket.scope["headers"].append((b"origin", settings.PUBLIC_URL.encode()))
    assert await socket.connect() == 403


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:8300", "http://localhost:8300", "HTTP://LocalHost:8300", "http://[::1]:8300"]
)
async def test_outside_production_every_name_of_this_machine_is_our_own(origin, member):
    socket = socket_to("/ws/p/support/", member, origin=origin)
    assert await socket.connect() is None
    await socket.leave()


def test_in_production_only_the_public_address_is_allowed():
    assert allowed_origins("https://guard.example", "production") == {"https://guard.example:443"}
    assert allowed_origins("http://127.0.0.1:8300", "production") == {"http://127.0.0.1:8300"}


def test_port_0_is_not_the_default_port():
    assert origin_of("https://guard.example:0") is None


def test_the_default_port_is_the_same_origin_as_none():
    assert origin_of("https://guard.example") == origin_of("https://guard.example:443")
    assert origin_of("http://guard.example") != origin_of("https://guard.example")
