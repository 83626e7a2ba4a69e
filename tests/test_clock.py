"""The time that calls are counted by: of the server, of a test clock, and never of a client."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from detection.models import Event, Session
from tests.support.projects import make_key, make_project

SERVICES = Path(__file__).parents[1] / "detection"
COUNTED = (
    "gateway/guarding.py",
    "services/approvals/*.py",
    "services/tracking/tracker.py",
    "services/ingestion/guard.py",
    "services/ingestion/ingest.py",
    "services/ingestion/message_guard.py",
    "services/ingestion/resent_answers.py",
    "services/judging/*.py",
    "services/sessions/folding.py",
    "services/sessions/stalled.py",
)
"""Modules whose times decide findings, approvals and rulings."""
START = 1_800_000_000


@pytest.fixture
def clock(settings, tmp_path):
    settings.TEST_CLOCK = str(tmp_path / "clock")
    return tmp_path / "clock"


@pytest.fixture
def guard(client, db):
    headers = {"Authorization": f"Bearer {make_key(make_project())}"}

    def send(number, **more):
        call = {"call_id": f"c{number}", "tool": "search", "arguments": {"q": "same"}, **more}
        body = json.dumps({"session": "s", "backend": "b", "calls": [call]})
        answer = client.post("/api/v1/guard", body, content_type="application/json", headers=headers)
        return answer.json()["decision"]

    return send


def test_a_loop_is_counted_by_the_test_clock_and_not_by_the_times_of_the_client(clock, guard):
    at = datetime.fromtimestamp(START, UTC).isoformat()
    decisions = []
    for number in range(4):
        clock.write_text(str(START + 10_000 * number))
        decisions.append(guard(number, occurred_at=at))
    received = [*Event.objects.order_by("seq").values_list("received_at", flat=True)]
    assert [one.timestamp() for one in received] == [START + 10_000 * number for number in range(4)]
    assert Session.objects.get().last_event_at == received[-1]
    assert "block" not in decisions, "hours lie between these calls"


def test_calls_of_one_moment_of_the_test_clock_are_a_loop(clock, guard):
    clock.write_text(str(START))
    decisions = [guard(number) for number in range(4)]
    assert decisions[-1] == "block"


@pytest.mark.parametrize("pattern", COUNTED)
def test_what_counts_time_asks_the_one_clock(pattern):
    files = [*SERVICES.glob(pattern)]
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "timezone.now" not in text, file
        assert "time.time()" not in text, file
