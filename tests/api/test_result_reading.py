"""What a result says is read once and in every form: each kind on both sides, through the guard."""

from __future__ import annotations

import json

import pytest

from detection.models import Incident

NAMES = ("alpha", "bravo", "carlo", "delta", "ellis", "frank", "grace", "heidi", "ivana", "julia")
PLACES = ("Rome", "Oslo", "Bern", "Riga", "Kyiv", "Lima", "Cork", "Bonn", "Nice", "York")
HOST_REFUSES = "permission denied: tool 'bash' requires full access in this session"


def each(tool, content, count=8, is_error=None, **arguments):
    """Calls that differ, each with a result that may name its call."""
    more = [] if is_error is None else [is_error]
    filled = [
        (
            {name: value.format(n=n, name=NAMES[n], place=PLACES[n]) for name, value in arguments.items()},
            content.format(n=n, name=NAMES[n], place=PLACES[n], square=n * n + 17),
        )
        for n in range(count)
    ]
    return [(tool, given, text, *more) for given, text in filled]


def same(tool, contents, **arguments):
    return [(tool, arguments, content) for content in contents]


BOOKED = json.dumps({"error": True, "message": "room is required"}).replace("{", "{{").replace("}", "}}")
FIRES = {
    "an object that says error": each("book_room", BOOKED, guest="{name}"),
    "an object without success": each(
        "book_room", '{{"success": false, "reason": "no room"}}', guest="{name}"
    ),
    "an object with an error alone": each(
        "book_room", '{{"result": null, "error": "room?"}}', guest="{name}"
    ),
    "a word for the status": each("book_room", '{{"status": "error", "message": "room?"}}', guest="{name}"),
    "an error of MCP": each("book_room", "MCP error -32602: room is required", guest="{name}"),
    "a denial": each("book_room", "Permission denied: bookings are read-only", guest="{name}"),
    "an unknown tool": each("book_rooom", "Unknown tool name: 'book_rooom'", guest="{name}"),
    "a session that is gone": each("write_stdin", "No session found for 2321", text="{name}"),
    "a program that fails": each("run_tests", "ImportError: cannot import name 'total'", path="{name}"),
    "its command in prose": each(
        "git_remote", "Command failed: git -C {name} remote -v\nno remote", dir="{name}"
    ),
    "its query in a field": each("find_hotels", '{{"query": "{place}", "hotels": []}}', 6, query="{place}"),
    "a percent-encoded text": each("open_page", "HTTP 404 for /a%20{name}", 6, True, path="/a {name}"),
    "a duration that changes": same(
        "count_rows", [f'{{"rows": 3, "durationMs": {n * 7}}}' for n in range(5)], table="a"
    ),
    "usage that changes": same(
        "ask_agent", [f'{{"text": "no", "usage": {{"output_tokens": {n}}}}}' for n in range(5)], q="a"
    ),
    "a command that its host refuses": each("bash", HOST_REFUSES, is_error=True, command="make {name}"),
    "searches of a shell that find nothing": each("bash", "", command="find . -name {name}"),
    "a picture of the same call": same("view_image", ["Image read successfully"] * 4, path="a.png"),
    "a receipt of the same load": same("bash", ["loaded 1000 rows"] * 4, command="python load.py --block 3"),
    "rows that nothing changed": each("bash", "0 rows updated", command="python fix.py --block {name}"),
}
STAYS = {
    "an object that has no error": each("book_room", '{{"error": false, "room": {square}}}', guest="{name}"),
    "an object with success": each("book_room", '{{"success": true, "error": null}}', guest="{name}"),
    "a status that only begins so": each("get_node", '{{"status": "errors: {square}"}}', id="{name}"),
    "a page about errors": each("open_page", "Chapter {square}: MCP error -32602 and its kin", url="{name}"),
    "a figure that carries the state": same(
        "get_export", [f'{{"percent": {n * 9}, "durationMs": {n}}}' for n in range(8)], id="e1"
    ),
    "different answers about each": each("git_remote", "origin git@{place}:{name}.git", dir="{name}"),
    "a phrase about each, few times": each("lint", "{name}.py is valid", 5, path="{name}.py"),
    "a shell that only looks and sees something": each("bash", "{square} lines", command="wc -l {name}"),
    "programs that print nothing": each("bash", "", command="python build.py {name}"),
    "pictures of several files": each("view_image", "Image read successfully", path="{name}.png"),
    "block after block": each("bash", "loaded 1000 rows", 10, command="python load.py --block {n}"),
    "records that are imported": each("run", "✓ 250 records imported in 3.2 s.", 10, command="load {name}"),
    "writes with a comment first": each("run_sql", "INSERT 0 1", sql="-- {name}\nINSERT INTO a VALUES ({n})"),
}


