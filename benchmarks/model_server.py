"""``python -m benchmarks.model_server``: a scripted model server in a process of its own; prints its port.

Every POST is answered with a stream of a chat completion: pieces of text, one call of a tool, and the usage. The path
says how long: ``/EVENTS/PER_SECOND/…``; 0 per second is as fast as the client reads.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_numbers = itertools.count()


def _event(**choice: object) -> bytes:
    chunk = {
        "id": "chatcmpl-benchmark",
        "object": "chat.completion.chunk",
        "created": 1_800_000_000,
        "model": "scripted",
        "choices": [{"index": 0, "delta": {}, "finish_reason": None} | choice],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


# LiteLLM ends a stream that repeats itself.
_TEXTS = [_event(delta={"content": f"words of an answer, {number:02}, "}) for number in range(64)]


def _ending() -> bytes:
    """Return the last events, with a call that differs from every other one."""
    number = next(_numbers)
    call = {
        "index": 0,
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{number}.py"})},
    }
    return _event(delta={"tool_calls": [call]}) + _event(finish_reason="tool_calls") + b"data: [DONE]\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            events, per_second = (int(part) for part in head.split(b" ", 2)[1].split(b"/")[1:3])
            writer.write(_HEAD)
            for number in range(events):
                writer.write(_chunk(_TEXTS[number % len(_TEXTS)]))
                await writer.drain()
                if per_second:
                    await asyncio.sleep(1 / per_second)
            writer.write(_chunk(_ending()) + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
