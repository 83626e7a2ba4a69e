"""Agents on Google's package `google-genai`: raw, as a stream, and with its own loop over functions."""

import asyncio

from google import genai
from google.genai import types
from jobs import PARAMETERS, PROMPT, TOOL_NAMES, headers, options, result, run_turns, see, serve

MODEL = "gemini-x"
SCHEMA = {key: value for key, value in PARAMETERS.items() if key != "additionalProperties"}
TOOLS = [{"function_declarations": [{"name": name, "parameters_json_schema": SCHEMA} for name in TOOL_NAMES]}]
OF_ERRORS = (429, 500)


def client(job):
    given = options()
    attempts = given.get("max_retries", 2) + 1
    http = {
        "base_url": job["base_url"],
        "headers": headers(job),
        "retry_options": {"attempts": attempts, "initial_delay": 0.01, "http_status_codes": [*OF_ERRORS]},
    }
    if "timeout" in given:
        http["timeout"] = given["timeout"] * 1000  # milliseconds
    return genai.Client(api_key="sk-test", http_options=http)


def history_of(messages):
    return [{"role": "user", "parts": [{"text": one["content"]}]} for one in messages]


def models(ask):
    """A loop that runs the functions itself."""

    def run(job):
        with client(job) as api:

            def turn(history):
                parts = ask(api, contents=history, config={"tools": TOOLS})
                calls = [part.function_call for part in parts if part.function_call]
                history.append(types.Content(role="model", parts=parts))
                results = [
                    types.Part(
                        function_response=types.FunctionResponse(
                            id=one.id, name=one.name, response={"output": result(one.name, **one.args)}
                        )
                    )
                    for one in calls
                ]
                if results:
                    history.append(types.Content(role="user", parts=results))
                return len(calls), "".join(part.text or "" for part in parts)

            return run_turns(turn, history_of([PROMPT]))

    return run


def create(api, **request):
    return api.models.generate_content(model=MODEL, **request).candidates[0].content.parts


def parts_of(chunk):
    found = chunk.candidates[0].content if chunk.candidates else None
    for part in (found.parts if found else None) or ():
        see(part.text)
        yield part


def stream(api, **request):
    return [
        part
        for chunk in api.models.generate_content_stream(model=MODEL, **request)
        for part in parts_of(chunk)
    ]


def async_stream(api, **request):
    async def ask():
        chunks = await api.aio.models.generate_content_stream(model=MODEL, **request)
        return [part async for chunk in chunks for part in parts_of(chunk)]

    return asyncio.run(ask())


def runner(*, is_stream):
    """Chats of the package, which call the functions that they are given."""

    def run(job):
        runs = []

        def tool(name):
            def function(q: str) -> str:
                runs.append(name)
                return result(name, q)

            function.__name__ = function.__doc__ = name
            return function

        config = {
            "tools": [tool(name) for name in TOOL_NAMES],
            "automatic_function_calling": {"maximum_remote_calls": 20},
        }
        with client(job) as api:
            chat = api.chats.create(model=MODEL, config=config)
            if is_stream:
                text = ""
                for chunk in chat.send_message_stream(PROMPT["content"]):
                    for part in parts_of(chunk):
                        text = "" if part.function_call else text + (part.text or "")
            else:
                text = chat.send_message(PROMPT["content"]).text
        return {"runs": len(runs), "text": text}

    return run


serve(
    {
        "create": models(create),
        "stream": models(stream),
        "async_stream": models(async_stream),
        "runner": runner(is_stream=False),
        "runner_stream": runner(is_stream=True),
    }
)
