"""POST /api/v1/guard with the list of messages that an agent sends to its model server."""

import itertools

import orjson
import pytest

from detection.integrations.message_lists import MAX_PREFIXES
from detection.models import Event, ReadMessages, Session

SHAPES = ("openai", "anthropic", "responses")


class Conversation:
    """An agent's messages in one of the shapes; calls are (id, tool, arguments), results (id, text)."""

    def __init__(self, api, shape, session="s-1"):
        self.api, self.shape, self.session = api, shape, session
        self.messages = []

    def prompt(self, text="Look it up."):
        self.messages.append({"role": "user", "content": text})
        return self

    def calls(self, *calls):
        if self.shape == "openai":
            functions = [
                {
                    "type": "function",
                    "function": {"name": tool, "arguments": orjson.dumps(arguments).decode()},
                }
                | ({"id": call_id} if call_id else {})
                for call_id, tool, arguments in calls
            ]
            self.messages.append({"role": "assistant", "content": None, "tool_calls": functions})
        elif self.shape == "anthropic":
            blocks = [
                {"type": "tool_use", "name": tool, "input": arguments} | ({"id": call_id} if call_id else {})
                for call_id, tool, arguments in calls
            ]
            self.messages.append(
                {"role": "assistant", "content": [{"type": "text", "text": "One moment."}, *blocks]}
            )
        else:
            self.messages += [
                {"type": "function_call", "name": tool, "arguments": orjson.dumps(arguments).decode()}
                | ({"call_id": call_id} if call_id else {})
                for call_id, tool, arguments in calls
            ]
        return self

    def results(self, *results):
        if self.shape == "openai":
            self.messages += [
                {"role": "tool", "content": text} | ({"tool_call_id": call_id} if call_id else {})
                for call_id, text in results
            ]
        elif self.shape == "anthropic":
            blocks = [
                {"type": "tool_result", "content": [{"type": "text", "text": text}]}
                | ({"tool_use_id": call_id} if call_id else {})
                for call_id, text in results
            ]
            self.messages.append({"role": "user", "content": blocks})
        else:
            self.messages += [
                {"type": "function_call_output", "output": text} | ({"call_id": call_id} if call_id else {})
                for call_id, text in results
            ]
        return self

    def turn(self, call_id, q="reset", answer="0 hits"):
        """A turn that is over."""
        return self.calls((call_id, "search_web", {"q": q})).results((call_id, answer))

    def guard(self, messages=None, **about):
        body = {"session": self.session, "shape": self.shape, "messages": messages or self.messages} | about
        return self.api.post("/guard", body)

    def ask(self, messages=None, **about):
        answer = self.guard(messages, **about)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def decide(self, messages=None, **about):
        return self.ask(messages, **about)["decision"]


@pytest.fixture(params=SHAPES)
def conversation(request, api):
    return Conversation(api, request.param).prompt()


def stored(kind="call"):
    return Event.objects.filter(type=kind).count()


LADDER = ["allow", "allow", "warn"] + ["block"] * 4 + ["stop"]


def loop(conversation, ids, **about):
    """Ask about the same call again and again, in a growing list; the decisions."""
    decisions = []
    for call_id in ids:
        decisions.append(conversation.calls((call_id, "search_web", {"q": "reset"})).decide(**about))
        conversation.results((call_id, "0 hits"))
    return decisions


@pytest.mark.parametrize(
    "ids", [[f"c{n}" for n in range(8)], ["call_0"] * 8, [None] * 8], ids=["own ids", "one id", "no ids"]
)
def test_a_growing_list_climbs_the_ladder_as_single_calls_do(conversation, ids):
    assert loop(conversation, ids) == LADDER
    assert (stored(), stored("message")) == (8, 1)
    assert Session.objects.get().call_count == 8


@pytest.mark.parametrize("call_id", ["c1", None], ids=["own id", "no id"])
def test_a_list_that_is_sent_again_counts_nothing_and_gets_the_first_verdicts(conversation, call_id):
    for number in range(2):
        conversation.turn(call_id and f"c{number}-old")
    conversation.calls((call_id, "search_web", {"q": "reset"}))
    first, *others = [conversation.ask() for _ in range(4)]
    assert first["decision"] == "warn"
    assert [(one["decision"], one["verdicts"][0]["duplicate"]) for one in others] == [("warn", True)] * 3
    assert others[0]["verdicts"][0]["call_id"] == first["verdicts"][0]["call_id"]
    assert others[0]["read"] == {
        "messages": len(conversation.messages), "new": 0, "resent": True, "condensed": False,
    }  # fmt: skip
    assert (stored(), stored("result")) == (3, 2)


