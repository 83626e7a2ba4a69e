"""The variables with which programs choose their model server, and what each points at without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Provider:
    """A kind of model server.

    Attributes
    ----------
    kind, title : str
        The kind of its backends on the server, and its name for people.
    base_url : str
        Where SDKs send their requests if no variable says otherwise.
    variables : tuple of str
        Variables that SDKs and agents read; the first that is set counts.
    version : str
        What the paths of its requests begin with; added for programs that expect it in the base URL.
    arguments : mapping
        For programs that read no variable: their arguments, in which `{}` stands for the base URL.
    """

    kind: str
    title: str
    base_url: str
    variables: tuple[str, ...]
    version: str = ""
    arguments: Mapping[str, tuple[str, ...]] | None = None

    def given(self, environment: Mapping[str, str]) -> str:
        """Return the address that the environment names, without a slash at its end; empty if none."""
        found = (environment.get(name, "").strip().rstrip("/") for name in self.variables)
        return next((value for value in found if value), "")

    def arguments_of(self, program: str) -> Sequence[str]:
        """Return the arguments with which a program takes a base URL; empty if it reads a variable."""
        return (self.arguments or {}).get(program, ())


PROVIDERS: Final = (
    Provider(
        "openai", "OpenAI", "https://api.openai.com/v1",
        # SDKs of OpenAI and the AI SDK; LangChain and LiteLLM.
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        arguments={"codex": ("-c", 'openai_base_url="{}"')},
    ),
    Provider(
        "anthropic", "Anthropic", "https://api.anthropic.com",
        # SDKs of Anthropic, Claude Code; LangChain; LiteLLM. The AI SDK expects the version in it.
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_URL", "ANTHROPIC_API_BASE"),
        version="/v1",
    ),
    Provider(
        "gemini", "Google", "https://generativelanguage.googleapis.com",
        # Google's SDKs and Gemini CLI; LiteLLM.
        ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"),
    ),
)  # fmt: skip