@pytest.mark.parametrize("name", FIRES)
def test_what_says_the_same_is_found(api, name):
    steps = FIRES[name]
    assert api.run(steps), steps[:2]
    assert Incident.objects.count() == 1


@pytest.mark.parametrize("name", STAYS)
def test_what_says_something_else_is_left_alone(api, name):
    assert api.run(STAYS[name]) == {}
    assert not Incident.objects.exists()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("429 Too Many Requests", "outage"),
        ("HTTP 503: the service is unavailable", "outage"),
        ("connect ETIMEDOUT 10.0.0.7:443", "outage"),
        ("This model's maximum context length is 8192 tokens, however you requested 9012", "outcome"),
        ("RecursionError: maximum recursion depth exceeded", "outcome"),
        ("disk quota exceeded for user build", "outcome"),
        ("TimeoutError: locator.click: Timeout 5000ms exceeded.", "outcome"),
        ("connect ECONNREFUSED 127.0.0.1:5432", "outcome"),
    ],
)
def test_trouble_takes_a_provider_and_the_rest_escalates(api, error, kind):
    found = api.run(each("ask_model", error, 10, True, text="story of {name} in {place}"))
    assert Incident.objects.get().kind == kind
    assert ("block" in {decision for decision, _ in found.values()}) is (kind == "outcome")


ADVICE = {
    "maximum context length exceeded: 9000 > 8192": "make what you send or ask for smaller",
    "value exceeds the column limit": "make what you send or ask for smaller",
    "Test timed out in 5000ms": "check that what you wait for is there",
    "net::ERR_CONNECTION_REFUSED at http://localhost:3000/": "check that it runs and where it listens",
}


@pytest.mark.parametrize("error", ADVICE)
@pytest.mark.parametrize("is_same", [True, False])
def test_messages_say_that_a_limit_is_the_calls_own(api, error, is_same):
    calls = [("ask_model", {"text": "x" if is_same else NAMES[n]}, error, True) for n in range(9)]
    found = api.run(calls)
    told = [text for decision, text in found.values() if decision in ("warn", "block")]
    assert len(told) >= 2
    assert all(ADVICE[error] in text for text in told), told


@pytest.mark.parametrize("error", ["no such column: total", "HTTP 404: not found"])
def test_other_errors_have_the_advice_of_their_detector(api, error):
    found = api.run([("ask_model", {"text": one}, error, True) for one in NAMES])
    assert found
    assert not any(advice in text for _, text in found.values() for advice in ADVICE.values())


REJECTED = "The user doesn't want to proceed with this tool use. STOP and wait for the user."


def plans(*texts, between="No, not like that."):
    return [
        step for text in texts for step in (("ExitPlanMode", {"plan": text}, REJECTED, True), between) if step
    ]


DIFFERENT = [f"{place}: change {name}, then test" for name, place in zip(NAMES, PLACES, strict=True)]


def test_other_plans_that_a_person_rejects_with_words_are_no_loop(api):
    assert api.run(plans(*DIFFERENT[:5], *DIFFERENT[:5])) == {}


@pytest.mark.parametrize(
    "steps",
    [
        plans(*DIFFERENT, between=""),
        plans(*[DIFFERENT[0]] * 5),
        [
            step
            for name in NAMES
            for step in (("Bash", {"command": f"rm {name}"}, HOST_REFUSES, True), "Go on.")
        ],
    ],
    ids=["without a word in between", "the same plan", "refused by the host"],
)
def test_other_refusals_are_found(api, steps):
    assert api.run(steps)
