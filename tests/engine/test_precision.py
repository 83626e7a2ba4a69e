"""Work that looks like a loop and is none, each with the loop beside it that must still be found."""

from __future__ import annotations

from typing import Any

import pytest

from detection.engine import Guard
from tests.engine.play import Player


def findings(player: Player, *steps) -> list[str]:
    """Kinds of the findings of these steps: tool, arguments, result, and whether it is an error."""
    return [
        finding.kind
        for tool, arguments, result, *is_error in steps
        for finding in player.step(tool, arguments, result, is_error=bool(is_error)).findings
    ]


@pytest.mark.parametrize(
    ("tool", "receipt"),
    [
        ("write_file", "Successfully wrote the file to the folder that was given"),
        ("createfile", '{"success": true, "message": "One more file is in the folder"}'),
        ("mcp__crm__add_contact_note", "The note was added and everybody who follows it was informed"),
        ("send_email", "The message was sent to everybody who is in the list of recipients"),
    ],
)
def test_receipts_for_different_pieces_of_work_are_no_loop(tool, receipt):
    work = [(tool, {"name": f"part {n}", "text": f"text number {n * n}"}, receipt) for n in range(12)]
    assert findings(Player(), *work) == []
    assert "repeat" in findings(Player(), *(work[:1] * 4))


def test_a_dispatched_write_and_a_written_row_are_work_too():
    player = Player()
    receipt = "The request was carried out and one record of the table was affected"
    assert (
        findings(player, *(("gateway", {"action_name": "create_event", "n": n}, receipt) for n in range(9)))
        == []
    )
    rows = (("run_query", {"sql": f"INSERT INTO t VALUES ({n})"}, receipt) for n in range(9))
    assert findings(player, *rows) == []
    looks = (("run_query", {"sql": f"SELECT * FROM t WHERE n = {n}"}, receipt) for n in range(9))
    assert "outcome" in findings(player, *looks)


def test_a_declined_write_is_no_receipt():
    declined = "No replacement was performed because the text to replace did not appear in the file"
    assert "outcome" in findings(
        Player(),
        *(("str_replace_editor", {"command": "str_replace", "old": f"w{n}"}, declined) for n in range(8)),
    )


def test_results_of_one_response_count_once():
    def reading(same_round):
        player = Player()
        for n in range(8):
            player.call("read_file", {"path": f"part {n}.json"}, round="1" if same_round else f"{n}")
        return [
            finding.kind
            for n in range(8)
            for finding in player.answer("{ }  no content yet", call_id=f"call-{n}").verdict.findings
        ]

    assert reading(same_round=True) == []
    assert "outcome" in reading(same_round=False)


def walk(case, steps=8):
    """A procedure that is followed from its start for every piece of work, with a write at its end."""
    return [
        *(("goto_node", {"node": n}, f"instructions of node {n} that never change") for n in range(steps)),
        ("update_order", {"case": case}, "The order was updated as the customer wanted it to be"),
    ]


def test_a_procedure_may_be_followed_again_after_every_change():
    assert findings(Player(), *(step for case in range(6) for step in walk(case))) == []


def test_a_procedure_that_starts_over_without_a_change_is_a_loop():
    assert "stagnation" in findings(Player(), *walk(0)[:-1], *walk(0)[:-1])


def test_after_a_message_of_the_user_looking_again_is_normal_and_failing_again_is_not():
    player = Player()
    for _ in range(6):
        player.message()
        assert (
            findings(
                player,
                ("get_user", {"id": 7}, "ann, who lives in a street"),
                ("get_order", {"id": 9}, "two boots"),
            )
            == []
        )
    refused = ("pay", {"card": "one"}, "this card is not known to the bank at all", True)
    found = []
    for _ in range(4):
        player.message()
        found += findings(player, refused, ("get_user", {"id": 7}, "ann, who lives in a street"))
    assert found


