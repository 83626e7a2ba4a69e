"""Backends and tokens through the API and the console."""

import pytest
from django.test import Client

from detection.models import AuditEntry, GatewayBackend, GatewayToken
from detection.services.audit import SYSTEM
from detection.services.errors import Conflict, Invalid
from detection.services.gateway import backends
from loopguard_site import env
from tests.support.model_server import ModelServer, of_json
from tests.support.projects import make_member, make_project

pytestmark = pytest.mark.django_db
GOOD = {"name": "openai", "kind": "openai", "base_url": "https://api.openai.com/v1"}


@pytest.fixture
def project(settings):
    settings.GATEWAY_UPSTREAMS = ("https://api.openai.com", "https://models.example/tenant")
    settings.GATEWAY_CREDENTIALS = {"MAIN": "sk-of-the-deployment"}
    return make_project()


def create(project, **changes):
    return backends.create_backend(project.pk, SYSTEM, **(GOOD | changes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""), ("name", "Ops"), ("name", "a/b"), ("name", "x" * 65), ("kind", "bedrock"),
        ("base_url", "https://evil.example/v1"), ("base_url", "https://api.openai.com.evil.example"),
        ("base_url", "https://models.example/tenant2"), ("base_url", "https://models.example/tenant/../admin"),
        ("base_url", "https://api.openai.com@evil.example"), ("base_url", "http://api.openai.com"),
        ("base_url", "https://api.openai.com:0/v1"),
        ("base_url", "https://api.openai.com/v1?x=1"), ("base_url", "file:///etc/passwd"),
        ("credential", "OTHER"), ("headers", {"Authorization": "Bearer x"}), ("headers", {"Host": "x"}),
        ("headers", {"X-A": "a\r\nb"}), ("headers", {"X-A": 1}), ("headers", {"X A": "1"}),
        ("headers", {f"X-{n}": "1" for n in range(21)}), ("headers", {"LoopGuard-Key": "x"}),
    ],
)  # fmt: skip
def test_wrong_values_name_their_field(project, field, value):
    with pytest.raises(Invalid) as raised:
        create(project, **{field: value})
    assert raised.value.field == field
    assert not GatewayBackend.objects.exists()


def test_names_are_unique_in_a_project(project):
    create(project)
    create(make_project())
    with pytest.raises(Conflict):
        create(project)
    other = create(project, name="other")
    with pytest.raises(Conflict):
        backends.update_backend(project.pk, other.public_id, SYSTEM, name="openai")


@pytest.mark.parametrize(
    ("status", "credential", "is_success"),
    [(200, "MAIN", True), (401, "MAIN", False), (401, "", True), (500, "MAIN", False)],
)
def test_a_test_reports_what_the_backend_responds(project, settings, status, credential, is_success):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with ModelServer(lambda asked: of_json({}, status)).running() as model:
        settings.GATEWAY_UPSTREAMS = (model.url,)
        row = create(project, base_url=f"{model.url}/v1", credential=credential, headers={"X-Team": "a"})
        result = backends.test_backend(project.pk, row.public_id, SYSTEM)
    assert (result.is_success, result.status) == (is_success, status)
    asked = model.asked[0]
    assert (asked.path, asked.headers["x-team"]) == ("/v1/models", "a")
    assert asked.headers.get("authorization", "") == ("Bearer sk-of-the-deployment" if credential else "")
    assert AuditEntry.objects.filter(action="backend.test").exists()


def test_a_test_of_a_private_address_says_why_it_fails(project, settings):
    with ModelServer(lambda asked: of_json({})).running() as model:
        settings.GATEWAY_UPSTREAMS = (model.url,)
        row = create(project, base_url=model.url)
        result = backends.test_backend(project.pk, row.public_id, SYSTEM)
    assert not result.is_success
    assert "neither public nor" in result.detail
    assert not model.asked


def test_the_console_creates_tests_and_deletes(project):
    client = Client()
    client.force_login(make_member(project))
    base = f"/p/{project.slug}/gateway"
    page = client.post(f"{base}/act", {"action": "create", **GOOD, "base_url": "https://evil.example"})
    assert "must be under an address in LOOPGUARD_GATEWAY_UPSTREAMS" in page.content.decode()
    assert client.post(f"{base}/act", {"action": "create", **GOOD}).status_code == 302
    row = GatewayBackend.objects.get()
    assert "/gateway/openai" in client.get(base).content.decode()
    made = client.post(f"{base}/act", {"action": "create_token", "id": row.public_id, "token_name": "ci"})
    token = GatewayToken.objects.get()
    assert f"/gateway/openai/lgw_{token.public_id}_" in made.content.decode()
    assert f"lgw_{token.public_id}_" not in client.get(base).content.decode()
    client.post(f"{base}/act", {"action": "revoke_token", "id": row.public_id, "token": token.public_id})
    token.refresh_from_db()
    assert token.revoked_at
    client.post(f"{base}/act", {"action": "switch", "id": row.public_id, "is_enabled": "no"})
    row.refresh_from_db()
    assert not row.is_enabled
    client.post(f"{base}/act", {"action": "delete", "id": row.public_id})
    assert not GatewayBackend.objects.exists()
    assert set(AuditEntry.objects.values_list("action", flat=True)) == {
        "backend.create", "backend.change", "backend.delete", "backend.token_create", "backend.token_revoke",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOOPGUARD_GATEWAY_UPSTREAMS", "api.openai.com"),
        ("LOOPGUARD_GATEWAY_UPSTREAMS", "https://u:p@api.openai.com"),
        ("LOOPGUARD_GATEWAY_CREDENTIALS", "sk-without-a-name"),
        ("LOOPGUARD_GATEWAY_CREDENTIALS", "openai=with space"),
    ],
)
def test_wrong_variables_end_the_start_without_showing_secrets(variable, value):
    with pytest.raises(env.EnvironmentProblem, match=variable) as raised:
        env.read({"LOOPGUARD_MODE": "test", variable: value})
    assert "without-a-name" not in str(raised.value)
