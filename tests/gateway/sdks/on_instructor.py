"""One-shot requests of the package `instructor`: each has no history, and its answer is an object."""

import instructor
import openai
from jobs import headers, result, serve
from pydantic import BaseModel

REQUESTS = 40


class Search(BaseModel):
    """Search."""

    q: str


def one_shot(job):
    """Ask for the same object again and again, and run what it says."""
    openai_client = openai.OpenAI(
        base_url=job["base_url"], api_key="sk-test", default_headers=headers(job), max_retries=0
    )
    client = instructor.from_openai(openai_client)
    runs, text = 0, ""
    for _ in range(REQUESTS):
        try:
            found = client.chat.completions.create(
                model="gpt-x",
                messages=[{"role": "user", "content": "What is to be searched for?"}],
                response_model=Search,
                max_retries=1,
            )
        except Exception as error:  # noqa: BLE001 (what a program sees of a refused call)
            text = f"{type(error).__name__}: {error}"
            break
        result("search", found.q)
        runs += 1
    return {"runs": runs, "text": text}


serve({"one_shot": one_shot})
