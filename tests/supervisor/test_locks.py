"""What is demanded of the lock files."""

from pathlib import Path

from loopguard_site.supervisor.locks import problems

ROOT = Path(__file__).resolve().parents[2]
PIN = "celery[redis]==5.7.0 \\\n    --hash=sha256:00\n"


def test_ours_are_as_they_should_be():
    assert (
        problems(
            ROOT.joinpath("requirements.lock").read_text(), ROOT.joinpath("requirements-dev.lock").read_text()
        )
        == []
    )


def test_a_version_that_differs_an_address_and_missing_hashes_are_found():
    assert problems(PIN, PIN.replace("5.7.0", "5.6.0")) == [
        "celery==5.7.0 is in requirements.lock and not in requirements-dev.lock."
    ]
    assert problems(PIN + "# --index-url https://x\n", PIN) == ["A lock file names an address."]
    assert problems("celery==5.7.0\n", PIN) == ["A lock file has no hashes."]
