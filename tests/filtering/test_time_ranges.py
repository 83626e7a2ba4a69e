"""Moments and ranges: lengths, dates of a zone, and what is neither."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from detection.filtering.language import FilterError
from detection.filtering.time_ranges import between, moment, parse_range

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def test_a_date_is_a_whole_day_of_the_readers_zone():
    assert moment("2026-10-25", NOW, BERLIN) == (
        datetime(2026, 10, 24, 22, tzinfo=UTC),
        datetime(2026, 10, 25, 23, tzinfo=UTC),  # the day on which summer time ends
    )
    assert moment("2026-11-01T08:00", NOW, BERLIN)[0] == datetime(2026, 11, 1, 7, tzinfo=UTC)
    assert moment("-36h", NOW, UTC)[0] == datetime(2026, 11, 22, tzinfo=UTC)


def test_a_range_of_an_address_is_the_same_in_every_zone():
    chosen = between("2026-11-01", "2026-11-07T08:30", NOW, BERLIN)
    assert chosen.text == "2026-10-31T23:00Z/2026-11-07T07:30Z"
    assert parse_range(chosen.text, NOW, UTC) == chosen
    assert parse_range("2026-11-01/", NOW, UTC).end is None
    assert parse_range("7d", NOW, UTC).start == datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert parse_range("", NOW, UTC).text == ""


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "0d",
        "7y",
        "99999w",
        "/",
        "2026-13-01/",
        "0001-01-01/",
        "9999-12-31/",
        "2026-11-02/2026-11-01",
        "-7d",
    ],
)
def test_anything_else_is_explained(text):
    with pytest.raises(FilterError) as caught:
        parse_range(text, NOW, BERLIN)
    assert caught.value.detail.endswith(".")
