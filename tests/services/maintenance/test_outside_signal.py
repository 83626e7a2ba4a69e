"""The signal to a receiver outside: there while LoopGuard works, and only then."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection import jobs
from detection.models import PartHeartbeat
from detection.services.maintenance import outside_signal
from loopguard_site.celery import app
from tests.support.http_receiver import Reply, receiving

pytestmark = pytest.mark.django_db


@pytest.fixture
def receiver(settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as found:
        settings.SIGNAL_URL = f"{found.url}/ping/3f2a"
        yield found


def beats(**ages):
    for part, seconds in ages.items():
        at = timezone.now() - timedelta(seconds=seconds)
        PartHeartbeat.objects.update_or_create(part=part, defaults={"at": at, "by": "here"})


def test_it_is_sent_while_all_parts_work_and_at_the_start(receiver):
    assert outside_signal.send()
    beats(worker=10_000, sweeper=1, beat=1, housekeeping=1)  # a worker may have nothing to do
    app.loader.import_default_modules()
    app.tasks[jobs.SIGNAL]()
    assert [path.rpartition("/ping/")[2] for path, _, _ in receiver.requests] == ["3f2a", "3f2a"]


@pytest.mark.parametrize("late", ["sweeper", "beat", "housekeeping"])
def test_a_part_that_is_late_holds_it_back(receiver, late):
    beats(**{"sweeper": 1, "beat": 1, "housekeeping": 1, late: 3_600})
    assert not outside_signal.send()
    assert receiver.requests == []


def test_a_receiver_that_answers_an_error_or_not_at_all_does_no_harm(receiver, settings):
    receiver.replies.append(Reply(status=500))
    assert not outside_signal.send()
    settings.SIGNAL_URL = "http://127.0.0.1:9/"
    assert not outside_signal.send()


def test_a_private_address_has_to_be_allowed(receiver, settings):
    settings.ALERT_ALLOWED_NETWORKS = ()
    assert not outside_signal.send()
    assert receiver.requests == []


def test_without_an_address_nothing_is_sent(settings, django_assert_num_queries):
    settings.SIGNAL_URL = ""
    with django_assert_num_queries(0):
        assert not outside_signal.send()
