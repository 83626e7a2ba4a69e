"""The supervisor tells its processes where the database's files lie, so that they can watch that disk."""

import json
import signal
from pathlib import Path

import httpx


def test_the_disk_of_the_embedded_database_is_watched(run):
    run.environment["LOOPGUARD_MIN_FREE"] = "100%"
    up, ready = run.start()
    key = {"Authorization": f"Bearer {ready['api_key']}"}
    with httpx.Client(base_url=f"{ready['url']}/api/v1", headers=key, timeout=10) as client:
        refused = client.post("/events", json={"type": "call", "session": "s", "tool": "t"})
        assert (refused.status_code, refused.json()["code"]) == (503, "storage_full")
        assert client.get("/sessions").json()["items"] == []
    told = json.loads((run.data / "running.json").read_text())["environment"]
    assert (Path(told["LOOPGUARD_DATABASE_FOLDER"]) / "PG_VERSION").exists()
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