@pytest.mark.parametrize(("preset", "turn"), [("standard", 3), ("strict", 3), ("lenient", 4)])
def test_what_a_user_gets_again_in_every_turn_is_advised_about_once(preset, turn):
    again = ("get_user", {"id": 7}, "ann, who lives in a street")

    def turns_with_a_finding(**values):
        player, found = Player(preset, **values), []
        for number in range(1, 6):
            found += [number] if findings(player, again) else []
            player.message()
        return found

    assert turns_with_a_finding() == [turn]
    assert turns_with_a_finding(repeat_warn_at=0) == []


def test_every_shell_is_one_tool_and_comments_on_a_call_do_not_count():
    player = Player()
    found = findings(
        player,
        ("Bash", {"command": "make check", "description": "Run the checks"}, "nothing to be done for it"),
        ("exec_command", {"cmd": "make check", "yield_time_ms": 1000}, "nothing to be done for it"),
        ("shell", {"command": ["bash", "-lc", "make check"], "timeout_ms": 9}, "nothing to be done for it"),
        ("Bash", {"command": "make check", "description": "Check again"}, "nothing to be done for it"),
    )
    assert "repeat" in found
    steps = (
        ("read_file", {"path": "a.py", "task_progress": f"step {n}"}, "one and the same text")
        for n in range(4)
    )
    assert "repeat" in findings(Player(), *steps)
    other = (
        ("Bash", {"command": "make check", "cwd": f"/part/{n}"}, f"all well in part {n}") for n in range(4)
    )
    assert findings(Player(), *other) == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("process", {"action": "poll", "id": 7}),
        ("write_stdin", {"session_id": 7, "chars": ""}),
        ("read_bash", {"id": 7}),
    ],
)
def test_a_call_that_only_asks_for_a_state_is_a_poll(tool, arguments):
    player = Player()
    assert (
        findings(player, *((tool, arguments, "still running, nothing to report yet") for _ in range(9))) == []
    )
    assert findings(player, (tool, arguments, "still running, nothing to report yet")) == ["repeat"]


def test_results_that_move_in_one_direction_are_an_honest_poll():
    rising = (("get_build", {"id": 7}, f"{n} of 40 steps done") for n in range(30))
    assert findings(Player(), *rising) == []
    going_round = (("get_build", {"id": 7}, f"{n % 7} of 40 steps done") for n in range(30))
    assert "repeat" in findings(Player(), *going_round)


@pytest.mark.parametrize(
    ("answer", "is_idle"),
    [
        ("web1 unreachable, probe {0}", True),
        ('{{"health": "degraded", "reason": "disk 91% full", "alive_for": {0}4000}}', True),
        ("{0} of 400 files copied", False),
        ("{1} files are left", False),
        ("file {0}: {2}", False),
    ],
)
def test_a_figure_that_only_counts_the_looks_is_advised_against_after_twice_the_limit(answer, is_idle):
    words = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty"]
    player = Player()
    steps = [
        player.step("server_info", {"id": 7}, answer.format(n, 90 - n, words[n % 10] * n))
        for n in range(1, 25)
    ]
    warned = [n for n, step in enumerate(steps, 1) if step.decision != "allow"]
    assert warned[:1] == ([20] if is_idle else [])
    assert {step.decision for step in steps} <= {"allow", "warn"}


def page(goods, visited="9 seconds ago"):
    return f"A shop with seven aisles, a counter and two doors. Last visited {visited}. Today: {goods}. Nothing is selected."


def test_an_action_whose_page_stays_nearly_the_same_is_advised_against():
    goods = ("apples and plums", "pears, cherries", "grapes, figs", "dates and kiwis", "limes, mangoes")
    clicks = [("click", {"target": "Select a month"}, page(one)) for one in goods]
    assert findings(Player(), *clicks[:2]) == []
    player = Player()
    verdicts = [player.step(*click) for click in clicks]
    assert [verdict.decision for verdict in verdicts] == ["allow", "allow", "warn", "allow", "allow"]
    assert verdicts[2].finding.results == "alike"
    assert "nearly the same result" in verdicts[2].message
    assert findings(Player(repeat_near_ratio=1), *clicks) == []


