import time
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import ApiKey, AuditEntry
from detection.services import keys
from detection.services.errors import Invalid, NotFound
from detection.services.maintenance.first_start import demo_key
from tests.support.agents import OPERATOR


@pytest.mark.promise("SEC-01")
def test_a_key_is_shown_once_and_kept_as_a_digest(project):
    row, token = keys.create_key(project, "agent", OPERATOR)
    stored = str(ApiKey.objects.values().get()) + str(list(AuditEntry.objects.values()))

    assert token.startswith("lg_")
    assert token[14:] not in stored
    assert keys.authenticate(token).project_id == project.pk
    assert ApiKey.objects.get(pk=row.pk).last_used_at is not None


@pytest.mark.promise("SEC-04")
def test_what_cannot_be_a_key_costs_no_query(project, django_assert_num_queries):
    _, token = keys.create_key(project, "agent", OPERATOR)
    wrong = [
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        "",
        "lg_",
        "Bearer x",
        token.upper(),
        token + "0",
    ]
    with django_assert_num_queries(0):
        assert [keys.authenticate(text) for text in wrong] == [None] * len(wrong)


def test_a_second_look_within_a_second_costs_no_query(project, django_assert_num_queries):
    _, token = keys.create_key(project, "agent", OPERATOR)
    keys.authenticate(token)
    with django_assert_num_queries(0):
        assert keys.authenticate(token)


@pytest.mark.promise("SEC-02")
def test_a_revoked_key_is_refused_within_a_second(project):
    row, token = keys.create_key(project, "agent", OPERATOR)
    keys.authenticate(token)
    ApiKey.objects.filter(pk=row.pk).update(revoked_at=timezone.now())  # as another process would
    time.sleep(1)
    assert keys.authenticate(token) is None


@pytest.mark.promise("SEC-02")
def test_an_expired_key_is_refused_though_it_was_just_used(project):
    _, token = keys.create_key(project, "agent", OPERATOR, expires_at=timezone.now() + timedelta(seconds=0.3))
    assert keys.authenticate(token)
    time.sleep(0.4)
    assert keys.authenticate(token) is None


def test_revoking_is_audited_and_belongs_to_its_project(project):
    row, _ = keys.create_key(project, "agent", OPERATOR)
    keys.revoke_key(project, row.public_id, OPERATOR)
    keys.revoke_key(project, row.public_id, OPERATOR)

    assert AuditEntry.objects.filter(action="key.revoke").count() == 1
    with pytest.raises(NotFound):
        keys.revoke_key(project, "unknown", OPERATOR)


def test_unknown_scopes_are_refused(project):
    with pytest.raises(Invalid):
        keys.create_key(project, "agent", OPERATOR, scopes=["root"])


def test_each_start_of_the_demo_replaces_the_key_of_the_one_before(project):
    first, second = demo_key(), demo_key()
    assert keys.authenticate(second).is_demo
    assert keys.authenticate(first) is None
    assert ApiKey.objects.filter(revoked_at=None).count() == 1
