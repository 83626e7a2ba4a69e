"""Counts of traffic: stored by minute and hour with their cost, bounded, trimmed, and shown in the API, metrics and console."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.test import Client
from django.utils import timezone

from detection.api.prometheus import exposition
from detection.models import GatewayTraffic, TrafficPeriod
from detection.selectors.gateway_traffic import ADDED_MS, gateway_traffic
from detection.services.audit import SYSTEM
from detection.services.gateway import backends, prices, traffic
from detection.services.gateway.traffic import TrafficCounts, TrafficKey, store_traffic, trim_traffic
from tests.console.scenes import make_world, text
from tests.support.projects import make_key, make_project

pytestmark = pytest.mark.django_db


@pytest.fixture
def project():
    return make_project()


@pytest.fixture
def backend(project):
    return make_backend(project)


def make_backend(project, name="openai"):
    return backends.create_backend(
        project.pk, SYSTEM, name=name, kind="openai", base_url="https://api.openai.com/v1"
    )


def minute_of(moment):
    return int(moment.timestamp()) // 60


def key(backend, ago=timedelta(0), model="gpt-5", answered=""):
    return TrafficKey(backend.project_id, backend.public_id, minute_of(timezone.now() - ago), model, answered)


def counts(*added, **more):
    one = TrafficCounts(**{"requests": max(1, len(added)), **more})
    for milliseconds in added:
        one.count_added(milliseconds)
    return one


def hour_ago(project, by="backend", **more):
    now = timezone.now() + timedelta(minutes=1)
    return gateway_traffic(project.pk, now - timedelta(hours=1), now, by, **more)


def test_counts_of_processes_add_up_in_minutes_hours_and_all_time(backend, project):
    prices.save_price(project.pk, SYSTEM, model="gpt-5", input_usd=1, output_usd=10)
    one = key(backend)
    for _ in range(2):
        store_traffic({one: counts(3, 40, input_tokens=1_000_000, output_tokens=100_000, cut=1)})
    rows = GatewayTraffic.objects.filter(backend=backend)
    assert set(rows.values_list("period", "model")) == {
        (TrafficPeriod.MINUTE, "gpt-5"), (TrafficPeriod.HOUR, "gpt-5"), (TrafficPeriod.ALWAYS, ""),
    }  # fmt: skip
    assert {(row.requests, row.cut, row.cost_usd, sum(row.added_counts)) for row in rows} == {
        (4, 2, Decimal(4), 4)
    }
    total = hour_ago(project).total
    assert (total.requests, total.error_count, total.cost_usd) == (4, 2, 4.0)
    assert 2 < (total.added_ms_at(0.5) or 0) <= 5
    assert 25 < (total.added_ms_at(0.95) or 0) <= 50


def test_the_cost_of_a_model_without_a_price_is_unknown_and_never_zero(backend, project):
    store_traffic({key(backend, model="odd"): counts(input_tokens=900, output_tokens=40)})
    total = hour_ago(project).total
    assert (total.cost_usd, total.unpriced_tokens) == (None, 940)
    prices.save_price(project.pk, SYSTEM, model="free", input_usd=0, output_usd=0)
    store_traffic({key(backend, model="free"): counts(input_tokens=10)})
    assert [(row.key, row.numbers.cost_usd) for row in hour_ago(project, "model").rows] == [
        ("free", 0.0),
        ("odd", None),
    ]


def test_an_alias_has_the_price_of_the_model_that_answered(backend, project):
    prices.save_price(project.pk, SYSTEM, model="real-*", input_usd=1, output_usd=1)
    store_traffic({key(backend, model="alias", answered="real-1"): counts(input_tokens=1_000_000)})
    row = hour_ago(project, "model").rows[0]
    assert (row.key, row.numbers.cost_usd) == ("alias", 1.0)


def test_names_of_models_are_bounded(backend, project, monkeypatch):
    monkeypatch.setattr(traffic, "MAX_MODELS", 3)
    for first in (0, 10):
        store_traffic({key(backend, model=f"m{first + n}"): counts() for n in range(5)})
    found = {row.key: row.numbers.requests for row in hour_ago(project, "model").rows}
    assert found == {"": 7, "m0": 1, "m1": 1, "m2": 1}


def test_counts_of_deleted_backends_are_dropped(backend, project):
    gone = key(backend)
    backends.delete_backend(project.pk, backend.public_id, SYSTEM)
    store_traffic({gone: counts()})
    assert not GatewayTraffic.objects.exists()


def test_old_minutes_and_hours_are_deleted(backend):
    for ago in (timedelta(hours=1), timedelta(hours=50), timedelta(days=370)):
        store_traffic({key(backend, ago): counts()})
    trim_traffic()
    kept = GatewayTraffic.objects.order_by("period").values_list("period", flat=True)
    assert sorted(kept) == [
        TrafficPeriod.ALWAYS,
        TrafficPeriod.MINUTE,
        TrafficPeriod.HOUR,
        TrafficPeriod.HOUR,
    ]
    assert GatewayTraffic.objects.get(period=TrafficPeriod.ALWAYS).requests == 3


def test_the_api_groups_traffic(backend, project):
    other = make_backend(project, "other")
    foreign = make_backend(make_project())
    at = datetime(2026, 5, 6, 7, 8, tzinfo=UTC)
    for row, number in ((backend, 2), (other, 1), (foreign, 9)):
        store_traffic(
            {
                TrafficKey(row.project_id, row.public_id, minute_of(at), "gpt-5"): counts(
                    *[1] * number, timeouts=1
                )
            }
        )
    api = Client(headers={"Authorization": f"Bearer {make_key(project)}"})
    span = "from=2026-05-06T07:00:00Z&to=2026-05-06T08:00:00Z"

    def read(more):
        return api.get(f"/api/v1/gateway/traffic?{span}&{more}").json()

    assert [(one["key"], one["requests"]) for one in read("by=backend")["items"]] == [
        ("openai", 2),
        ("other", 1),
    ]
    assert [(one["key"], one["requests"]) for one in read("by=minute")["items"]] == [("2026-05-06T07:08Z", 3)]
    assert [one["key"] for one in read("by=day")["items"]] == ["2026-05-06T00:00Z"]
    only = read("by=hour&backend=other")
    assert (only["total"]["requests"], only["total"]["errors"]["timeouts"]) == (1, 1)
    assert api.get("/api/v1/gateway/traffic?by=minute&from=2026-01-01T00:00:00Z").status_code == 422


def test_metrics_have_the_traffic_of_each_backend(backend, project):
    store_traffic({key(backend): counts(3, 9_000, input_tokens=7, rate_limited=1)})
    shown = exposition().decode()
    names = f'backend="openai",project="{project.slug}"'
    assert f"loopguard_gateway_requests_total{{{names}}} 2.0" in shown
    assert (
        f'loopguard_gateway_upstream_errors_total{{backend="openai",kind="rate_limited",project="{project.slug}"}} 1.0'
        in shown
    )
    assert (
        f'loopguard_gateway_tokens_total{{backend="openai",kind="unpriced",project="{project.slug}"}} 7.0'
        in shown
    )
    assert (
        f'loopguard_gateway_added_seconds_bucket{{backend="openai",le="+Inf",project="{project.slug}"}} 2.0'
        in shown
    )
    assert (
        f'loopguard_gateway_added_seconds_bucket{{backend="openai",le="{ADDED_MS[-1] / 1000}",project="{project.slug}"}} 1.0'
        in shown
    )


def test_the_page_shows_backends_errors_and_unknown_costs():
    world = make_world()
    row = make_backend(world.project, "gpt")
    store_traffic(
        {key(row, model="odd"): counts(3, input_tokens=900, output_tokens=40, rate_limited=2, abandoned=3)}
    )
    shown = text(world.client.get(f"{world.base}/gateway/traffic"))
    for words in (
        "2 status 429",
        "3 clients disconnected early",
        "unknown",
        "940 tokens have no price",
        "odd",
    ):
        assert words in shown
    assert "No requests in this period" not in shown
    assert "odd" in text(world.client.get(f"{world.base}/gateway/prices"))
    for span in ("6h", "24h", "7d", "30d", "365d"):
        assert "2 status 429" in text(
            world.client.get(f"{world.base}/gateway/traffic?span={span}&backend=gpt")
        )
