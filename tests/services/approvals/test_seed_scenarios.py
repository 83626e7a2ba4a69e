"""The written scenarios of the systems that ask (a person, a judge), played through the guard with real answers."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from detection.engine.scopes import PROJECT
from detection.models import Approval, JudgeCall
from detection.services.approvals import decisions, judge_consultation
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.policies import overrides
from detection.services.sessions import actions
from loopguard_site.judge_env import JudgeEndpoint
from tests.support.agents import OPERATOR
from tests.support.judge_server import JudgeServer, completion, ruling

FILE = Path(__file__).parents[2] / "scenarios" / "seeds.json"
SCENARIOS = [
    one
    for one in json.loads(FILE.read_text())["scenarios"]
    if one["system"] in ("003", "004") and one["basis"] in ("doc", "doc+repo")
]
ANSWERS = {"keep_enabled": "skip", "disable_for_session": "disable"}


def filled(value, number):
    return json.loads(json.dumps(value).replace("{i}", str(number)))


def entries(scenario):
    """The calls one by one, each with its round, and the controls between them."""
    for at, entry in enumerate(scenario["calls"]):
        for number in range(entry.get("n", 1)):
            group = {"each": number, "by3": number // 3}.get(entry.get("batch"), entry.get("batch"))
            yield filled(entry, number) | {"round": "" if group is None else f"r-{at}-{group}"}


def settings_of(scenario):
    config = scenario["config"]
    if scenario["system"] == "004":
        return {"preset": "justified", "budget_max_rounds": config["max_rounds"] + 1}
    values = {"preset": "interactive", "max_repeats": config["loop_detection_threshold"] + 1}
    values["enabled"] = not config["skip_loop_detection"]
    return values if config["loop_detection_interactive"] else values | {"mode": "break"}


def reply(text, request):
    """A judge of today that means what the words of the old one said."""
    for word, decision in (("JUSTIFICATION ACCEPTED", "accepted"), ("JUSTIFICATION DENIED", "denied")):
        if isinstance(text, str) and text.startswith(word):
            return completion(ruling(request, decision, extra_rounds=0))
    return completion(text) if isinstance(text, str) else (504, b"", {})


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one["id"])
def test_the_scenario_plays_as_written(scenario, project, principal, settings):
    overrides.save_override(project.pk, PROJECT, settings_of(scenario), OPERATOR)
    config = scenario["config"]
    choices, replies = [*config.get("user_choices", ())], [*config.get("judge_replies", ())]
    with JudgeServer(lambda request: reply(replies.pop(0), request)).running() as server:
        settings.JUDGE = JudgeEndpoint(url=server.url, model="judge-1")
        found, index = [], -1
        for entry in entries(scenario):
            if "control" in entry:
                wanted = {"disable": False, "enable": None}[entry["control"]]
                actions.set_policy(project.pk, "s-1", {"enabled": wanted}, OPERATOR)
                continue
            index += 1
            call = EventRecord(
                type="call", session="s-1", call_id=f"c-{index}", round=entry["round"], tool=entry["tool"],
                arguments=json.dumps(entry["args"]),
            )  # fmt: skip
            verdict = guard(principal, GuardRequest(session="s-1", calls=(call,))).verdicts[0]
            if verdict.decision == "allow":
                continue
            told = {"i": index, "decision": verdict.decision, "count": verdict.verdict.finding["count"]}
            found.append(told)
            if verdict.approval and verdict.decision == "hold":
                approval = Approval.objects.get(public_id=verdict.approval["id"])
                assert timedelta(0) < approval.deadline - approval.requested_at
                if approval.decider == "judge":
                    judge_consultation.consult_judge(approval.public_id, project.pk)
                else:
                    decisions.decide(project.pk, approval.public_id, ANSWERS[choices.pop(0)], OPERATOR)
                approval.refresh_from_db()
                told["decision"] = approval.decision
            if told["decision"] == "stop":
                break
    expected = scenario["expect"]["detections"]
    assert [one["i"] for one in found] == [one["i"] for one in expected]
    for got, wanted in zip(found, expected, strict=True):
        assert got["decision"] == outcome_of(wanted)
        if scenario["system"] == "003":
            assert got["count"] == wanted["count"]
    asked = sum(one.get("action") == "judge" for one in expected)
    assert JudgeCall.objects.filter(was_sent=True).count() == asked


def outcome_of(wanted):
    """What became of the call, in the words of verdicts."""
    if wanted["action"] == "prompt":
        return "allow" if wanted.get("executed") else "block"
    if wanted["action"] == "judge":
        return "allow" if wanted["outcome"] == "continue" else "stop"
    return "stop"
