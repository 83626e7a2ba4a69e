"""Volumes so small that they fill up: nothing that was accepted is lost, reading goes on, and so does the next start."""

import contextlib
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loopguard_site.supervisor import children

from .running import fill, manage, running_in, sign_in, volume

BATCH_EVENTS = 20
FLOOR_BYTES = 64 * 1024**2
SPACE_BACK_SECONDS = 300
COUNT = "from detection.models import Event; print(Event.objects.count())"
RETENTION = (
    "from django.utils import timezone; from detection.models import Project, Session;"
    "from detection.services.retention import removal, retention;"
    "print(removal.remove_older_than(Project.objects.get().pk, timezone.now())); retention.housekeeping();"
    "print(Session.objects.count())"
)


@contextlib.contextmanager
def shown_on_failure(log: Path) -> Iterator[None]:
    """Print the end of a server's log and the space that is left: the folder is gone when the test has failed."""
    try:
        yield
    except BaseException:
        print(f"{shutil.disk_usage(log.parent)}\n{log}:\n{log.read_text()[-20_000:]}")
        raise


def post(client: httpx.Client, number: int) -> httpx.Response:
    """Post a batch of large calls that do not compress."""
    events = [
        {
            "type": "call",
            "session": f"s-{number % 9}",
            "tool": "t",
            "arguments": {"x": secrets.token_hex(30_000)},
        }
        for _ in range(BATCH_EVENTS)
    ]
    return client.post("/events", json={"events": events})


@pytest.mark.promise("REL-10")
@pytest.mark.long
@pytest.mark.parametrize("megabytes", [200, 300, 600])
def test_a_volume_that_fills_up_leaves_a_product_that_reads_and_starts(megabytes: int) -> None:
    with (
        volume(megabytes) as folder,
        running_in("lg-") as run,
        shown_on_failure(folder / "data/postgres/postgres.log"),
    ):
        run.data = folder / "data"
        up, ready = run.start()
        key = {"Authorization": f"Bearer {ready['api_key']}"}
        accepted = 0
        with httpx.Client(base_url=f"{ready['url']}/api/v1", headers=key, timeout=60) as client:
            for number in range(2000):
                answer = post(client, number)
                if (
                    answer.status_code == 429 or answer.json().get("code") == "unavailable"
                ):  # other work on the machine
                    time.sleep(1)
                    continue
                if answer.status_code != 202:
                    break
                accepted += BATCH_EVENTS
            assert (answer.status_code, answer.json()["code"]) == (503, "storage_full")
            assert accepted > 0

            # At the floor: reading, sign-in, retention and stop.
            assert client.get("/sessions").status_code == 200
            assert client.get("/sessions/s-1/calls").status_code == 200
            assert client.post("/sessions/s-1/stop", json={}).status_code == 200
        assert "Sign out" in sign_in(ready)

        # Something else takes the rest, and everything dies.
        fillers = [fill(folder, "filler")]
        up.kill()
        up.wait(10)
        for pid in run.pids():
            children.kill_group(pid)
        up, again = run.start("--port", ready["url"].rpartition(":")[2])

        # The reserve and what the recovery freed may be enough for events: take it, and start once more.
        fillers.append(fill(folder, "more", FLOOR_BYTES // 2))
        up.terminate()
        assert up.wait(60) == 0
        up, again = run.start("--port", ready["url"].rpartition(":")[2])
        assert "LoopGuard is read-only" in run.log.read_text()
        with httpx.Client(base_url=f"{again['url']}/api/v1", headers=key, timeout=60) as client:
            assert client.get("/sessions").status_code == 200
            assert post(client, 0).json()["code"] == "storage_full"
            assert "The disk is nearly full" in sign_in(ready)
            stored = manage(run, "shell", "-v", "0", "-c", COUNT)
            assert int(stored) == accepted

            for filler in fillers:
                filler.unlink()
            removed, left = manage(run, "shell", "-v", "0", "-c", RETENTION).split()
            assert (int(removed) > 0, int(left)) == (True, 0)
            assert client.get("/sessions").json()["items"] == []

            # Vacuuming gives the space of the deleted sessions back, and events are accepted again.
            deadline = time.monotonic() + SPACE_BACK_SECONDS
            while shutil.disk_usage(folder).free < max(megabytes * 1024**2 // 3, FLOOR_BYTES):
                assert time.monotonic() < deadline, shutil.disk_usage(folder)
                time.sleep(1)
            time.sleep(1)
            assert post(client, 0).status_code == 202
