"""The ways to connect an agent: what each does to a loop, its command, what that changes, and the same by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson
from django.conf import settings

from detection.integrations.hosts import HOSTS, hook_settings
from detection.integrations.reach import Reach, reach_of
from detection.models.sessions import IMPORTED, OTLP

AWAY: Final = (
    "While LoopGuard is unreachable, calls run as without hooks. With --fail-closed, they do not run."
)
_HELD_BY_USER: Final = "For a held call, {title} asks its own user."
_HELD_BY_OPERATOR: Final = (
    "A held call does not run, and the model reads that an operator has been asked. The decision applies when the "
    "same call is made again."
)
_WAITS_FOR_OPERATOR: Final = (
    "The hook of a held call waits up to 45 s for an operator. Without a decision the call does not run, and the model "
    "reads that an operator has been asked. The decision applies when the same call is made again."
)
_DENIED_WHILE_HELD: Final = "A held call is denied. Once an operator has allowed it, the same call runs."
_ENDS: Final = "A stop ends the run."
_DENIES: Final = (
    "A hook cannot end a run of {title}: after a stop, every further call is blocked, and the model is asked until it "
    "gives up. The gateway ends the run; connect {title} there to save these requests."
)
_OF_CLIENTS: Final = (
    "A blocked call does not run, and the model reads the message as its result.",
    "A stop ends the run, as far as the framework allows.",
    "A held call waits for its approval.",
    "While LoopGuard is unreachable, the client counts identical calls itself. Tools in fail_closed do not run.",
)
_CLIENT: Final = ("client", "guard")
_SNIPPETS: Final = {"python": "client"}
"""Whose snippet has another name."""


@dataclass(frozen=True, slots=True)
class Guide:
    """A way to connect an agent.

    Attributes
    ----------
    name, title
        Name in URLs and of the code of its command, and title for people.
    letters
        What its tile shows instead of a logo.
    kind
        What connects it, in a word.
    integrations
        Values of `Session.integration` that its sessions have, the one of its reach first.
    summary
        One sentence.
    prevents
        What happens to calls, and the limits of that.
    check
        How to verify that it works.
    trust
        Steps that a person has to take after the installation.
    scope
        The only scope of the key that its command gets.
    key_days
        Lifetime of that key in days; 0 if it does not expire.
    module, attach
        Module of the client with the adapter, and the lines that attach it.
    """

    name: str
    title: str
    letters: str
    kind: str
    integrations: tuple[str, ...]
    summary: str
    prevents: tuple[str, ...]
    check: str
    trust: str = ""
    scope: str = "guard"
    key_days: int = 0
    module: str = ""
    attach: str = ""

    @property
    def reach(self) -> Reach:
        """What can be done to its sessions."""
        return reach_of(self.integrations[0])

    @property
    def is_host(self) -> bool:
        """Whether it is a coding agent with hooks or plugins."""
        return self.name in HOSTS

    @property
    def is_python(self) -> bool:
        """Whether its program imports the Python client, which therefore has to be in the program's environment."""
        return self.kind in ("adapter", "client")

    @property
    def snippet(self) -> str:
        """The template with what to run by hand."""
        if self.kind == "adapter":
            return "integrations/snippets/adapter.html"
        if self.kind == "package":
            return "integrations/snippets/package.html"
        return f"integrations/snippets/{'host' if self.is_host else _SNIPPETS.get(self.name, self.name)}.html"

    @property
    def changes(self) -> tuple[str, ...]:
        """What the command changes on the machine, apart from what `pip` installs."""
        key = "~/.loopguard/curl gets the key, readable by this account only. Another key there is replaced."
        if self.name == "imports":
            return (
                "Nothing is written. It lists the session files of this account, asks, and uploads them.",
            )
        if self.name == "opentelemetry":
            return (
                "~/.loopguard/opentelemetry.env gets address and key as variables, readable by this account only.",
            )
        address = "~/.loopguard/client.json gets the address of this server."
        if not self.is_host:
            return (key, address)
        if not self.settings_file:
            return (
                key,
                address,
                f"The folder of {self.title} gets the plugin, which is ours alone.",
                _BEFORE,
            )
        return (
            key,
            address,
            "~/.loopguard/hook gets the script that the hooks run.",
            f"{self.settings_file} gets the hooks, beside what is there, with a backup in the same folder.",
            _BEFORE,
        )

    @property
    def removal(self) -> str:
        """The commands that remove again what the command has changed."""
        if self.name == "imports":
            return ""
        first = f"loopguard hooks uninstall {self.name}\n" if self.is_host else ""
        return f"{first}rm -r ~/.loopguard\npip uninstall loopguard-client"

    @property
    def commands(self) -> str:
        """What to run by hand after the client is installed."""
        return f"loopguard hooks install {self.name} --url {settings.PUBLIC_URL}\nloopguard hooks check {self.name}"

    @property
    def settings_file(self) -> str:
        """The file with its hooks; empty if it has none."""
        return HOSTS[self.name].settings_file if self.is_host else ""

    @property
    def by_hand(self) -> str:
        """What its settings file has to contain; empty if it has no settings file."""
        if not self.settings_file:
            return ""
        return orjson.dumps(
            hook_settings(HOSTS[self.name], settings.PUBLIC_URL), option=orjson.OPT_INDENT_2
        ).decode()


