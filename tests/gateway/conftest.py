"""The gateway on a real ASGI server, before a scripted model server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from django.db import connection

from detection.gateway import traffic
from detection.models import GatewayBackend, Project
from detection.services.audit import SYSTEM
from detection.services.gateway import backends
from loopguard_site.asgi import application
from tests.support import asgi_server
from tests.support.model_answers import PATHS
from tests.support.model_server import ModelServer, of_json
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain_http import PLAIN
from tests.support.projects import make_key, make_project

from .matrix import COMMANDS, FORMS, Sdk

BACKENDS = {"openai": ("openai", "/v1"), "anthropic": ("anthropic", ""), "gemini": ("gemini", "")}
"""Name: kind, and the path of the base URL."""


@dataclass
class World:
    """A project with a backend of each kind before one model server, and a gateway that serves it."""

    project: Project
    key: str
    model: ModelServer
    url: str

    def backend(self, name: str = "openai") -> GatewayBackend:
        return GatewayBackend.objects.get(project=self.project, name=name)

    def base_url(self, name: str = "openai", token: str = "") -> str:
        return f"{self.url}/gateway/{name}{f'/{token}' if token else ''}"

    def http(self, name: str = "openai", **headers: str) -> httpx.Client:
        headers = {"LoopGuard-Key": self.key, "Authorization": "Bearer sk-client", **headers}
        return httpx.Client(base_url=self.base_url(name), headers=headers, timeout=20, verify=PLAIN)

    def change(self, name: str = "openai", **values: Any) -> None:
        backends.update_backend(self.project.pk, self.backend(name).public_id, SYSTEM, **values)
        time.sleep(1.0)  # what the gateway knows of a backend is at most so old


@contextlib.contextmanager
def database_away() -> Iterator[None]:
    """Take the database away from the threads of the gateway; that of the test keeps its connection."""
    values = connection.settings_dict
    kept = values["NAME"], values["OPTIONS"].pop("pool")
    values["NAME"] = "not_there"
    try:
        yield
    finally:
        values["NAME"], values["OPTIONS"]["pool"] = kept


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_database_idle():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle')"
        )
        return cursor.fetchone()[0]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda asked: of_json({"object": "told"})).running() as server:
        yield server


@pytest.fixture
def world(pooled: None, settings: Any, model: ModelServer) -> Iterator[World]:
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    settings.GATEWAY_UPSTREAMS = (model.url,)
    settings.GATEWAY_CREDENTIALS = {"MAIN": "sk-of-the-deployment"}
    project = make_project()
    for name, (kind, path) in BACKENDS.items():
        backends.create_backend(project.pk, SYSTEM, name=name, kind=kind, base_url=model.url + path)
    with serving() as url:
        yield World(project, make_key(project), model, url)


def is_quiet():
    """Whether no work is left that no request waits for; counts of traffic rest until they are stored."""
    may_rest = traffic.FLUSH_SECONDS > 1
    return all(
        not state.workers._waiting and len(state._background) <= (may_rest and state.traffic._is_flushing)
        for state in [*application.application_mapping["http"]._loops.values()]
    )


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The `live` process on a free port; its address."""
    with asgi_server.serving(application) as url:
        yield url
        # What is recorded after an answer must not meet the end of the test.
        wait_for(is_quiet)
    wait_for(is_database_idle)


@pytest.fixture(scope="session")
def sdks():
    """The processes, by SDK; a started one serves all tests, because importing the packages takes seconds."""
    started: dict[str, Sdk] = {}
    yield started
    for one in started.values():
        if one.process.returncode is None:
            one.stop()


@pytest.fixture
def sdk_of(sdks):
    """Return the process of an SDK."""

    def find(name):
        if name not in sdks or sdks[name].process.returncode is not None:
            sdks[name] = Sdk(**COMMANDS[name])
        return sdks[name]

    return find


@pytest.fixture
def run(world, sdk_of, sdk, form):
    """Run the agent to its end."""

    def start(through=None, **job):
        url = world.base_url(PATHS[FORMS[sdk][form]][0])
        if through:
            url = url.replace(world.url, through.url)
        return sdk_of(sdk).run(**{"form": form, "base_url": url, "key": world.key, "session": "s-1", **job})

    return start