def test_an_old_list_that_comes_late_counts_nothing(conversation):
    conversation.calls(("c0", "search_web", {"q": "reset"}))
    old = [*conversation.messages]
    conversation.ask()
    conversation.results(("c0", "0 hits")).turn("c1").calls(("c2", "search_web", {"q": "reset"})).ask()
    late = conversation.ask(old)
    assert (late["decision"], late["verdicts"][0]["duplicate"]) == ("allow", True)
    assert stored() == 3


def test_calls_that_have_run_before_the_first_request_are_observed_and_count(conversation):
    """The agent was connected in the middle of its work: nothing of the past can be blocked, and it is not forgotten."""
    for number in range(5):
        conversation.turn(f"c{number}")
    answer = conversation.calls(("c5", "search_web", {"q": "reset"})).ask()
    assert [verdict["call_id"] for verdict in answer["verdicts"]] == ["c5"]
    assert answer["decision"] == "block"
    assert Session.objects.get().blocked_count == 1


@pytest.mark.parametrize("ids", [[f"c{n}" for n in range(8)], ["call_0"] * 8], ids=["own ids", "one id"])
def test_a_list_whose_beginning_is_cut_off_goes_on_counting(conversation, ids):
    decisions = []
    for number, call_id in enumerate(ids):
        conversation.calls((call_id, "search_web", {"q": "reset"}))
        if number == 5:
            conversation.messages = conversation.messages[-5:]
        decisions.append(conversation.decide())
        conversation.results((call_id, "0 hits"))
    assert decisions == LADDER
    assert (stored(), stored("result")) == (8, 7)


def test_a_sliding_window_counts_every_call_once(conversation):
    decisions = []
    for number in range(8):
        conversation.calls((f"c{number}", "search_web", {"q": "reset"}))
        conversation.messages = conversation.messages[-4:]
        decisions.append(conversation.decide())
        conversation.results((f"c{number}", "0 hits"))
    assert decisions == LADDER
    assert (stored(), stored("result")) == (8, 7)


def test_with_rounds_a_sliding_window_counts_even_where_one_id_serves_all_calls(conversation):
    decisions = []
    for number in range(8):
        conversation.calls(("call_0", "search_web", {"q": "reset"}))
        conversation.messages = conversation.messages[-5:]
        decisions += [conversation.decide(round=f"r{number}") for _ in range(2)]
        conversation.results(("call_0", "0 hits"))
    assert decisions == [decision for decision in LADDER for _ in range(2)]
    assert (stored(), stored("result")) == (8, 7)


@pytest.mark.parametrize("keeps", [0, 2, 4], ids=["nothing kept", "a turn kept", "two turns kept"])
def test_a_compacted_list_counts_nothing_twice_and_goes_on_counting(conversation, keeps):
    for number in range(4):
        conversation.calls((f"c{number}", "search_web", {"q": "reset"})).ask()
        conversation.results((f"c{number}", "0 hits"))
    summary = {"role": "user", "content": "Summary: the search found nothing so far."}
    kept = conversation.messages[-keeps:] if keeps else []
    conversation.messages = [summary, *kept]
    answer = conversation.calls(("c4", "search_web", {"q": "reset"})).ask()
    assert answer["decision"] == "block"
    assert answer["read"]["condensed"]
    assert [verdict["call_id"] for verdict in answer["verdicts"]] == ["c4"]
    assert stored() == 5
    conversation.results(("c4", "not run"))
    assert [conversation.calls((f"d{n}", "search_web", {"q": "reset"})).decide() for n in range(3)] == [
        "block", "block", "stop"
    ]  # fmt: skip
    assert stored() == 8


def test_results_that_the_client_clears_from_its_history_count_nothing_twice(conversation):
    for number in range(3):
        conversation.calls((f"c{number}", "search_web", {"q": f"q{number}"})).ask()
        conversation.results((f"c{number}", "a long page"))
    cleared = orjson.loads(orjson.dumps(conversation.messages).replace(b"a long page", b"[cleared]", 1))
    conversation.messages = cleared
    answer = conversation.calls(("c3", "search_web", {"q": "q3"})).ask()
    assert not answer["read"]["condensed"]
    assert (stored(), stored("result")) == (4, 3)