@pytest.mark.parametrize(
    ("tool", "arguments", "results"),
    [
        ("scroll", {"direction": "down"}, [page(one) for one in ("apples and plums", "pears, cherries", "grapes, figs")]),
        ("browser", {"action": "scroll_down"}, [page(one) for one in ("apples and plums", "pears, cherries", "grapes, figs")]),
        ("click", {"target": "Load more"}, [page(one) for one in ("apples and plums", "pears, cherries", "grapes, figs")]),
        ("deploy", {"id": 7}, [page(one) for one in ("building", "testing", "ready")]),
        ("open_door", {"id": 7}, [page(f"{n * n} of 40 people") for n in (4, 2, 3)]),
        ("read_page", {"id": 7}, [page(one) for one in ("apples and plums", "pears, cherries", "grapes, figs")]),
        ("job_status", {"id": 7}, [page(one) for one in ("apples and plums", "pears, cherries", "grapes, figs")]),
    ],
)  # fmt: skip
def test_paging_a_state_and_figures_are_no_nearly_identical_results(tool, arguments, results):
    assert findings(Player(), *((tool, arguments, result) for result in results)) == []


def test_times_that_are_told_as_an_age_make_no_new_result():
    visits = (
        ("visit", {"url": "a"}, page("apples", ago)) for ago in ("9 seconds ago", "1 minute ago", "3h ago")
    )
    assert "repeat" in findings(Player(), *visits)


def refusals(card, order="W1"):
    return ("change_payment", {"order": order, "card": card}, "payment method not found", True)


def test_a_write_refused_for_one_reason_although_the_user_was_asked_is_a_loop():
    player = Player()
    assert findings(player, refusals("visa_1"), refusals("visa_2")) == []
    player.message()
    verdict = player.step(*refusals("visa_3")[:3], is_error=True)
    assert (verdict.decision, verdict.finding.kind, verdict.finding.count) == ("warn", "outcome", 3)


def test_trying_each_known_way_at_once_or_for_other_orders_is_no_loop():
    assert findings(Player(), *(refusals(f"visa_{n}") for n in range(3))) == []
    player = Player()
    for n in range(3):
        player.message()
        assert findings(player, refusals(f"visa_{n}", order=f"W{n}")) == []


def searches(queries, result="No results for {}", tool="search"):
    return [(tool, {"q": query}, result.format(query)) for query in queries]


QUERIES = (
    "based",
    "headquartered",
    "located",
    "situated",
    "residing",
    "founded",
    "seated",
    "home",
    "origin",
    "office",
    "premises",
    "address",
    "capital",
    "branch",
    "depot",
    "factory",
)


@pytest.mark.parametrize(
    "result",
    ["[]", "No results found.", "No results for {}", "0 matches for {} in the index", '{{"results": []}}'],
)
def test_a_sweep_in_ever_new_words_that_finds_nothing_is_advised_against(result):
    player = Player()
    verdicts = [player.step(*search) for search in searches(QUERIES, result)]
    assert next(n for n, verdict in enumerate(verdicts, 1) if verdict.decision == "warn") == 4
    assert verdicts[3].finding.kind == "stagnation"
    assert verdicts[3].finding.results == "empty"
    assert {verdict.decision for verdict in verdicts} == {"allow", "warn"}


def test_honest_sweeps_stay_quiet():
    days = [
        ("search_flights", {"from": "DEN", "to": "IAH", "date": f"2026-05-{n}"}, "[]") for n in range(10, 25)
    ]
    assert findings(Player(), *days) == []
    with_hits = searches(QUERIES)
    with_hits[2:2] = [("search", {"q": "seat"}, "The seat of the company is in a town by the sea")]
    with_hits[6:6] = [("search", {"q": "move"}, "The company moved away from there two years later")]
    assert findings(Player(), *with_hits[:9]) == []
    shell = [("bash", {"command": f"grep -rn {query} ."}, "") for query in QUERIES]
    assert findings(Player(), *shell[:5]) == []
    tests = [("bash", {"command": f"./check {query}"}, "") for query in QUERIES]
    assert findings(Player(), *tests) == []


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("find /{} -name 'jdk*' 2>/dev/null", ""),
        ("# look for it\ngrep -rn {} src", ""),
        ("cd src && rg {} | head", "(no output)"),
        ("ls /opt/{}*", '{"stdout": "", "stderr": "", "returncode": 2}'),
        ("git ls-files '*{}*'", "\n[exit code: 1]\n"),
    ],
)
def test_a_sweep_of_shell_searches_that_find_nothing_is_advised_against(command, answer):
    player = Player()
    verdicts = [
        player.step("bash", {"command": command.format(query)}, answer, is_error=number % 2 == 1)
        for number, query in enumerate(QUERIES)
    ]
    assert next(n for n, verdict in enumerate(verdicts, 1) if verdict.decision == "warn") == 6
    assert verdicts[5].finding.kind == "stagnation"
    assert {verdict.decision for verdict in verdicts} == {"allow", "warn"}


