"""A file that is read in parts, all of it, and then once more in other parts: advice, and nothing before that."""

import pytest

from detection.models import Incident
from tests.api.test_directories import Agent

PARTS, SIZE = 8, 40
FIRST = [1 + SIZE * part for part in range(PARTS)]
SHIFTED = [1 + SIZE // 2 + SIZE * part for part in range(PARTS)]
SMALLER = [1 + SIZE // 2 * part for part in range(2 * PARTS)]


def command(text):
    return {"tool": "bash", "arguments": {"command": text}}


READS = {
    "offset": lambda at, size: {"tool": "Read", "arguments": {"file_path": "/src/a.py", "offset": at, "limit": size}},
    "lines": lambda at, size: {
        "tool": "read_file",
        "arguments": {"target_file": "a.py", "start_line_one_indexed": at, "end_line_one_indexed_inclusive": at + size - 1},
    },
    "range": lambda at, size: {
        "tool": "str_replace_based_edit_tool",
        "arguments": {"command": "view", "path": "/src/a.py", "view_range": [at, at + size - 1]},
    },
    "listed": lambda at, size: {
        "tool": "read_file", "arguments": {"files": [{"path": "a.py", "line_ranges": [f"{at}-{at + size - 1}"]}]},
    },
    "sed": lambda at, size: command(f"sed -n '{at},{at + size - 1}p' src/a.py"),
    "numbered": lambda at, size: command(f"cd /src && nl -ba a.py | sed -n '{at},{at + size - 1}p'"),
    "bytes": lambda at, size: command(f"head -c {at + size - 1} a.bin | tail -c {size}"),
    "tail": lambda at, size: command(f"tail -n +{at} a.py | head -n {size}"),
    "dispatched": lambda at, size: {
        "tool": "use_mcp_tool",
        "arguments": {"server_name": "fs", "tool_name": "read_file", "arguments": {"path": "a.py", "offset": at, "limit": size}},
    },
}  # fmt: skip


def text_at(at, size=SIZE):
    """Lines of a file, none like another."""
    return "\n".join(f"{line}: let field_{line * 37} = self.{line * 91}" for line in range(at, at + size))


def played(agent, read, starts, size=SIZE):
    return [agent.step(read(at, size), text_at(at, size)) for at in starts]


@pytest.mark.parametrize("name", READS)
def test_a_second_pass_in_shifted_parts_gets_advice_and_the_first_none(api, name):
    agent, read = Agent(api), READS[name]
    assert set(played(agent, read, FIRST)) == {"allow"}
    second = played(agent, read, SHIFTED)
    assert second[: PARTS // 2] == ["allow"] * (PARTS // 2)
    assert second.count("warn") == 1
    assert "block" not in second
    incident = Incident.objects.get()
    assert (incident.kind, incident.count) == ("stagnation", 2)
    assert incident.evidence["detail"]["scope"] == "pass"


def test_smaller_parts_are_a_second_pass_too_and_a_third_one_is_said_again(api):
    agent, read = Agent(api), READS["offset"]
    played(agent, read, FIRST)
    assert played(agent, read, SMALLER, SIZE // 2).count("warn") == 1
    third = played(agent, read, [at + 5 for at in FIRST])
    assert (third.count("warn"), third.count("block")) == (1, 0)
    assert {incident.count for incident in Incident.objects.all()} == {2, 3}


BETWEEN = {
    "edit": (
        {"tool": "Edit", "arguments": {"file_path": "/src/a.py", "old_string": "a", "new_string": "b"}},
        "Updated.",
    ),
    "change": (command("mv b.py a.py"), ""),
    "unknown": (command("make format"), "formatted 1 file"),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_pass_after_something_that_may_have_changed_the_file_is_work(api, name):
    agent, read = Agent(api), READS["offset"]
    played(agent, read, FIRST)
    assert agent.step(*BETWEEN[name]) == "allow"
    assert set(played(agent, read, SHIFTED)) == {"allow"}
    assert not Incident.objects.exists()


@pytest.mark.parametrize(
    "event",
    [{"type": "message", "content": "Look again, please."}, {"type": "compaction"}],
    ids=["person", "compaction"],
)
def test_a_person_or_a_compaction_begins_anew(api, event):
    agent, read = Agent(api), READS["offset"]
    played(agent, read, FIRST)
    assert api.post("/events", {"session": "s-1", **event}).status_code == 202
    assert set(played(agent, read, SHIFTED)) == {"allow"}


@pytest.mark.parametrize(
    "other",
    [
        lambda at, size: {
            "tool": "Read",
            "arguments": {"file_path": "/src/b.py", "offset": at, "limit": size},
        },
        lambda at, size: {
            "tool": "get_file",
            "arguments": {"path": "/src/a.py", "repo": "b", "offset": at, "limit": size},
        },
        lambda at, size: command(f"cd /other && sed -n '{at},{at + size - 1}p' a.py"),
    ],
)
def test_another_file_is_another_pass(api, other):
    agent = Agent(api)
    first = READS["numbered"] if "command" in other(1, 1)["arguments"] else READS["offset"]
    assert set(played(agent, first, FIRST)) == {"allow"}
    assert set(played(agent, other, SHIFTED)) == {"allow"}


def test_going_back_to_some_parts_is_work(api):
    agent, read = Agent(api), READS["offset"]
    played(agent, read, FIRST)
    assert set(played(agent, read, [SHIFTED[1], SHIFTED[4], SHIFTED[2]])) == {"allow"}
    more = [FIRST[-1] + SIZE * part for part in range(1, 9)]
    assert set(played(agent, read, more)) == {"allow"}


def test_two_parts_of_a_file_are_no_pass(api):
    agent, read = Agent(api), READS["offset"]
    assert set(played(agent, read, [1, 41]) + played(agent, read, [11, 31])) == {"allow"}


@pytest.mark.parametrize(
    "values", [{"preset": "proxy"}, {"once_per_round": False}, {"stagnation_max_passes": 0}]
)
def test_settings_that_take_calls_as_they_are_written_or_turn_it_off_find_nothing(api, values):
    api.put("/overrides", {"values": values})
    agent, read = Agent(api), READS["offset"]
    assert set(played(agent, read, FIRST) + played(agent, read, SHIFTED)) == {"allow"}
