"""The first examples of the client's page run as they are, but for address and key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
SESSION = "chat-42"


def test_the_first_examples_of_the_page_run_as_they_are_pasted(server, name):
    page = PAGE.read_text(encoding="utf-8").partition("## Agent frameworks")[0]
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert first.count("8300") == 1
    names: dict[str, Any] = {}
    code = f"{first}\n{second}".replace("http://127.0.0.1:8300", server.url).replace("lg_…", server.key)
    # The machine may be busy, and other runs use the name of the page.
    code = code.replace("fail_closed=", "budget_seconds=20, fail_closed=").replace(SESSION, name)
    exec(code, names)
    assert (names["result"], names["answer"]) == ("0 results", "0 results")
    assert names["guard"].close(20)
    assert [call["decision"] for call in server.calls(name)] == ["allow"] * 3
