"""Agents on the package `anthropic`, raw and with its helpers and tool runner."""

import json

import anthropic
from anthropic import beta_tool
from jobs import PARAMETERS, PROMPT, TOOL_NAMES, headers, options, result, run_turns, see, serve

TOOLS = [{"name": name, "input_schema": PARAMETERS} for name in TOOL_NAMES]
REQUEST = {"model": "claude-x", "max_tokens": 100}


def client(job):
    return anthropic.Anthropic(
        base_url=job["base_url"], api_key="sk-test", default_headers=headers(job), **options()
    )


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def messages(ask):
    def run(job):
        api = client(job).messages

        def turn(history):
            message = ask(api, messages=history, tools=TOOLS, **REQUEST)
            calls = [block for block in message.content if block.type == "tool_use"]
            content = [
                block.model_dump(exclude_none=True, exclude={"parsed_output", "caller"})
                for block in message.content
            ]
            history.append({"role": "assistant", "content": content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": result(block.name, **block.input)}
                for block in calls
            ]
            if results:
                history.append({"role": "user", "content": results})
            return len(calls), text_of(message)

        return run_turns(turn, [PROMPT])

    return run


def stream(api, **request):
    """Put the message together from raw events, as programs without the helper do."""
    blocks, inputs = [], []
    with api.create(stream=True, **request) as events:
        for event in events:
            if event.type == "message_start":
                message = event.message
            elif event.type == "content_block_start":
                blocks.append(event.content_block)
                inputs.append("")
            elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                blocks[event.index].text += event.delta.text
                see(event.delta.text)
            elif event.type == "content_block_delta":
                inputs[event.index] += event.delta.partial_json
    for block, given in zip(blocks, inputs, strict=True):
        if block.type == "tool_use":
            block.input = json.loads(given)
    message.content = blocks
    return message


def stream_helper(api, **request):
    with api.stream(**request) as events:
        for event in events:
            if event.type == "text":
                see(event.text)
        return events.get_final_message()


def runner(**options):
    """The tool runner, which runs the loop itself."""

    def run(job):
        runs = []

        @beta_tool
        def search(q: str) -> str:
            """Search."""
            runs.append("search")
            return result("search", q)

        @beta_tool
        def read(q: str) -> str:
            """Read."""
            runs.append("read")
            return result("read", q)

        @beta_tool
        def other(q: str) -> str:
            """Something else."""
            runs.append("other")
            return result("other", q)

        turns = client(job).beta.messages.tool_runner(
            messages=[PROMPT], tools=[search, read, other], max_iterations=20, **options, **REQUEST
        )
        last = turns.until_done()
        return {"runs": len(runs), "text": text_of(last)}

    return run


serve(
    {
        "create": messages(lambda api, **request: api.create(**request)),
        "parse": messages(lambda api, **request: api.parse(**request)),
        "stream": messages(stream),
        "stream_helper": messages(stream_helper),
        "tool_runner": runner(thread=False),
        "tool_runner_stream": runner(thread=False, stream=True),
        # The model server keeps the conversation: each request has only what is new.
        "tool_runner_thread": runner(),
    }
)