_BEFORE: Final = "~/.loopguard/installed keeps what that file was before, for its removal."


def _host(name: str, letters: str, *more: str, held: str, stop: str, trust: str = "") -> Guide:
    title = HOSTS[name].title
    return Guide(
        name,
        title,
        letters,
        "hook" if HOSTS[name].settings_file else "plugin",
        (f"hooks/{name}",),
        f"{title} asks LoopGuard before each tool call, using its own hooks. The program itself is not changed.",
        (
            "A blocked call does not run, and the model reads the message as its result.",
            stop.format(title=title),
            held.format(title=title),
            *more,
            AWAY,
        ),
        "The command check runs the installed hook as the program does, and reports success or the exact problem.",
        trust,
    )


def _adapter(name: str, title: str, letters: str, module: str, imported: str, attach: str) -> Guide:
    return Guide(
        name,
        title,
        letters,
        "adapter",
        _CLIENT,
        f"An adapter of the Python client for {title} asks before each tool call.",
        _OF_CLIENTS,
        "Let the agent make the same call four times: the fourth returns a message instead of a result.",
        module=module,
        attach=f'from loopguard_client.{module} import {imported}\n\nguard = Guard(agent="my-agent")\n{attach}',
    )


def _package(name: str, title: str, letters: str, module: str, imported: str, attach: str) -> Guide:
    return Guide(
        name,
        title,
        letters,
        "package",
        _CLIENT,
        f"Guard {'an' if title[0] in 'AO' else 'a'} {title} agent in two lines. The JavaScript client asks before each "
        "tool call.",
        tuple(sentence.replace("fail_closed", "failClosed") for sentence in _OF_CLIENTS),
        "Let the agent make the same call four times: the fourth returns a message instead of a result.",
        module=module,
        attach=(
            f'import {{ {imported} }} from "loopguard-client/{module}";\n\n'
            f'const guard = new Guard({{ agent: "my-agent" }});\n{attach}'
        ),
    )


