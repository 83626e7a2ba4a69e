"""Coding agents that export their logs by OpenTelemetry, headless, against a model server that repeats one call.

Opt-in, as the tests of their hooks: `LOOPGUARD_HOSTS` names a folder with the programs.
"""

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from development.test_server import running_server
from tests.hosts.place import PROMPT, Place
from tests.hosts.upstream import Script, serve
from tests.support.plain_http import PLAIN

FOLDER = os.environ.get("LOOPGUARD_HOSTS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_HOSTS names no folder with coding agents"),
]


def claude_code(place, upstream, endpoint, headers):
    return place.start(
        [Path(FOLDER, "claude"), "-p", PROMPT, "--allowedTools", "Bash", "--model", "claude-sonnet-4-5"],
        ANTHROPIC_BASE_URL=upstream, ANTHROPIC_API_KEY="sk-ant-x", DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_ENABLE_TELEMETRY="1", OTEL_LOGS_EXPORTER="otlp", OTEL_LOG_TOOL_DETAILS="1",
        OTEL_METRICS_EXPORTER="none", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_HEADERS=headers,
    )  # fmt: skip


def codex(place, upstream, endpoint, headers):
    provider = f'name = "fake"\nbase_url = "{upstream}/v1"\nwire_api = "responses"\nenv_key = "FAKE_KEY"\n'
    exporter = f'endpoint = "{endpoint}/v1/logs", protocol = "binary", headers = {{ "Authorization" = "{place.token}" }}'
    place.write(
        place.home / ".codex" / "config.toml",
        f'model = "gpt-5"\nmodel_provider = "fake"\n[model_providers.fake]\n{provider}'
        f"[otel]\nexporter = {{ otlp-http = {{ {exporter} }} }}\n",
    )
    command = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT]
    return place.start([Path(FOLDER, "codex"), *command], FAKE_KEY="x")


def gemini_cli(place, upstream, endpoint, headers):
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True},
        "telemetry": {"enabled": True, "target": "local", "otlpEndpoint": endpoint, "otlpProtocol": "http"},
    }
    place.write(place.home / ".gemini" / "settings.json", settings)
    place.write(place.home / ".gemini" / "trustedFolders.json", {str(place.work): "TRUST_FOLDER"})
    return place.start(
        [Path(FOLDER, "gemini"), "-p", PROMPT, "--yolo", "-m", "gemini-2.5-pro"],
        GEMINI_API_KEY="x", GOOGLE_GEMINI_BASE_URL=upstream, GEMINI_CLI_TRUST_WORKSPACE="true",
        OTEL_EXPORTER_OTLP_HEADERS=headers,
    )  # fmt: skip


PROGRAMS = {"claude-code": claude_code, "codex": codex, "gemini-cli": gemini_cli}


@pytest.fixture(scope="module")
def server():
    """An installation: exporters in JavaScript send chunked bodies, which the server of Django's tests cannot read."""
    with running_server() as found:
        yield found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_coding_agent_appears_by_its_logs(name, server, tmp_path):
    token = f"Bearer {server['api_key']}"
    _, upstream = serve(Script(4, "./probe"))
    place = Place(tmp_path, server["url"], token, by_command=False, options=[])
    headers = f"Authorization={token.replace(' ', '%20')}"
    done = PROGRAMS[name](place, upstream, f"{server['url']}/api/v1/otlp", headers)
    assert (done.returncode, place.runs()) == (0, 4), done
    deadline = time.monotonic() + 30
    sessions: list[Any] = []
    with httpx.Client(
        base_url=f"{server['url']}/api/v1", headers={"Authorization": token}, verify=PLAIN
    ) as api:
        while not (sessions and sessions[0]["calls"] == 4) and time.monotonic() < deadline:
            time.sleep(0.2)
            sessions = api.get("/sessions", params={"agent": name}).json()["items"]
        (session,) = sessions
        assert (session["integration"], session["calls"]) == ("otlp", 4)
        assert session["tokens"] > 0
        found = [
            one["kind"]
            for one in api.get("/incidents").json()["items"]
            if one["session"] == session["session"]
        ]
    assert found == ["repeat"]