def test_a_branch_counts_only_what_is_new_in_it(conversation):
    for number in range(3):
        conversation.calls((f"c{number}", "search_web", {"q": "reset"})).ask()
        conversation.results((f"c{number}", "0 hits"))
    trunk = [*conversation.messages]
    first = conversation.calls(("c3", "search_web", {"q": "reset"})).ask()
    conversation.messages = [*trunk]
    second = conversation.calls(("d3", "search_web", {"q": "reset"})).ask()
    conversation.messages = [*trunk]
    other = conversation.calls(("e3", "read_file", {"path": "a"})).ask()
    assert [one["decision"] for one in (first, second, other)] == ["block", "block", "allow"]
    assert [one["read"]["new"] for one in (first, second, other)] == [2, 1, 1]
    assert (stored(), stored("result")) == (6, 3)


def test_two_branches_that_take_turns_count_every_call_once(conversation):
    conversation.turn("c0", q="start").ask()
    branches = [[*conversation.messages], [*conversation.messages]]
    for number, at in itertools.product(range(3), range(2)):
        conversation.messages = branches[at]
        conversation.calls((f"b{at}-{number}", "search_web", {"q": f"{at} {number}"})).ask()
        conversation.results((f"b{at}-{number}", f"page {at} {number}"))
    assert stored() == 7
    assert Session.objects.get().call_count == 7


def test_the_parallel_calls_of_one_answer_count_once_and_get_a_verdict_each(conversation):
    decisions = []
    for number in range(4):
        calls = [(f"c{number}-{n}", "search_web", {"q": "reset"}) for n in range(6)]
        answer = conversation.calls(*calls).ask()
        decisions.append([verdict["decision"] for verdict in answer["verdicts"]])
        conversation.results(*[(call_id, "0 hits") for call_id, *_ in calls])
    assert decisions == [["allow"] * 6, ["allow"] * 6, ["warn"] * 6, ["block"] * 6]


def test_parallel_calls_in_the_history_are_one_round_each(conversation):
    for number in range(2):
        calls = [(f"c{number}-{n}", "search_web", {"q": "reset"}) for n in range(6)]
        conversation.calls(*calls).results(*[(call_id, "0 hits") for call_id, *_ in calls])
    assert conversation.calls(("last", "search_web", {"q": "reset"})).decide() == "warn"


def test_a_list_that_ends_with_results_stores_them_and_returns_no_verdicts(conversation):
    conversation.calls(("c0", "search_web", {"q": "reset"})).ask()
    answer = conversation.results(("c0", "0 hits")).ask()
    assert (answer["verdicts"], answer["decision"]) == ([], "allow")
    assert stored("result") == 1


def test_instructions_of_the_system_that_change_with_every_request_do_not_matter(api):
    conversation = Conversation(api, "openai").prompt()
    decisions = []
    for number in range(4):
        conversation.calls((f"c{number}", "search_web", {"q": "reset"}))
        system = {"role": "system", "content": f"It is {number} o'clock."}
        answer = conversation.ask([system, *conversation.messages])
        decisions.append(answer["decision"])
        assert answer["read"]["new"] == 2
        conversation.results((f"c{number}", "0 hits"))
    assert decisions == LADDER[:4]