_AGENTS: Final = (
    _host("claude-code", "CC", held=_HELD_BY_USER, stop=_ENDS),
    _host(
        "codex",
        "Cx",
        held=_WAITS_FOR_OPERATOR,
        stop=_DENIES,
        trust="Codex silently skips hooks that are not trusted. "
        "Start codex, enter /hooks and trust LoopGuard's hooks. The check fails until you do.",
    ),
    _host(
        "gemini-cli",
        "Gm",
        "Gemini CLI itself ends a run at the fifth identical call. LoopGuard adds cycles, similar calls, failures "
        "and a record of calls.",
        held=_WAITS_FOR_OPERATOR,
        stop=_ENDS,
    ),
    _host("copilot", "Co", held=_HELD_BY_USER, stop=_DENIES),
    _host("opencode", "OC", held=_HELD_BY_OPERATOR, stop=_ENDS),
    _host("kilo", "Ki", held=_HELD_BY_OPERATOR, stop=_ENDS),
    _host(
        "cline",
        "Cl",
        "Plugins run in Cline's command line, not in its extensions for editors: guard those with the gateway.",
        held=_HELD_BY_OPERATOR,
        stop=_ENDS,
    ),
    _host("pi", "Pi", held=_HELD_BY_OPERATOR, stop=_ENDS),
    _host("qwen-code", "Qw", held=_HELD_BY_USER, stop=_DENIES),
    _host("droid", "FD", held=_HELD_BY_USER, stop=_ENDS),
    _host("cursor", "Cu", held=_DENIED_WHILE_HELD, stop=_DENIES),
    _host("goose", "Go", held=_WAITS_FOR_OPERATOR, stop=_DENIES),
    _host("openhands", "OH", held=_WAITS_FOR_OPERATOR, stop=_DENIES),
    _host("windsurf", "Ws", held=_DENIED_WHILE_HELD, stop=_DENIES),
    _host("kiro", "Kr", held=_WAITS_FOR_OPERATOR, stop=_DENIES),
    _host(
        "openclaw",
        "Ow",
        held=_HELD_BY_USER,
        stop=_ENDS,
        trust="OpenClaw loads only plugins that are enabled, and shows what people ask only to those that may read it. "
        "The installation prints the two commands for that. The check fails until you run them.",
    ),
)
_PYTHON: Final = (
    _adapter(
        "langgraph",
        "LangGraph",
        "LG",
        "langchain",
        "tool_node_wrappers",
        "node = ToolNode(tools, **tool_node_wrappers(guard))",
    ),
    _adapter(
        "langchain",
        "LangChain",
        "LC",
        "langchain",
        "LoopGuardMiddleware",
        "agent = create_agent(model, tools, middleware=[LoopGuardMiddleware(guard)])",
    ),
    _adapter(
        "openai-agents",
        "OpenAI Agents",
        "OA",
        "openai_agents",
        "guard_agents",
        "guard_agents(guard)  # once per process",
    ),
    _adapter(
        "pydantic-ai",
        "pydantic-ai",
        "Py",
        "pydantic_ai",
        "LoopGuard",
        "agent = Agent(model, capabilities=[LoopGuard(guard)])",
    ),
    _adapter("crewai", "CrewAI", "Cr", "crewai", "guard_crews", "guard_crews(guard)  # once per process"),
    _adapter(
        "agno", "Agno", "Ag", "agno", "tool_hook", "agent = Agent(model=model, tool_hooks=[tool_hook(guard)])"
    ),
    _adapter(
        "llama-index",
        "LlamaIndex",
        "Ll",
        "llama_index",
        "guard_tools",
        "agent = FunctionAgent(tools=guard_tools(guard, tools), llm=model)",
    ),
    _adapter(
        "haystack",
        "Haystack",
        "Hs",
        "haystack",
        "hooks",
        "agent = Agent(chat_generator=model, tools=tools, hooks=hooks(guard))",
    ),
    _adapter("smolagents", "smolagents", "Sm", "smolagents", "guard_agent", "guard_agent(agent, guard)"),
    _adapter(
        "ag2", "AG2", "A2", "ag2", "middleware", 'agent = Agent("my-agent", middleware=[middleware(guard)])'
    ),
    _adapter(
        "autogen",
        "AutoGen",
        "Au",
        "autogen",
        "GuardedWorkbench",
        'agent = AssistantAgent("my_agent", model, workbench=GuardedWorkbench(guard, workbench))',
    ),
    _adapter(
        "semantic-kernel",
        "Semantic Kernel",
        "SK",
        "semantic_kernel",
        "guard_kernel",
        "guard_kernel(kernel, guard)",
    ),
    _adapter(
        "agent-framework",
        "Agent Framework",
        "AF",
        "agent_framework",
        "middleware",
        "agent = Agent(client=model, middleware=middleware(guard))",
    ),
    Guide(
        "python",
        "Python",
        "Pn",
        "client",
        _CLIENT,
        "A decorator or a context manager of the Python client, for your own loop.",
        _OF_CLIENTS,
        "Run the snippet: the fourth call returns a message instead of a result, and its session is listed.",
    ),
)
_JAVASCRIPT: Final = (
    _package(
        "ai-sdk",
        "Vercel AI SDK",
        "Ai",
        "ai",
        "loopguard",
        "await generateText({ model, prompt, ...loopguard(guard, { tools }) });",
    ),
    _package(
        "langchain-js",
        "LangChain.js",
        "LJ",
        "langchain",
        "loopguardMiddleware",
        "const agent = createAgent({ model, tools, middleware: [loopguardMiddleware(guard)] });",
    ),
    _package(
        "openai-agents-js",
        "OpenAI Agents JS",
        "OJ",
        "openai-agents",
        "guardAgents",
        "guardAgents(guard, Agent); // once per process",
    ),
    _package(
        "mastra",
        "Mastra",
        "Ma",
        "mastra",
        "loopguard",
        "const agent = new Agent({ name, model, tools, ...loopguard(guard) });",
    ),
    _package(
        "claude-agent-sdk",
        "Claude Agent SDK",
        "CA",
        "claude-agent-sdk",
        "loopguardHooks",
        "query({ prompt, options: { hooks: loopguardHooks(guard) } });",
    ),
)
_OTHERS: Final = (
    Guide(
        "mcp",
        "MCP server",
        "MC",
        "proxy",
        ("mcp", *_CLIENT),
        "A wrapper around a stdio MCP server guards its tools, whichever program uses them.",
        (
            "A blocked call is answered with isError and its message; a warning precedes the result.",
            "MCP cannot end a run: after a stop, every further call is answered with an error.",
            "LoopGuard sees only MCP tools, and no user messages.",
        ),
        "Restart the MCP client and use a tool: its session is listed, with the client's name as the agent.",
    ),
    Guide(
        "api",
        "Your own code",
        "{}",
        "API",
        ("guard", "events"),
        "Any program asks with one request before each tool call.",
        (
            "Your program runs a call only after allow or warn.",
            "A held call waits for its approval at the address in the response.",
        ),
        "Run a snippet: in the first, the fourth identical call is blocked.",
    ),
    Guide(
        "opentelemetry",
        "OpenTelemetry",
        "OT",
        "spans",
        (OTLP,),
        "An agent that is instrumented for OpenTelemetry exports its spans here. Nothing else about it changes.",
        (
            "Spans are sent after a call has run, so nothing is blocked: loops are reported within seconds.",
            "Calls, results, errors, tokens, costs, prompts and agents come from spans. Other spans are ignored.",
            "Calls without recorded arguments are rejected and listed under Ingest: enable content recording.",
            "While LoopGuard is unreachable, the exporter retries for a while and then drops its spans.",
        ),
        "Run the agent: its session is listed a few seconds later, named after its conversation or trace.",
        scope="ingest",
    ),
    Guide(
        "imports",
        "Past runs",
        "In",
        "import",
        tuple(f"{IMPORTED}{name}" for name in ("claude-code", "codex", "gemini-cli", "copilot")),
        "Shows what loops have cost before you connect anything, from the session files of coding agents.",
        (
            "Nothing: these runs have ended. Loops in them are found, and send no alerts.",
            "The key of its command ends after a day.",
        ),
        "The import is listed under Imports with what was found.",
        scope="ingest",
        key_days=1,
    ),
)
GROUPS: Final[Mapping[str, tuple[Guide, ...]]] = {
    "Coding agents": _AGENTS,
    "Python": _PYTHON,
    "JavaScript": _JAVASCRIPT,
    "Everything else": _OTHERS,
}
"""The tiles, by their headings."""
GUIDES: Final[Mapping[str, Guide]] = {guide.name: guide for guides in GROUPS.values() for guide in guides}
"""The guides by name."""
