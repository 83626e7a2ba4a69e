"""One error of several tools, and what a person corrects between lookups that fail, through the guard."""

from typing import Any

REFUSED = "connect ECONNREFUSED 127.0.0.1:5432"
TOOLS = ("list_tables", "count_rows", "get_customer", "latest_invoice", "describe_index", "show_locks")


def decisions(api, session, steps):
    """What the guard says to these steps: a tool, its arguments and its error, or `None` for a person's message."""
    found = []
    results: list[Any] = []
    for number, step in enumerate([*steps, ("report", {}, "")]):
        if step is None:
            answer = api.post("/guard", {"session": session, "results": results, "calls": []})
            assert answer.status_code == 200
            correction = {"type": "message", "role": "user", "content": f"No, it is number {number}."}
            assert api.post("/events", {"session": session, **correction}).status_code < 300
            results = []
            continue
        tool, arguments, error = step
        call_id = f"{session}-{number}"
        call = {"call_id": call_id, "tool": tool, "arguments": arguments}
        answer = api.post("/guard", {"session": session, "results": results, "calls": [call]}).json()
        said = [*answer.get("notices", ()), *answer["verdicts"]]
        found += [one["decision"] for one in said if one["decision"] != "allow"]
        results = [{"call_id": call_id, "content": error, "is_error": True}]
    return found


def test_one_error_of_six_tools_is_found(api):
    def failing(error):
        return [(tool, {"of": tool * 2}, error.format(n)) for n, tool in enumerate(TOOLS)]

    api.put("/overrides", {"values": {"stagnation_enabled": False}})
    assert decisions(api, "one", failing(REFUSED)) == ["warn"]
    assert decisions(api, "own", failing("case {0}{0}{0} is closed for another reason")) == []


def test_what_a_person_corrects_between_lookups_is_no_loop(api):
    asked = [("find_user", {"number": n, "name": name}, "Error: User not found") for n in (7, 8, 9)
             for name in ("Ann", "Annie")]  # fmt: skip
    assert decisions(api, "spoken", [*asked[:2], None, *asked[2:4], None, *asked[4:]]) == []
    assert "warn" in decisions(api, "silent", asked)