def test_marks_for_the_cache_of_a_model_server_do_not_matter(api):
    conversation = Conversation(api, "anthropic").prompt()
    for number in range(4):
        conversation.calls((f"c{number}", "search_web", {"q": "reset"}))
        marked = orjson.loads(orjson.dumps(conversation.messages))
        marked[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        assert conversation.decide(marked) == LADDER[number]
        conversation.results((f"c{number}", "0 hits"))
    assert stored() == 4


def test_a_blocked_call_keeps_its_message_as_result(conversation):
    for number in range(3):
        conversation.calls((f"c{number}", "search_web", {"q": "reset"})).ask()
        conversation.results((f"c{number}", "0 hits"))
    answer = conversation.calls(("c3", "search_web", {"q": "reset"})).ask()
    conversation.results(("c3", answer["verdicts"][0]["message"]))
    assert conversation.calls(("c4", "read_file", {"path": "a"})).decide() == "allow"
    assert (stored(), stored("result")) == (5, 4)


def test_what_is_remembered_of_a_session_is_bounded(conversation):
    for number in range(MAX_PREFIXES):
        conversation.turn(f"c{number}", q=f"q{number}", answer=f"page {number}")
    conversation.ask()
    conversation.calls(("last", "search_web", {"q": "last"})).ask()
    assert len(bytes(ReadMessages.objects.get().digests)) < 8_000
    assert stored() <= 501
    assert conversation.ask()["read"]["resent"]


def test_the_verdict_is_rendered_in_the_form_of_the_client(api):
    conversation = Conversation(api, "openai").prompt()
    for number in range(3):
        conversation.turn(f"c{number}")
    conversation.calls(("c3", "search_web", {"q": "reset"}))
    body = {"session": "s-1", "shape": "openai", "messages": conversation.messages}
    verdict = api.post("/guard?render=openai", body).json()["verdicts"][0]
    assert verdict["rendered"].items() >= {"role": "tool", "tool_call_id": "c3"}.items()


def test_sessions_and_projects_remember_apart(api, as_other):
    mine = Conversation(api, "openai").prompt().calls(("c0", "search_web", {"q": "reset"}))
    mine.ask()
    for other in (Conversation(api, "openai", "s-2"), Conversation(as_other, "openai")):
        other.messages = mine.messages
        assert other.ask()["read"]["new"] == 2
    assert stored() == 3


PROMPT = {"role": "user", "content": "Look it up."}


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({"messages": [PROMPT]}, "missing", "shape"),
        ({"messages": [PROMPT], "shape": "gemini"}, "invalid_value", "shape"),
        ({"messages": [PROMPT], "shape": ["openai"]}, "invalid_value", "shape"),
        ({"shape": "openai"}, "missing", "messages"),
        ({"messages": [], "shape": "openai"}, "missing", "messages"),
        ({"messages": {}, "shape": "openai"}, "invalid_type", "messages"),
        ({"messages": [PROMPT, 1], "shape": "openai"}, "invalid_type", "messages[1]"),
        ({"messages": [{"content": "a"}], "shape": "openai"}, "missing", "messages[0].role"),
        ({"messages": [{"role": "tool"}], "shape": "anthropic"}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": []}], "shape": "responses"}, "invalid_value", "messages[0].role"),
        ({"messages": [PROMPT], "shape": "openai", "calls": [{"tool": "t"}]}, "invalid_value", "calls"),
        ({"messages": [PROMPT], "shape": "openai", "results": [{}]}, "invalid_value", "results"),
        (
            {"messages": [{"type": "function_call", "name": "t"}], "shape": "responses", "round": "seq-1"},
            "reserved_name",
            "messages[0].round",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": {}}], "shape": "openai"},
            "invalid_type",
            "messages[0].tool_calls",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}], "shape": "openai"},
            "missing",
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}], "shape": "openai"},
            "invalid_type",
            "messages[0].tool_calls[0].function",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}], "shape": "anthropic"},
            "missing",
            "messages[0].content[0].name",
        ),
        ({"messages": [{"role": "user", "content": 5}], "shape": "anthropic"}, "invalid_type", "messages[0].content"),
        ({"messages": [{"type": "function_call"}], "shape": "responses"}, "missing", "messages[0].name"),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_read_is_rejected_with_the_path_of_what_is_wrong(api, body, code, path):
    answer = api.post("/guard", {"session": "s-1"} | body)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["path"]) == (422, code, path)
    assert not Event.objects.exists()


def test_more_messages_than_allowed_are_rejected(api):
    body = {"session": "s-1", "shape": "openai", "messages": [PROMPT] * 10_001}
    answer = api.post("/guard", body)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_events")


def test_what_is_altered_in_a_message_is_named(api):
    messages = [{"role": "user", "content": "a\u0000b"}]
    answer = api.post(
        "/guard", {"session": "s-1", "shape": "openai", "messages": messages, "extra": 1}
    ).json()
    assert answer["altered"] == [
        {"path": "", "marks": ["unknown_field"], "unknown_fields": ["extra"]},
        {"path": "messages[0]", "marks": ["nul"]},
    ]
