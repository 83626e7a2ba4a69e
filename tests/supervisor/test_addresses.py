"""Ports and addresses."""

import socket

import pytest

from loopguard_site.supervisor import addresses
from loopguard_site.supervisor.errors import SupervisorError
from tests.support.model_server import Answer, ModelServer


@pytest.mark.parametrize("offset", [0, 1])
def test_a_taken_port_of_the_pair_is_named(offset):
    first = addresses.two_free_ports("127.0.0.1", 0)  # so that the other one of the pair is free
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + offset))
        taken.listen()
        with pytest.raises(SupervisorError, match=f"Port {first + offset} of 127.0.0.1 is in use"):
            addresses.two_free_ports("127.0.0.1", first)


def test_port_0_means_any_two_neighbours_that_are_free():
    port = addresses.two_free_ports("127.0.0.1", 0)
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", port))
        two.bind(("127.0.0.1", port + 1))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:8300"),
        ("0.0.0.0", "http://127.0.0.1:8300"),
        ("::1", "http://[::1]:8300"),
        ("box", "http://box:8300"),
    ],
)
def test_the_address_printed_can_be_opened_on_this_machine(host, expected):
    assert addresses.url(host, 8300) == expected


def test_only_an_answer_that_all_is_well_counts(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with ModelServer(
        lambda asked: Answer(status=200 if asked.path == "/healthz" else 503)
    ).running() as server:
        assert addresses.answers("127.0.0.1", server.port, "/healthz")
        assert not addresses.answers("127.0.0.1", server.port, "/readyz")
    assert not addresses.answers("127.0.0.1", addresses.two_free_ports("127.0.0.1", 0), "/healthz")


def test_a_chosen_port_is_none_that_an_outgoing_connection_may_get():
    lowest = 32_768  # on Linux, unless an administrator has changed `ip_local_port_range`
    for _ in range(20):
        assert addresses.two_free_ports("127.0.0.1", 0) + 1 < lowest
        assert addresses.free_port() < lowest
