"""`manage.py replay`."""

from __future__ import annotations

import gzip
import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from detection.engine.identity import Keyer
from detection.engine.policy import SESSION, resolve
from detection.integrations.recorded_runs import fold_session


def event(seq, session="s", **more):
    return {
        "source": "own",
        "session": session,
        "seq": seq,
        "ts": None,
        "tool": "search",
        "arguments": {"q": "x"},
        "result": "0 hits",
        "is_error": False,
        **more,
    }


def write(path, events, opener=open):
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in events)
    return str(path)


def run(*arguments):
    out = StringIO()
    call_command("replay", *arguments, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("name", "opener"), [("events.jsonl", open), ("events.jsonl.gz", gzip.open)])
def test_one_line_per_call_that_is_not_simply_allowed(tmp_path, name, opener):
    path = write(tmp_path / name, [event(i) for i in range(4)], opener)

    assert run(path) == [
        {"session": "s", "seq": 2, "decision": "warn", "kind": "repeat", "count": 3},
        {"session": "s", "seq": 3, "decision": "block", "kind": "repeat", "count": 4},
    ]


def test_sessions_are_folded_apart_even_when_their_lines_are_mixed(tmp_path):
    path = write(tmp_path / "e.jsonl", [event(i // 2, session="ab"[i % 2]) for i in range(4)])

    assert run(path) == []


def test_a_policy_may_be_given(tmp_path):
    path = write(tmp_path / "e.jsonl", [event(i, result=None) for i in range(2)])
    policy = tmp_path / "policy.json"
    policy.write_text('{"preset": "advisory"}', encoding="utf-8")

    assert [one["decision"] for one in run(path, "--policy", str(policy))] == ["warn"]


@pytest.mark.parametrize("line", ["{broken", "[1]"])
def test_a_line_that_is_no_event_is_named(tmp_path, line):
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(event(0)) + "\n" + line + "\n", encoding="utf-8")

    with pytest.raises(CommandError, match="line 2"):
        run(str(path))


@pytest.mark.parametrize("text", ["{", "[]", '{"max_repeats": 1}', '{"nonsense": 1}'])
def test_an_invalid_policy_is_rejected(tmp_path, text):
    policy = tmp_path / "policy.json"
    policy.write_text(text, encoding="utf-8")

    with pytest.raises(CommandError, match=r"policy\.json"):
        run(write(tmp_path / "e.jsonl", [event(0)]), "--policy", str(policy))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CommandError, match="nowhere"):
        run(str(tmp_path / "nowhere.jsonl"))


def test_calls_of_one_response_are_folded_before_any_of_their_results():
    errors = [event(i, arguments={"n": i}, turn=1, result="denied", is_error=True) for i in range(2)]
    last = event(2, arguments={"n": 2}, turn=1, result=None)
    policy = resolve([(SESSION, {"outcome_max_errors": 2, "once_per_round": False})])

    # The last call does not know the errors of the others yet.
    assert [one.kinds for one in fold_session([*errors, last], policy, Keyer())] == [(), ("outcome",), ()]
    later = [*errors, last | {"turn": 2}]
    assert [one.kinds for one in fold_session(later, policy, Keyer())] == [(), ("outcome",), ("outcome",)]


def test_a_user_who_spoke_between_two_calls_resets_an_attended_session(tmp_path):
    calls = [event(i, user_before=i == 2, result="boom", is_error=True) for i in range(4)]
    path = write(tmp_path / "e.jsonl", calls)
    policy = tmp_path / "policy.json"
    policy.write_text('{"attended": true}', encoding="utf-8")

    # What failed before the message fails after it, too.
    assert [(one["seq"], one["decision"]) for one in run(path)] == [(2, "warn"), (3, "block")]
    assert run(path, "--policy", str(policy)) == []
