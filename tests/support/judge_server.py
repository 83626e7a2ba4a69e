"""An endpoint of a judge, scripted, on a real socket."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def ruling(request, decision="accepted", extra_rounds=10, **more):
    """The answer of an honest judge: the form that was asked for, with the nonce."""
    nonce = re.search(r'"nonce" is ([0-9a-f]+)', request["messages"][0]["content"])[1]
    fields = {
        "decision": decision,
        "reason": "It learns.",
        "guidance": "Go on.",
        "extra_rounds": extra_rounds,
    }
    return json.dumps(fields | {"nonce": nonce} | more)


def completion(text, *, finish="stop", usage=True, **message):
    """A chat completion around a text."""
    body = {
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text, **message},
            }
        ]
    }
    if usage:
        body["usage"] = {"prompt_tokens": 900, "completion_tokens": 60}
    return body


class JudgeServer:
    """Answers with what `script(request)` returns: a document, bytes, or a (status, bytes, headers) triple."""

    def __init__(self, script):
        self.script, self.requests, self.headers = script, [], []
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                judge.requests.append(request)
                judge.headers.append(dict(self.headers))
                told = judge.script(request)
                status, headers = 200, {}
                if isinstance(told, tuple):
                    status, told, headers = told
                body = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.send_body(body)

            def send_body(self, body):
                try:
                    if judge.drips_seconds:
                        for byte in body:
                            self.wfile.write(bytes((byte,)))
                            self.wfile.flush()
                            time.sleep(judge.drips_seconds)
                    else:
                        self.wfile.write(body)
                except OSError:
                    pass  # the other side had enough

            def log_message(self, *_):
                pass

        self.drips_seconds = 0.0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    @contextmanager
    def running(self):
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)
