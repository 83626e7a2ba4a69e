"""Agents on the package `openai`, raw and with its helpers, of versions 2 and 3."""

import asyncio
import json
from typing import Any

import openai
from jobs import (
    PARAMETERS,
    PROMPT,
    TOOL_NAMES,
    headers,
    options,
    result,
    run_turns,
    see,
    serve,
    several,
)

FUNCTIONS = [{"name": name, "parameters": PARAMETERS, "strict": True} for name in TOOL_NAMES]
CHAT_TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
RESPONSES_TOOLS = [{"type": "function", **function} for function in FUNCTIONS]
CHAT = {"model": "gpt-x", "tools": CHAT_TOOLS}
ROUNDS, TURNS = 8, 20
RESPONSES = {"model": "gpt-x", "tools": RESPONSES_TOOLS}


def client(job, kind=openai.OpenAI):
    return kind(base_url=job["base_url"], api_key="sk-test", default_headers=headers(job), **options())


def chat(ask):
    def run(job):
        asked = ask(client(job))

        def turn(messages):
            message, *others = asked(messages)
            if others:
                return 0, json.dumps([message, *others])
            messages.append(message)
            calls = message.get("tool_calls") or []
            for one in calls:
                arguments = json.loads(one["function"]["arguments"])
                content = result(one["function"]["name"], **arguments)
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": content})
            return len(calls), message.get("content")

        return run_turns(turn, [PROMPT])

    return run


def dumped(message):
    return message.model_dump(exclude_none=True, exclude={"parsed"})


def without_parsed(message):
    """A message of a helper as the API wants it back."""
    document = dumped(message)
    for one in document.get("tool_calls", ()):
        one["function"].pop("parsed_arguments", None)
    return document


def chat_create(openai_client):
    def ask(messages):
        completion = openai_client.chat.completions.create(messages=messages, **several(), **CHAT)
        return [dumped(choice.message) for choice in completion.choices]

    return ask


def chat_parse(openai_client):
    def ask(messages):
        completion = openai_client.chat.completions.parse(messages=messages, **several(), **CHAT)
        return [without_parsed(choice.message) for choice in completion.choices]

    return ask


def chat_stream_helper(openai_client):
    def ask(messages):
        with openai_client.chat.completions.stream(messages=messages, **several(), **CHAT) as stream:
            for event in stream:
                if event.type == "content.delta":
                    see(event.delta)
            return [without_parsed(choice.message) for choice in stream.get_final_completion().choices]

    return ask


class Collected:
    """The messages of all choices, put together from the chunks of a stream."""

    def __init__(self):
        self.by_index = {}

    @property
    def messages(self):
        return [self.by_index[index] for index in sorted(self.by_index)]

    def add(self, chunk):
        for choice in chunk.choices:
            message = self.by_index.setdefault(choice.index, {"role": "assistant", "content": ""})
            message["content"] += choice.delta.content or ""
            see(choice.delta.content)
            for part in choice.delta.tool_calls or ():
                calls = message.setdefault("tool_calls", [])
                if part.index == len(calls):
                    calls.append(
                        {"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}}
                    )
                function = calls[part.index]["function"]
                function["name"] += part.function.name or ""
                function["arguments"] += part.function.arguments or ""


def chat_stream(openai_client):
    def ask(messages):
        collected = Collected()
        with openai_client.chat.completions.create(
            messages=messages, stream=True, **several(), **CHAT
        ) as stream:
            for chunk in stream:
                collected.add(chunk)
        return collected.messages

    return ask


def chat_async_stream(job):
    async def ask(messages):
        collected = Collected()
        async with client(job, openai.AsyncOpenAI) as async_client:
            stream = await async_client.chat.completions.create(
                messages=messages, stream=True, **several(), **CHAT
            )
            async for chunk in stream:
                collected.add(chunk)
        return collected.messages

    return chat(lambda _: lambda messages: asyncio.run(ask(messages)))(job)


def outputs_of(response):
    calls = [item for item in response.output if item.type == "function_call"]
    outputs = [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": result(item.name, **json.loads(item.arguments)),
        }
        for item in calls
    ]
    return outputs, response.output_text


def chat_go(job):
    """Say "go" after each answer: no person does, without a pause, so many times."""
    asked, messages, runs = chat_create(client(job)), [PROMPT], 0
    for _ in range(ROUNDS):
        for _ in range(TURNS):
            (message,) = asked(messages)
            messages.append(message)
            calls = message.get("tool_calls") or []
            runs += len(calls)
            messages += [{"role": "tool", "tool_call_id": one["id"], "content": "0 hits"} for one in calls]
            if not calls:
                break
        messages.append({"role": "user", "content": "go"})
    return {"runs": runs, "text": message.get("content")}


def responses(ask):
    def run(job):
        asked = ask(client(job))

        def turn(items):
            response = asked(items)
            outputs, text = outputs_of(response)
            unknown = {"parsed_arguments": True, "content": {"__all__": {"parsed"}}}
            items += [item.model_dump(exclude_none=True, exclude=unknown) for item in response.output]
            items += outputs
            return len(outputs), text

        return run_turns(turn, [PROMPT])

    return run


def responses_create(openai_client):
    return lambda items: openai_client.responses.create(input=items, **RESPONSES)


def responses_parse(openai_client):
    return lambda items: openai_client.responses.parse(input=items, **RESPONSES)


def responses_stream(openai_client):
    def ask(items):
        final = None
        with openai_client.responses.create(input=items, stream=True, **RESPONSES) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    see(event.delta)
                elif event.type == "response.completed":
                    final = event.response
        return final

    return ask


def responses_stream_helper(openai_client):
    def ask(items):
        with openai_client.responses.stream(input=items, **RESPONSES) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    see(event.delta)
            return stream.get_final_response()

    return ask


def responses_previous(job):
    """The model server keeps the conversation: each request has only what is new."""
    openai_client = client(job)
    state: dict[Any, Any] = {}

    def turn(items):
        response = openai_client.responses.create(input=items, **state, **RESPONSES)
        state["previous_response_id"] = response.id
        items[:], text = outputs_of(response)
        return len(items), text

    return run_turns(turn, [PROMPT])


def responses_runner(*, stream):
    def run(job):
        from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner

        runs = []

        def execute(name):
            def tool(arguments):
                runs.append(name)
                return result(name, **arguments)

            return tool

        functions = [RegisteredFunction(tool, execute(tool["name"])) for tool in RESPONSES_TOOLS]
        runner = ResponsesToolRunner(functions=functions)
        last = runner.run(client(job), {"model": "gpt-x", "input": [PROMPT]}, max_steps=20, stream=stream)
        return {"runs": len(runs), "text": last.output_text}

    return run


serve(
    {
        "chat_create": chat(chat_create),
        "chat_go": chat_go,
        "chat_parse": chat(chat_parse),
        "chat_stream": chat(chat_stream),
        "chat_stream_helper": chat(chat_stream_helper),
        "chat_async_stream": chat_async_stream,
        "responses_create": responses(responses_create),
        "responses_parse": responses(responses_parse),
        "responses_previous": responses_previous,
        "responses_stream": responses(responses_stream),
        "responses_stream_helper": responses(responses_stream_helper),
        "responses_runner": responses_runner(stream=False),
        "responses_runner_stream": responses_runner(stream=True),
    }
)
