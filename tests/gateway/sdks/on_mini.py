"""mini-swe-agent, with tool calls and with its protocol of plain text."""

import os
from typing import Any

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"

from jobs import headers, result, serve
from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

STEPS = 40


class Shell:
    """Runs no command: each prints something for itself."""

    config = None

    def __init__(self):
        self.runs = 0

    def execute(self, action, cwd=""):
        if "COMPLETE_TASK" in action["command"]:
            raise Submitted(
                {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}}
            )
        self.runs += 1
        output = result("bash", action["command"])
        return {"output": f"{output}\n", "returncode": 1, "exception_info": ""}

    def get_template_vars(self, **more):
        return more

    def serialize(self):
        return {}


def agent(kind, **more):
    def run(job):
        where = {"api_base": job["base_url"], "api_key": "sk-test", "extra_headers": headers(job)}
        model = kind(model_name="openai/gpt-x", model_kwargs={**where, "num_retries": 0}, **more)
        limits: dict[str, Any] = {"step_limit": STEPS}
        templates = {"system_template": "You fix code.", "instance_template": "{{task}}"}
        shell = Shell()
        last = DefaultAgent(model, shell, **templates, **limits).run("find the option")
        return {"runs": shell.runs, "text": last["exit_status"]}

    return run


serve({"tool_calls": agent(LitellmModel), "text": agent(LitellmTextbasedModel)})
