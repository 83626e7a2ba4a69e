"""Seventeen small runs by which loop detectors are compared: nine loops, and eight runs that must go on."""

from __future__ import annotations

import pytest

from tests.engine.play import Player

FILES = ("app.py", "views.py", "models.py", "forms.py", "urls.py")
LOOK = ("read_file", {"path": "app.py"}, "def main(): return 1")
FIND = ("search_code", {"text": "def main"}, "app.py, line 1")
TEST = ("run_tests", {"only": "app"}, "1 failed: test_main")
REFUSED = "connect ECONNREFUSED 127.0.0.1:5432"
# Six tools, and one service behind them that does not run.
SAME_ERROR = tuple(
    (tool, {name: value}, REFUSED, True)
    for tool, name, value in (
        ("list_tables", "schema", "public"),
        ("count_rows", "of", "orders"),
        ("get_customer", "email", "ann@example.org"),
        ("latest_invoice", "number", 17),
        ("describe_index", "index", "by_date"),
        ("show_locks", "longer_than", "5 minutes"),
    )
)

LOOPS = {
    "identical, 5 times": (LOOK,) * 5,
    "identical, 12 times": (LOOK,) * 12,
    "identical but for the order of keys": tuple(
        ("lookup", {"a": 1, "b": 2} if n % 2 else {"b": 2, "a": 1}, "three rows") for n in range(5)
    ),
    "two calls in turn, 3 times": (LOOK, FIND) * 3,
    "two calls in turn, 6 times": (LOOK, FIND) * 6,
    "three calls in turn, 3 times": (LOOK, FIND, TEST) * 3,
    "nearly the same arguments": tuple(
        ("search_web", {"query": f"how to install the {word} driver on linux"}, "no page was found for this")
        for word in ("graphics", "graphic", "graphics card", "display", "video", "gpu")
    ),
    "one error of six tools": SAME_ERROR,
}


def decisions(*steps, **values):
    """What is decided about these steps: tool, arguments, result, whether it is an error, and the pause before it."""
    player, found = Player(**values), []
    for tool, arguments, result, *more in steps:
        is_error, gap = more[0] if more else False, more[1] if more[1:] else 2.0
        found.append(player.step(tool, arguments, result, is_error=is_error, gap=gap).decision)
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_the_comparison_is_found(name):
    assert set(decisions(*LOOPS[name])) != {"allow"}


def test_a_loop_is_found_although_another_session_works_in_between():
    looping, working = Player(), Player()
    found = []
    for n in range(6):
        found.append(looping.step(*LOOK).decision)
        assert working.step("read_file", {"path": f"part {n}"}, f"{n * n} lines").decision == "allow"
    assert "block" in found


HEALTHY = {
    "a poll whose answer changes": tuple(
        ("get_job", {"id": 7}, f'{{"state": "running", "percent": {10 * n}}}', False, 5.0)
        for n in range(1, 10)
    ),
    "page after page": tuple(
        ("list_orders", {"page": n}, f"orders {20 * n} to {20 * n + 19}") for n in range(12)
    ),
    "edit and test, fewer failures each time": tuple(
        step
        for n in range(4)
        for step in (
            ("edit_file", {"path": "app.py", "old": f"a{n}", "new": f"b{n}"}, "The file was changed"),
            ("bash", {"command": "pytest -q"}, f"{4 - n} failed, {n} passed", n < 4),
        )
    ),
    "sixty different calls": tuple(
        (f"tool_{n % 7}", {"name": f"item {n * n}", "of": FILES[n % 5]}, f"{n * 37} is known of item {n * n}")
        for n in range(60)
    ),
    "twenty commands of a shell": tuple(
        ("bash", {"command": command.format(name)}, f"{command[:4]} says {n * 31} about {name}")
        for n, (command, name) in enumerate(
            (command, name)
            for name in FILES
            for command in ("wc -l {}", "git log --oneline {}", "head -5 {}", "python -m pyflakes {}")
        )
    ),
    "a look every ten minutes": tuple(
        ("check_health", {"of": "shop"}, "all is well", False, 600.0) for _ in range(6)
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_of_the_comparison_goes_on_without_a_word(name):
    assert set(decisions(*HEALTHY[name])) == {"allow"}


def test_a_retry_that_succeeds_runs():
    failed = ("fetch_url", {"url": "https://example.org/a"}, "HTTP 503: the service is unavailable", True)
    answered = (*failed[:2], "all of the page")
    # The third identical call in a row is warned about, and runs.
    assert decisions(failed, failed, answered, LOOK, FIND)[1:] == ["allow", "warn", "allow", "allow"]


def test_two_sessions_that_do_the_same_are_no_loop():
    sessions = [Player(), Player()]
    for step in (LOOK, FIND, TEST):
        assert [one.step(*step).decision for one in sessions] == ["allow", "allow"]


def test_six_tools_with_errors_of_their_own_are_no_loop():
    own = [
        (tool, arguments, f"{tool} does not know {n * n}", True)
        for n, (tool, arguments, *_) in enumerate(SAME_ERROR)
    ]
    assert set(decisions(*own, stagnation_enabled=False)) == {"allow"}
    assert "warn" in decisions(*SAME_ERROR, stagnation_enabled=False)


def test_one_error_ends_when_one_of_its_tools_answers():
    answered = ("list_tables", {"schema": "public"}, "orders, customers")
    steps = (*SAME_ERROR[:5], answered, *SAME_ERROR[1:6])
    assert set(decisions(*steps, stagnation_enabled=False)) == {"allow"}
