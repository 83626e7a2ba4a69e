"""Requirements on the lock files."""

from pathlib import Path

import pytest

from development.locks import GROUPS, changes, pins, problems

ROOT = Path(__file__).resolve().parents[2]
PIN = "celery[redis]==5.7.0 \\\n    --hash=sha256:00\n"


@pytest.mark.promise("SEC-29")
def test_the_lock_files_of_the_project_have_no_problems():
    assert problems({name: (ROOT / name).read_text() for name in GROUPS}) == []


def test_a_differing_version_an_address_and_missing_hashes_are_found():
    other = PIN.replace("5.7.0", "5.6.0")
    assert problems({"small.lock": PIN, "large.lock": other}) == [
        "celery==5.7.0 is in small.lock and not in large.lock."
    ]
    assert problems({"a.lock": PIN + "# --index-url https://x\n"}) == ["a.lock contains an address."]
    assert problems({"a.lock": "celery==5.7.0\n"}) == ["a.lock has no hashes."]


def test_a_renewed_lock_reports_each_package_that_changed():
    before = pins(PIN + "django==5.2.1 \\\n    --hash=sha256:00\n")
    after = pins(PIN.replace("5.7.0", "5.8.0") + "attrs==1.0 \\\n    --hash=sha256:00\n")
    assert changes(before, after) == [
        "attrs added -> 1.0",
        "celery 5.7.0 -> 5.8.0",
        "django 5.2.1 -> removed",
    ]
