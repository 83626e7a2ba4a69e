"""How far evaluation lags behind, which decides what the next events of a project weigh."""

from datetime import timedelta

from django.utils import timezone

from detection.models import Session
from detection.services.ingestion import lag
from detection.services.ingestion.lag import ProjectLag
from tests.support.projects import make_project


def test_a_project_lags_by_the_age_of_its_oldest_unevaluated_event(project, agent):
    agent.posts(agent.call())
    Session.objects.update(last_seq=9, pending_since=timezone.now() - timedelta(seconds=60))
    assert 50 < ProjectLag().seconds(project.pk) < 90
    assert ProjectLag().seconds(make_project("idle").pk) == 0


def test_the_lag_is_looked_up_now_and_then(project, agent, monkeypatch, django_assert_num_queries):
    kept, renewed = ProjectLag(), ProjectLag()
    kept.seconds(project.pk)
    monkeypatch.setattr(lag, "KEPT_SECONDS", 0.0)
    renewed.seconds(project.pk)
    agent.posts(agent.call())
    Session.objects.update(last_seq=9, pending_since=timezone.now() - timedelta(seconds=60))
    assert renewed.seconds(project.pk) > 50
    with django_assert_num_queries(0):
        assert kept.seconds(project.pk) == 0