TROUBLES = (
    "Error: 429 Too Many Requests. Rate limit reached, try again later",
    "Tavily search failed: This request exceeds your plan's set usage limit.",
    "HTTP 503: the service is unavailable",
    "requests.exceptions.ReadTimeout: the read operation timed out",
    "connect ECONNREFUSED 10.0.0.7:443",
    "502 Server Error: Bad Gateway for url: https://example.org/",
)


@pytest.mark.parametrize("error", TROUBLES)
def test_trouble_of_a_provider_is_advised_about_and_never_stops_a_run(error):
    for name in ("search", "read_page"):
        player = Player(outage_ladder="graduated")
        verdicts = [player.step(name, {"q": query}, error, is_error=True) for query in QUERIES * 3]
        assert {verdict.decision for verdict in verdicts} == {"allow", "warn"}
        first = next(verdict for verdict in verdicts if verdict.decision == "warn")
        assert (first.finding.kind, first.finding.count) == ("outage", 3)


@pytest.mark.parametrize(
    ("pauses", "error", "is_blocked"),
    [
        ((1, 2, 4, 8, 16, 32, 60, 60), "503 Service Unavailable", False),
        ((5, 4, 6, 5, 4, 6, 5, 4), "503 Service Unavailable", True),
        ((1, 2, 4, 8, 16, 32, 60, 60), "owner is locked", True),
    ],
)
def test_who_waits_longer_each_time_after_trouble_of_the_provider_is_not_blocked(pauses, error, is_blocked):
    player = Player()
    steps = [
        player.step("fetch_rates", {"day": "today"}, error, is_error=True, gap=float(pause))
        for pause in pauses
    ]
    assert ("block" in {step.decision for step in steps}) is is_blocked


def test_an_error_that_names_the_field_of_an_object_is_one_error():
    names = ("kunde", "ort", "plz", "mobil", "iban", "land", "steuer")
    guessed = [("odoo_write", {"vals": {name: 1}}, f"Invalid field '{name}'", True) for name in names]
    assert "outcome" in findings(Player(), *guessed)
    faults = (
        "is locked",
        "is too long",
        "needs a date",
        "is computed",
        "has no owner",
        "is empty",
        "is hidden",
    )
    other = [
        ("odoo_write", {"vals": {name: 1}}, f"Field '{name}' {fault}", True)
        for name, fault in zip(names, faults, strict=True)
    ]
    assert "outcome" not in findings(Player(), *other)


def test_trouble_of_a_provider_is_one_pattern_in_every_session():
    loops = set()
    for topic in ("cats", "dogs"):
        player = Player()
        steps = [player.step("search", {"q": f"{topic} {n}"}, TROUBLES[0], is_error=True) for n in range(3)]
        loops.add(steps[-1].finding.calls_digest)
    assert len(loops) == 1


def test_a_time_out_among_rate_limits_is_the_same_loop():
    player = Player()
    found: list[Any] = []
    for n, error in enumerate(
        ("429 Too Many Requests", "429 Too Many Requests", "the request timed out") * 2
    ):
        player.call("search_web", {"q": f"topic {n}"})
        found += player.answer(error, is_error=True).verdict.findings

    assert {(one.kind, one.detail["trouble"]) for one in found} == {("outage", "rate limit")}
    assert len({one.calls_digest for one in found}) == 1


