"""Real programs that write where a person would, write their history as text, or send none: they get no further runs.

Started like the matrix of clients, by `python3 manage.py test gateway-matrix`.
"""

import pytest

from tests.support.model_answers import answered, call

from .conftest import World
from .matrix import COMMANDS, documented, every_program

if not COMMANDS:
    pytest.skip("run by `python3 manage.py test gateway-matrix`", allow_module_level=True)

SHELL = "THOUGHT: look\n\n```mswea_bash_command\ngrep -r option{} .\n```"
DONE = "THOUGHT: done\n\n```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"
CODE = "Thought: look\n<code>\nprint(search('reset password{}'))\n</code>"
END = "Thought: done\n<code>\nfinal_answer('Done.')\n</code>"


def stuck(sdk, form):
    """The same call again and again, as the program reads it."""
    if (sdk, form) == ("mini_swe", "text"):
        return SHELL.format(""), []
    if form == "code":
        return CODE.format(""), []
    if sdk == "mini_swe":
        return "Let me see.", [call("bash", command="grep -r option .")]
    return "", [call("Search" if sdk == "instructor" else "search", q="reset password")]


@every_program
def test_a_repeated_call_runs_three_times(world: World, sdk, form, sdk_of):
    def script(asked):
        text, calls = stuck(sdk, form)
        return answered(asked, "openai", text, calls)

    world.model.script = script
    done = sdk_of(sdk).run(form=form, base_url=world.base_url(), key=world.key, session="")
    assert (done["runs"], len(world.model.asked)) == documented(f"{sdk}/{form}")


@every_program
def test_a_healthy_run_is_untouched(world: World, sdk, form, sdk_of):
    if form in ("chat_go", "one_shot"):
        pytest.skip("these only repeat themselves")

    def script(asked):
        turn = len(world.model.asked)
        if (sdk, form) == ("mini_swe", "text"):
            return answered(asked, "openai", SHELL.format(turn) if turn <= 10 else DONE)
        if form == "code":
            return answered(asked, "openai", CODE.format(turn) if turn <= 10 else END)
        if sdk == "mini_swe":
            command = (
                f"grep -r option{turn} ." if turn <= 10 else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
            )
            return answered(asked, "openai", "Let me see.", [call("bash", command=command)])
        one = call(q=f"page {turn}") if turn <= 10 else call("final_answer", answer="Done.")
        return answered(asked, "openai", "", [one])

    world.model.script = script
    done = sdk_of(sdk).run(form=form, base_url=world.base_url(), key=world.key, session="")
    assert (done["runs"], len(world.model.asked)) == (10, 11)
