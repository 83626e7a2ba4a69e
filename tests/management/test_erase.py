import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from detection.models import Erasure, Session
from detection.models.erasures import MAX_ATTEMPTS
from detection.services.audit import SYSTEM
from detection.services.retention import erasure
from tests.console.scenes import loop
from tests.support.erasures import failing_erasures
from tests.support.projects import make_project

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def project():
    return make_project("support")


def erase(*arguments):
    out = StringIO()
    call_command("erase", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_erases_at_once_and_prints_the_receipt(project):
    loop(project, "s-1", agent="triage")
    loop(project, "s-2", agent="triage")
    printed = erase("--project", project.slug, "--session", "s-1", "--yes")
    assert Erasure.objects.get().public_id in printed
    assert "1 sessions" in printed
    receipt = json.loads(erase("--project", project.slug, "--agent", "triage", "--yes", "--json"))
    assert receipt["state"] == "finished"
    assert receipt["removed"]["sessions"] == 1
    assert not Session.objects.exists()


def test_nothing_is_erased_without_consent_or_by_a_name_that_does_not_exist(project):
    loop(project, "s-1")
    with pytest.raises(CommandError, match="Nothing was erased"):
        erase("--session", "s-1")
    with pytest.raises(CommandError, match="Nothing is stored"):
        erase("--session", "s-2", "--yes")
    make_project()
    with pytest.raises(CommandError, match="several"):
        erase("--session", "s-1", "--yes")
    assert Session.objects.filter(external_id="s-1").exists()


@pytest.mark.one_database("a trigger refuses what is written")
def test_an_erasure_that_fails_ends_with_the_error_and_the_same_command_retries_it(project):
    loop(project, "s-1")
    row = erasure.request_erasure(project.pk, "session", "s-1", SYSTEM)
    Erasure.objects.update(attempts=MAX_ATTEMPTS - 1)
    with (
        failing_erasures(),
        pytest.raises(
            CommandError, match=rf"{row.public_id} failed: RaiseException .* Run the command again"
        ),
    ):
        erase("--session", "s-1", "--yes")
    assert row.public_id in erase("--session", "s-1", "--yes")
    assert not Session.objects.exists()