def test_what_a_shell_reports_is_no_trouble_of_a_provider():
    steps = [("bash", {"command": f"./check part {n}"}, TROUBLES[3], True) for n in range(6)]
    assert "outage" not in findings(Player(), *steps)
    refused = [("search", {"q": query}, "permission denied for this key", True) for query in QUERIES]
    assert "outcome" in findings(Player(), *refused[:4])


REFUSAL = "permission denied: tool 'bash' requires full access, and the session cannot prompt"


def test_a_shell_call_that_its_host_refuses_never_ran_and_is_blocked():
    def verdicts(error):
        player = Player()
        return [
            player.step("bash", {"command": f"git log {query}"}, error, is_error=True).decision
            for query in QUERIES * 2
        ]

    assert verdicts(REFUSAL).index("warn") == 3
    assert "block" in verdicts(REFUSAL)[:12]
    failed = verdicts("fatal: your current branch does not have any commits yet")
    assert set(failed) == {"allow", "warn"}


def test_tools_that_do_not_exist_are_one_error_of_the_host():
    unknown = [
        (f"Read{name.title()}", {"n": name}, f"Unknown tool name: 'Read{name.title()}'", True)
        for name in QUERIES
    ]
    work = ("list_files", {"of": "a"}, "two files in this folder")
    assert "outcome" in findings(Player(), *unknown[:2], work, *unknown[2:4])
    known = [
        (f"read_{name}", {"n": name}, f"nothing is known of {name} and {n}", True)
        for n, name in enumerate(QUERIES)
    ]
    assert "outcome" not in findings(Player(), *known[:4])


@pytest.mark.parametrize(
    "error",
    [
        "Error: disk quota exceeded for user build",
        "ERROR: value exceeds the column limit",
        "TimeoutError: locator.click: Timeout 5000ms exceeded.",
        "Error: page.goto: net::ERR_CONNECTION_REFUSED at http://localhost:3000/",
        "connect ECONNREFUSED 127.0.0.1:5432",
        "Lock wait timeout exceeded; try restarting transaction",
        "RecursionError: maximum recursion depth exceeded",
        "This model's maximum context length is 8192 tokens",
    ],
)
def test_limits_of_the_call_and_services_of_this_machine_are_no_trouble_of_a_provider(error):
    player = Player()
    steps = [player.step("make_page", {"q": query}, error, is_error=True) for query in QUERIES]
    assert {step.finding.kind for step in steps if step.finding} == {"outcome"}
    assert "block" in {step.decision for step in steps}


ECHOES = (
    "Command failed: {}\nfatal: not a git repository",
    "$ {}\nfatal: not a git repository",
    "Command: {}\nDirectory: (root)\nOutput: fatal: not a git repository\nExit Code: 128",
)


@pytest.mark.parametrize("echo", ECHOES)
def test_one_error_of_many_commands_is_one_although_it_repeats_them(echo):
    commands = ("git remote -v", "git -C . remote -v", "git status", "git log -5", "git branch --all")
    steps = [("run_git", {"cmd": command}, echo.format(command), True) for command in commands]
    assert "outcome" in findings(Player(), *steps)
    other = [
        ("run_git", {"cmd": command}, f"{command}: {n * n} faults", True)
        for n, command in enumerate(commands)
    ]
    assert findings(Player(), *other) == []


@pytest.mark.parametrize(
    "echo",
    [
        '{{"query": "{}", "results": [], "total": 0}}',
        '{{"search_metadata": {{"query": "{}", "took_ms": 3}}, "matches": []}}',
        "Searched 3 collections for: {}\nNo documents matched your query.",
    ],
)
def test_a_search_that_repeats_its_query_and_finds_nothing_finds_nothing(echo):
    asked = [f"where is the {query} of it" for query in QUERIES]
    player = Player()
    steps = [player.step("search_docs", {"query": query}, echo.format(query)) for query in asked]
    assert next(n for n, step in enumerate(steps, 1) if step.decision == "warn") == 4
    hits = [
        ("search_docs", {"query": q}, f'{{"query": "{q}", "results": ["about {q}, {n}"]}}')
        for n, q in enumerate(asked)
    ]
    assert findings(Player(), *hits) == []


