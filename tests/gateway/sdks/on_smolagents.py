"""Agents of smolagents: one that calls tools, one that writes code, and one that reads its calls from plain text."""

from jobs import headers, result, serve
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

STEPS = 40


def agent(kind):
    def run(job):
        runs = []

        @tool
        def search(q: str) -> str:
            """Search.

            Args:
                q: What for.
            """
            runs.append(q)
            return result("search", q)

        more = {"default_headers": headers(job), "max_retries": 0}
        model = OpenAIModel("gpt-x", api_base=job["base_url"], api_key="sk-test", client_kwargs=more)
        last = kind(tools=[search], model=model, max_steps=STEPS, verbosity_level=0).run("reset my password")
        return {"runs": len(runs), "text": str(last)}

    return run


serve({"tool_calls": agent(ToolCallingAgent), "code": agent(CodeAgent)})
