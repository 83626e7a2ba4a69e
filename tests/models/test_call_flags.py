import re
from pathlib import Path

import pytest

import detection
from detection.models import call_flags

PRODUCT = Path(detection.__file__).parent


def test_a_call_has_a_letter_of_its_result_and_one_of_its_decision():
    assert call_flags.of_call("pending", "hold") == "?h"
    assert call_flags.of_call("same", "allow") == ""


def test_a_result_takes_the_place_of_what_was_pending_and_keeps_the_decision():
    assert call_flags.with_result("?w", call_flags.of_result("error", "allow")) == "!w"
    assert call_flags.with_result("?w", call_flags.of_result("new", "warn")) == "^w"
    assert call_flags.with_result("?", call_flags.of_result("same", "allow")) == ""


def test_a_held_call_gets_the_letter_of_its_answer():
    assert call_flags.with_decision("?h", "allow") == "?"
    assert call_flags.with_decision("?h", "stop") == "?s"


def test_a_reported_call_ran_whatever_its_verdict_would_have_been():
    flags = call_flags.of_call("pending", "block", has_run=True)
    assert call_flags.of_call("pending", "warn", has_run=True) == "?w"
    assert not call_flags.has_not_run(flags)
    assert call_flags.ran_nevertheless(flags)
    done = call_flags.with_result(flags, call_flags.of_result("error", "allow"))
    assert done == "!B"
    assert not call_flags.ran_nevertheless(call_flags.of_call("pending", "block"))


@pytest.mark.parametrize(
    ("flags", "strictest"),
    [("", ""), ("^w", "w"), ("?b", "b"), ("whbs", "s"), ("?B", "B"), ("SB", "S"), ("!", "")],
)
def test_the_outline_is_the_strictest_decision(flags, strictest):
    assert call_flags.outline(flags) == strictest
    assert call_flags.has_not_run(flags) == (strictest in ("b", "h", "s") and bool(strictest))


def test_no_other_module_spells_the_letters_out():
    spelled = re.compile(r"""["'][\^!e?wbhsBHS]["']\s+(?:not\s+)?in\s+\S*flags|\?\^!e""")
    elsewhere = [
        str(path.relative_to(PRODUCT))
        for path in PRODUCT.rglob("*.py")
        if path.name != "call_flags.py" and spelled.search(path.read_text(encoding="utf-8"))
    ]
    assert elsewhere == []