def test_a_percent_encoded_query_is_an_echo_too():
    same = "the same page about something else that was not asked for"
    fetched = [
        ("fetch", {"q": f"what is {query}"}, f"https://x.test/?q=what%20is%20{query} {same}")
        for query in QUERIES
    ]
    assert "outcome" in findings(Player(), *fetched)


def test_what_hosts_and_formats_add_is_no_new_result():
    def found(tool, result):
        return findings(Player(), *((tool, {"of": "x"}, result(n)) for n in range(5)))

    assert "repeat" in found(
        "Glob", lambda n: f'{{"filenames": ["/a.js"], "durationMs": {10 + n}, "numFiles": 1}}'
    )
    assert "repeat" in found("run_query", lambda n: f"(0 rows)\nTime: 0.{310 + n} ms")
    assert "repeat" in found("run_query", lambda n: f'{{"execution_id": "{n:08x}", "rows": [[1]]}}')
    assert "repeat" in found("make", lambda n: f"/bin/bash: line {62215 + n}: javac: command not found")
    assert found("job", lambda n: f'{{"percent": {10 + n}, "durationMs": 7}}') == []
    assert found("queue", lambda n: f"{40 - n} waiting") == []


def test_statements_are_told_by_what_follows_their_comments():
    rows = [
        ("execute_sql", {"sql": f"\n-- step {n}\n/* of {n} */ INSERT INTO t VALUES ({n})"}, "No results")
        for n in range(8)
    ]
    assert findings(Player(), *rows) == []
    looks = [
        ("execute_sql", {"sql": f"-- step {n}\nSELECT {name}"}, "No results")
        for n, name in enumerate(QUERIES)
    ]
    assert "outcome" in findings(Player(), *looks)


def test_one_error_at_another_line_is_the_same_error():
    steps = [
        ("run_query", {"sql": f"SELECT {name}"}, f"Error near line {n}, column {n * n}: no such table", True)
        for n, name in enumerate(QUERIES[:4], 3)
    ]
    assert "outcome" in findings(Player(), *steps)


def test_the_same_error_of_the_same_call_over_a_run_is_advised_against_one_time_earlier():
    def over_a_run(*is_error):
        player = Player(stagnation_enabled=False, scattered_repeats=0)
        found = []
        for n in range(4):
            found += findings(
                player,
                ("compute", {"of": "a"}, "this is not possible with these figures", *is_error),
                *((f"other_{n}", {"n": n, "m": m}, f"answer number {n} and {m}") for m in range(5)),
            )
        return found

    assert over_a_run(True) == ["repeat"]
    assert over_a_run() == []


NO_DRIVER = "the driver of this database is not installed"


def told(player: Player, *steps) -> list[str]:
    """Kinds of what is said before or after these steps: tool, arguments, result, and whether it is an error."""
    return [
        kind
        for tool, arguments, result, *is_error in steps
        if (verdict := player.step(tool, arguments, result, is_error=bool(is_error))).decision != "allow"
        for kind in [verdict.finding.kind]
    ]


def test_parallel_calls_count_once_until_two_responses_have_met_their_error():
    def first_finding(rounds):
        player = Player(stagnation_enabled=False, similar_enabled=False, outcome_max_similar=50)
        for n, (name, round_name) in enumerate(zip(QUERIES, rounds, strict=False), 1):
            player.call("draw_chart", {"of": name}, round=round_name)
            if player.answer(NO_DRIVER, is_error=True).verdict.findings:
                return n
        return None

    assert first_finding("1234") == 4
    assert first_finding("1233") == 4
    assert first_finding("1112") is None
    assert first_finding("1122") is None


@pytest.mark.parametrize("look", ["cat run.py", "ls -l", "grep -n driver run.py"])
def test_what_a_shell_looks_at_ends_no_series_of_what_it_runs(look):
    runs = ("python run.py", "cd app && python run.py", "python -u run.py", "env A=1 python run.py")

    def steps(between):
        return [
            step
            for n, line in enumerate(runs)
            for step in (
                ("bash", {"command": line}, f"ImportError: {NO_DRIVER}", True),
                ("bash", {"command": between.format(n)}, "import driver"),
            )
        ]

    quiet: dict[str, Any] = {
        "stagnation_enabled": False,
        "scattered_run_repeats": 0,
        "scattered_repeats": 0,
        "repeat_enabled": False,
    }
    assert "outcome" in findings(Player(**quiet), *steps(look))
    # What runs and works, or changes a file, may have mended it.
    assert "outcome" not in findings(Player(**quiet), *steps("python check.py {}"))
    assert "outcome" not in findings(Player(**quiet), *steps("sed -i s/a/{}/ run.py"))


