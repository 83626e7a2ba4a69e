"""Only public addresses, or those the deployment opens, are ever spoken to."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from detection.services import outgoing_http
from detection.services.errors import Invalid
from detection.services.outgoing_http import AddressNotAllowed, Unreachable
from tests.support.http_receiver import Reply, receiving


@pytest.fixture
def local(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)


@pytest.fixture
def closed(settings):
    settings.ALERT_ALLOWED_NETWORKS = ()


@pytest.mark.promise("SEC-14")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "240.0.0.1", "255.255.255.255", "192.0.0.8", "192.88.99.1", "198.18.0.1", "203.0.113.5",
        "::1", "::", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "2002:7f00:1::", "2002:808:808::", "64:ff9b::7f00:1",
        "64:ff9b::808:808", "64:ff9b:1::1", "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused(closed, address):
    with pytest.raises(AddressNotAllowed):
        outgoing_http.check_address(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1"])
def test_a_public_address_passes(closed, address):
    outgoing_http.check_address(ipaddress.ip_address(address))


def test_a_network_that_the_deployment_opens_passes_in_its_own_form_only(local):
    outgoing_http.check_address(ipaddress.ip_address("127.9.9.9"))
    with pytest.raises(AddressNotAllowed):
        outgoing_http.check_address(ipaddress.ip_address("::ffff:127.0.0.1"))
    with pytest.raises(AddressNotAllowed):
        outgoing_http.check_address(ipaddress.ip_address("10.0.0.1"))


@pytest.mark.promise("SEC-31", "SEC-37")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/", "//example.org/", "example.org", "", "https://", "https:///path",
        "https://user@example.org/", "https://user:word@example.org/", "https://good.example@127.0.0.1/",
        "https://example.org./", "https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/", "https://127.1/",
        "https://0x7f.0.0.1/", "https://example.org\\@127.0.0.1/", "https://exa mple.org/", "https://example.org/\r\nX: y",
        "https://ex\u0430mple.org/", "https://[::ffff:127.0.0.1%25lo]/", "https://exa_mple..org/", "https://[::1/",
        "https://example.org:99999/", "https://example.org:0/", "https://8.8.8.8:00/", "https://[2606:4700::1111]:0/x", "https://" + "a" * 3000 + ".org/",
    ],
)  # fmt: skip
def test_an_address_that_parsers_read_differently_is_refused(closed, url):
    with pytest.raises(Invalid) as refused:
        outgoing_http.check_url(url)
    assert refused.value.field == "address"


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://localhost/",
        "https://[::ffff:7f00:1]/",
        "https://10.0.0.1/",
    ],
)
def test_a_private_address_is_refused_at_saving(closed, url):
    with pytest.raises(Invalid):
        outgoing_http.check_url(url)


def test_plain_http_and_odd_ports_reach_opened_networks_only(closed):
    for url in ("http://8.8.8.8/", "https://8.8.8.8:22/"):
        with pytest.raises(Invalid):
            outgoing_http.check_url(url)
    assert outgoing_http.check_url("https://8.8.8.8:8443/token").shown == "https://8.8.8.8:8443/…"


def test_what_is_shown_of_an_address_holds_no_path():
    assert "s3cret" not in outgoing_http.parse("https://hooks.example.org/s3cret?key=s3cret").shown


@pytest.mark.promise("SEC-14")
def test_a_name_that_flips_after_the_check_is_refused_at_sending(local, monkeypatch):
    with receiving() as receiver:
        answers = iter(["8.8.8.8", "10.0.0.7"])

        def flipping(host, port, *_, **__):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

        monkeypatch.setattr(socket, "getaddrinfo", flipping)
        outgoing_http.check_url("https://flip.example/")
        with pytest.raises(AddressNotAllowed):
            outgoing_http.post("https://flip.example/", {}, b"{}")
        assert receiver.requests == []


def test_the_connection_goes_to_the_address_that_was_checked(local, monkeypatch):
    with receiving() as receiver:
        asked = []

        def once(host, port, *_, **__):
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", once)
            answer = outgoing_http.post(f"http://inside.example:{receiver.port}/x?y=1", {"A": "b"}, b"{}")
        assert answer.status == 200
        assert asked.count("inside.example") == 1
        path, headers, body = receiver.requests[0]
        assert (path, headers["host"], body) == ("/x?y=1", f"inside.example:{receiver.port}", b"{}")


def test_one_bad_address_of_a_name_refuses_all_of_it(closed, monkeypatch):
    def mixed(host, port, *_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("8.8.8.8", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", mixed)
    with pytest.raises(AddressNotAllowed):
        outgoing_http.post("https://mixed.example/", {}, b"{}")


@pytest.mark.promise("SEC-14")
def test_redirects_are_not_followed(local):
    with receiving() as receiver:
        receiver.replies = [Reply(302, {"Location": "http://169.254.169.254/latest/meta-data/"})]
        assert outgoing_http.post(receiver.url, {}, b"{}").status == 302
        assert len(receiver.requests) == 1


def test_an_answer_is_read_up_to_its_limit(local):
    with receiving() as receiver:
        receiver.replies = [Reply(body=[b"x" * 50_000] * 10)]
        assert len(outgoing_http.post(receiver.url, {}, b"{}").body) == outgoing_http.MAX_RESPONSE_BYTES


def test_an_answer_that_drips_ends_at_the_deadline(local, monkeypatch):
    monkeypatch.setattr(outgoing_http, "DEADLINE_SECONDS", 0.3)
    with receiving() as receiver:
        receiver.replies = [Reply(body=[b"x"] * 20, drip_seconds=0.1)]
        with pytest.raises(Unreachable):
            outgoing_http.post(receiver.url, {}, b"{}")


def test_nobody_listening_is_said_without_the_path(local):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(Unreachable) as unreachable:
        outgoing_http.post(f"http://127.0.0.1:{port}/s3cret", {}, b"{}")
    assert "s3cret" not in str(unreachable.value)
