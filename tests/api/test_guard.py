"""POST /api/v1/guard."""

import pytest


def test_the_fourth_equal_call_is_stopped_with_its_incident_and_the_source_of_every_setting(api):
    decisions = [api.call().json()["decision"] for _ in range(3)]
    answer = api.call(backend="openai", model="gpt-5").json()
    assert decisions == ["allow", "allow", "allow"]
    assert answer["decision"] == "stop"
    verdict = answer["verdicts"][0]
    assert verdict["finding"]["kind"] == "repeat"
    assert verdict["finding"]["count"] == 4
    assert verdict["policy"]["max_repeats"]["source"] == "preset:standard"
    assert verdict["message"].startswith("Tool call loop detected")
    assert answer["links"]["incident"].endswith(f"/p/support/incidents/{verdict['incident']}")
    assert answer["links"]["session"].endswith("/p/support/sessions/s-1")
    assert api.get(f"/incidents/{verdict['incident']}").json()["count"] == 4