def test_one_error_is_the_same_whether_its_call_names_what_is_missing_or_not():
    def steps(error):
        lines = (
            "python pack.py",
            "P=lib/checks python pack.py",
            "python ./pack.py a",
            "P=lib/checks python pack.py b",
        )
        return [("bash", {"command": line}, error.format(n * 7, n), True) for n, line in enumerate(lines)]

    assert "outcome" in findings(
        Player(), *steps("ImportError: no name 'V' in 'checks' that could be loaded")
    )
    assert "outcome" not in findings(Player(), *steps("AssertionError: {} rows differ from 'checks' of {}"))


def test_what_a_person_corrects_between_lookups_is_no_loop():
    data = [
        {"first": name, "zip": f"{zip_code}"}
        for zip_code in (98178, 98186, 98187)
        for name in ("Ann", "Annie")
    ]

    def said(arguments, spoken):
        player, found = Player(), []
        for n, given in enumerate(arguments):
            if n in spoken:
                player.message()
            found += told(player, ("find_user", given, "Error: User not found", True))
        return found

    assert said(data, (2, 4)) == []
    assert "outcome" in said(data, ())
    # The same data again is what the person did not give.
    assert said(data[:2] * 3, (2, 4)) != []


def test_two_calls_that_fail_again_each_in_its_own_way_are_advised_against():
    create = (
        "create_item",
        {"title": "N", "project": "<PROJECT>"},
        "create failed: invalid ID length: 9",
        True,
    )
    get = ("get_project", {"id": "<PROJECT>"}, "get failed: invalid ID length: 9", True)
    work = [("add_note", {"text": f"part {n}"}, f"note {n * 31} of {n} is kept") for n in range(4)]
    player = Player()
    assert told(player, create, work[0], create, get, work[1], create) == []
    assert told(player, get) == ["repeat"]
    alone = (create, work[0], create, work[1], create)
    assert told(Player(), *alone) == []
    others = [("get_project", {"id": f"{n}"}, f"no project {n * 17}", True) for n in range(2)]
    assert told(Player(), create, work[0], create, others[0], work[1], create, others[1]) == []


def test_settings_that_count_every_call_of_a_response_count_errors_by_tool():
    shared = [(f"tool_{n}", {"n": name}, NO_DRIVER, True) for n, name in enumerate(QUERIES)]
    quiet: dict[str, Any] = {"stagnation_enabled": False}
    assert "outcome" in findings(Player(**quiet), *shared)
    assert "outcome" not in findings(Player(once_per_round=False, **quiet), *shared)


PHRASES = [
    lambda name: f"{name} is valid",
    lambda name: f"No issues in {name}.",
    lambda name: f'{{"name": "{name}", "active": true}}',
]


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_about_each_of_many_things_is_worth_advice_and_blocks_none(phrase):
    guard = Guard()
    decisions = []
    for number in range(30):
        name = f"src/part_{chr(97 + number % 26)}{number}.py"
        decisions.append(guard.call("validate_file", {"path": name}, call_id=f"c-{number}").decision)
        guard.result(f"c-{number}", phrase(name), is_error=False)
    assert set(decisions) <= {"allow", "warn"}
    assert decisions.count("warn") < 4


def test_an_error_that_repeats_its_call_is_blocked_as_any_other():
    guard = Guard()
    decisions = []
    for number in range(14):
        name = f"src/part_{chr(97 + number)}.py"
        decisions.append(guard.call("validate_file", {"path": name}, call_id=f"c-{number}").decision)
        guard.result(f"c-{number}", f"Error: {name} cannot be opened", is_error=True)
    assert "block" in decisions
