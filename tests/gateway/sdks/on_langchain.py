"""Agents on the chat models of LangChain."""

import functools
import operator

from jobs import PARAMETERS, PROMPT, TOOL_NAMES, headers, options, result, run_turns, see, serve, several
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": PARAMETERS}}
    for name in TOOL_NAMES
]


def streamed(model, messages):
    """Yield what a model streams, and note its text."""
    for part in model.stream(messages):
        yield part
        see(part.text)


def form(kind, *, is_stream, **arguments):
    def run(job):
        more = {**arguments, **options(), **several()}
        model = kind(
            base_url=job["base_url"], api_key="sk-test", default_headers=headers(job), **more
        ).bind_tools(TOOLS)

        def turn(messages):
            if is_stream:
                answer = functools.reduce(operator.add, streamed(model, messages))
            else:
                answer = model.invoke(messages)
            messages.append(answer)
            for call in answer.tool_calls:
                messages.append(ToolMessage(result(call["name"], **call["args"]), tool_call_id=call["id"]))
            return len(answer.tool_calls), answer.text

        return run_turns(turn, [HumanMessage(PROMPT["content"])])

    return run


serve(
    {
        f"{name}{'_stream' if is_stream else ''}": form(kind, is_stream=is_stream, **arguments)
        for is_stream in (False, True)
        for name, kind, arguments in (
            ("chat_openai", ChatOpenAI, {"model": "gpt-x"}),
            ("chat_openai_responses", ChatOpenAI, {"model": "gpt-x", "use_responses_api": True}),
            ("chat_anthropic", ChatAnthropic, {"model": "claude-x", "max_tokens": 100}),
        )
    }
)
