"""A code of Connect becomes a key once, within ten minutes, with one scope; each other code gets one clear error."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import ApiKey, AuditEntry, BriefRecord, FailedSignIns, Role
from detection.services import install_codes
from detection.services.audit import Actor
from detection.services.errors import Invalid
from tests.support.projects import make_member, make_project

from .conftest import Api

pytestmark = pytest.mark.django_db
PATH = "/install-codes/exchange"


@pytest.fixture
def project():
    return make_project("support")


@pytest.fixture
def ana(project):
    return make_member(project, username="ana")


def code_of(project, person, scope="guard", integration="claude-code", **options):
    made, _ = install_codes.create_code(
        project,
        Actor(person.username, person.pk),
        integration=integration,
        title="Claude Code",
        scope=scope,
        **options,
    )
    return made


def exchanged(client, code, machine="build-07"):
    return client.post(PATH, json={"code": code, "machine": machine})


def test_a_code_becomes_a_key_that_can_only_guard(wsgi_client, project, ana):
    code = code_of(project, ana)
    assert code not in str(list(BriefRecord.objects.values()))
    answer = exchanged(wsgi_client, f" {code.upper()}\n")
    assert answer.status_code == 201, answer.text
    document = answer.json()
    assert document | {"key": ""} == {
        "key": "",
        "name": "Claude Code on build-07",
        "project": "support",
        "integration": "claude-code",
        "scope": "guard",
    }
    made = Api(wsgi_client, document["key"])
    asked = made.post("/guard", {"session": "s-1", "calls": [{"tool": "t"}]})
    assert asked.status_code == 200
    for refused in (made.get("/sessions"), made.put("/overrides", {"values": {"max_repeats": 6}})):
        assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    row = ApiKey.objects.get()
    assert (row.scopes, row.created_by, row.expires_at) == (["guard"], ana, None)
    assert list(AuditEntry.objects.order_by("id").values_list("actor", "action")) == [
        ("ana", "key.code"),
        ("ana", "key.create"),
    ]
    assert document["key"] not in str(list(BriefRecord.objects.values()))


def test_what_became_of_it_is_known_to_its_person(wsgi_client, project, ana):
    code = code_of(project, ana)
    assert install_codes.installation_of(project.pk, ana.pk, "claude-code").is_waiting
    exchanged(wsgi_client, code)
    found = install_codes.installation_of(project.pk, ana.pk, "claude-code")
    assert (found.machine, found.key_id) == ("build-07", ApiKey.objects.get().public_id)
    assert not found.is_waiting
    assert install_codes.installation_of(project.pk, ana.pk, "codex") is None
    assert install_codes.installation_of(project.pk, make_member(project).pk, "claude-code") is None


def test_unknown_used_and_expired_codes_have_one_error_each(wsgi_client, project, ana):
    used = code_of(project, ana)
    assert exchanged(wsgi_client, used).status_code == 201
    known = {*BriefRecord.objects.values_list("pk", flat=True)}
    expired = code_of(project, ana, integration="codex")
    for record in BriefRecord.objects.exclude(pk__in=known):
        record.value["expires_at"] = (timezone.now() - timedelta(seconds=1)).isoformat()
        record.save()
    voided = code_of(project, ana, integration="gemini-cli")
    code_of(project, ana, integration="gemini-cli")
    for code, expected in (
        (used, (410, "used_code")),
        (expired, (410, "expired_code")),
        (voided, (404, "unknown_code")),
        ("nothing", (404, "unknown_code")),
    ):
        answer = exchanged(wsgi_client, code)
        assert (answer.status_code, answer.json()["code"]) == expected
        assert answer.headers["content-type"] == "application/problem+json"
    assert ApiKey.objects.count() == 1


def test_a_code_of_somebody_who_may_create_no_keys_any_more_is_unknown(wsgi_client, project, ana):
    code = code_of(project, ana)
    ana.memberships.update(role=Role.OPERATOR)
    assert exchanged(wsgi_client, code).json()["code"] == "unknown_code"
    ana.memberships.update(role=Role.ADMIN)
    project.archived_at = timezone.now()
    project.save()
    assert exchanged(wsgi_client, code).json()["code"] == "project_archived"
    project.archived_at = None
    project.save()
    assert exchanged(wsgi_client, code).status_code == 201


def test_a_key_for_past_runs_ends_by_itself(wsgi_client, project, ana):
    exchanged(wsgi_client, code_of(project, ana, "ingest", "imports", key_days=1))
    row = ApiKey.objects.get()
    assert row.scopes == ["ingest"]
    assert timedelta(hours=23) < row.expires_at - timezone.now() < timedelta(hours=25)


def test_no_other_scope_can_be_asked_for(project, ana):
    for scope in ("read", "admin"):
        with pytest.raises(Invalid):
            code_of(project, ana, scope)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing"),
        ({"code": "a", "other": 1}, "unknown_field"),
        ({"code": "a" * 65}, "invalid"),
        ([], "invalid"),
    ],
)
def test_the_body_is_checked(wsgi_client, body, code):
    answer = wsgi_client.post(PATH, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_guessing_is_slowed_down(wsgi_client, project, ana):
    for _ in range(5):
        assert exchanged(wsgi_client, "wrong").status_code == 404
    code = code_of(project, ana)
    answer = exchanged(wsgi_client, code)
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert int(answer.headers["retry-after"]) >= 1
    FailedSignIns.objects.all().delete()
    assert exchanged(wsgi_client, code).status_code == 201
