"""Who may use the gateway, and whose credentials a backend sees."""

import io
import logging
import time

import httpx
import pytest

from detection import logs
from detection.models import GatewayToken
from detection.services import keys
from detection.services.audit import SYSTEM
from detection.services.gateway import backends
from tests.support.plain_http import PLAIN
from tests.support.projects import make_key, make_project

from .conftest import World


def asked(url, **headers):
    answer = httpx.get(url, headers=headers, timeout=20, verify=PLAIN)
    return answer.status_code, answer.json().get("error", {}).get("code")


def test_a_key_of_the_project_with_the_scope_guard_is_needed(world: World):
    url = f"{world.base_url()}/models"
    assert asked(url) == (401, "missing_key")
    assert asked(url, **{"LoopGuard-Key": "lg_nonsense"}) == (401, "unknown_key")
    assert asked(url, **{"LoopGuard-Key": make_key(world.project, scopes=["ingest"])}) == (
        403,
        "missing_scope",
    )
    assert asked(url, **{"LoopGuard-Key": make_key(make_project())}) == (404, "unknown_backend")
    assert asked(url, **{"LoopGuard-Key": world.key}) == (200, None)
    assert len(world.model.asked) == 1


def test_a_token_in_the_path_admits_to_its_backend_only(world: World):
    row, token = backends.create_token(world.project.pk, world.backend().public_id, SYSTEM, name="ci")
    assert asked(f"{world.base_url(token=token)}/models") == (200, None)
    assert world.model.asked[0].path == "/v1/models"
    assert token not in str(world.model.asked[0])
    assert asked(f"{world.base_url('anthropic', token)}/v1/models") == (404, "unknown_backend")
    assert asked(f"{world.base_url(token=token[:-1] + 'x')}/models") == (401, "unknown_key")
    answer = httpx.get(f"{world.url}/api/v1/sessions", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code in (401, 404)
    backends.revoke_token(world.project.pk, world.backend().public_id, row.public_id, SYSTEM)
    time.sleep(1)
    assert asked(f"{world.base_url(token=token)}/models") == (401, "unknown_key")


def test_a_revoked_key_stops_working_within_a_second(world: World):
    url, headers = f"{world.base_url()}/models", {"LoopGuard-Key": world.key}
    assert asked(url, **headers) == (200, None)
    keys.revoke_key(world.project, world.key[3:13], SYSTEM)
    time.sleep(1)
    assert asked(url, **headers) == (401, "unknown_key")


def test_a_disabled_or_deleted_backend_is_not_there(world: World):
    world.change(is_enabled=False)
    assert asked(f"{world.base_url()}/models", **{"LoopGuard-Key": world.key}) == (404, "unknown_backend")
    backends.delete_backend(world.project.pk, world.backend("anthropic").public_id, SYSTEM)
    assert asked(f"{world.base_url('anthropic')}/v1/models", **{"LoopGuard-Key": world.key})[0] == 404


@pytest.mark.parametrize(
    ("name", "path"), [("openai", "/models"), ("anthropic", "/v1/messages/count_tokens")]
)
def test_models_and_token_counts_get_the_credential_of_the_backend(world: World, name, path):
    world.change(name, credential="MAIN", headers={"X-Team": "agents"})
    world.http(name).request("GET" if name == "openai" else "POST", path)
    headers = world.model.asked[0].headers
    assert headers["x-team"] == "agents"
    sent = {header: headers.get(header) for header in ("authorization", "x-api-key")}
    assert sent == {
        "authorization": "Bearer sk-of-the-deployment" if name == "openai" else None,
        "x-api-key": "sk-of-the-deployment" if name == "anthropic" else None,
    }


def test_other_paths_need_the_clients_own_credential(world: World):
    world.change(credential="MAIN")
    url = f"{world.base_url()}/organization/api_keys"
    assert asked(url, **{"LoopGuard-Key": world.key}) == (403, "credential_required")
    httpx.get(url, headers={"LoopGuard-Key": world.key, "Authorization": "Bearer sk-client"})
    assert [one.headers["authorization"] for one in world.model.asked] == ["Bearer sk-client"]


def test_a_key_of_ours_never_reaches_a_provider(world: World):
    world.http(**{"Authorization": f"Bearer {world.key}", "X-Api-Key": world.key}).get("/files")
    assert not {"authorization", "x-api-key"} & world.model.asked[0].headers.keys()


def test_tokens_are_masked_in_every_log_line(world: World):
    _, token = backends.create_token(world.project.pk, world.backend().public_id, SYSTEM, name="ci")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    for is_json in (True, False):
        handler.setFormatter(logs.formatter(is_json))
        record = logging.LogRecord(
            "uvicorn", logging.ERROR, "x", 1, "GET %s %s", (f"/gateway/a/{token}/v1", world.key), None
        )
        handler.emit(record)
    assert token not in stream.getvalue()
    assert world.key not in stream.getvalue()
    assert stream.getvalue().count(token[:14]) == 2
    assert GatewayToken.objects.get().digest not in stream.getvalue()
