"""A plain agent on one of the real SDKs, run by the Python that has them: `loop.py SDK BASE_URL KEY SESSION`.

Prints what happened as JSON. Imports nothing of LoopGuard.
"""

import json
import sys

sdk, base_url, key, session = sys.argv[1:]
headers = {"LoopGuard-Key": key, "LoopGuard-Session": session}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
PROMPT = {"role": "user", "content": "reset my password"}


def result(arguments):
    return "0 hits" if arguments.get("q") == "reset password" else f"found {arguments}"


def openai_client():
    import openai

    return openai.OpenAI(base_url=base_url, api_key="sk-test", default_headers=headers)


def anthropic_client():
    import anthropic

    return anthropic.Anthropic(base_url=base_url, api_key="sk-test", default_headers=headers)


def chat(ask):
    def turn(messages):
        message = ask(messages)
        messages.append(message.model_dump(exclude_none=True))
        for one in message.tool_calls or []:
            content = result(json.loads(one.function.arguments))
            messages.append({"role": "tool", "tool_call_id": one.id, "content": content})
        return len(message.tool_calls or []), message.content

    return turn


def chat_create():
    client = openai_client()
    return chat(
        lambda m: client.chat.completions.create(model="m", messages=m, tools=TOOLS).choices[0].message
    )


def chat_stream_helper():
    client = openai_client()

    def ask(messages):
        with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion().choices[0].message

    return chat(ask)


def responses(ask):
    def turn(items):
        output = ask(items)
        calls = [item for item in output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True) for item in output]
        items += [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": result(json.loads(item.arguments)),
            }
            for item in calls
        ]
        texts = [part.text for item in output if item.type == "message" for part in item.content]
        return len(calls), "".join(texts)

    return turn


def responses_create():
    client = openai_client()
    return responses(lambda items: client.responses.create(model="m", input=items).output)


def responses_stream_helper():
    client = openai_client()

    def ask(items):
        with client.responses.stream(model="m", input=items) as stream:
            for _ in stream:
                pass
            return stream.get_final_response().output

    return responses(ask)


def anthropic(ask):
    def turn(messages):
        message = ask(messages)
        calls = [block for block in message.content if block.type == "tool_use"]
        messages.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in message.content],
            }
        )
        if calls:
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": result(block.input)}
                for block in calls
            ]
            messages.append({"role": "user", "content": results})
        return len(calls), "".join(block.text for block in message.content if block.type == "text")

    return turn


def anthropic_create():
    client = anthropic_client()
    return anthropic(lambda m: client.messages.create(model="m", max_tokens=100, messages=m))


def anthropic_stream_helper():
    client = anthropic_client()

    def ask(messages):
        with client.messages.stream(model="m", max_tokens=100, messages=messages) as stream:
            for _ in stream:
                pass
            return stream.get_final_message()

    return anthropic(ask)


turn = globals()[sdk]()
messages, runs, text = [PROMPT], 0, ""
for _ in range(20):
    calls, text = turn(messages)
    runs += calls
    if not calls:
        break
print(json.dumps({"runs": runs, "text": text, "messages": len(messages)}))
