"""Texts that programs write where a prompt of a person would be: observations, errors of tools, and notes of hosts.

Knowledge of programs is data here; the rule that reads it is in `people`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProgramText:
    """One form of text.

    Attributes
    ----------
    program
        Who writes it.
    pattern
        Regular expression for its beginning, without regard to case.
    examples
        Texts that must match.
    others
        Texts of people that must not.
    after
        Regular expression for what the message of the model before it must contain, because people write such a text,
        too; empty if that does not matter.
    """

    program: str
    pattern: str
    examples: tuple[str, ...]
    others: tuple[str, ...]
    after: str = ""


TEXT_ACTION: Final = (
    r"^[ \t]{0,8}(?:action|tool call|calling tools?|function call)s?[ \t]{0,8}:"
    r"|<(?:code|tool_call|function_call|invoke)\b|```"
)
"""How a model calls a tool in a protocol of plain text."""

PROGRAM_TEXTS: Final = (
    ProgramText(
        "agents that read actions from plain text",
        r"(?:\[?step \d+\]?\s{0,8})?(?:call id: \S{1,80}\s{1,8})?\[?(?:observations?|tool (?:output|response|results?)|"
        r"(?:function|command|execution|action|code) (?:output|results?))\b[^\n:]{0,80}:",
        (
            "Observation: 0 hits",
            "Observation:\n0 hits",
            "Call id: c1\nObservation:\n0 hits",
            "OBSERVATION:\nbash: foo: command not found",
            "Tool result: 3 files",
            "TOOL RESPONSE:\n---------------------\n0 hits",
            "EXECUTION RESULT of [execute_bash]:\nok",
        ),
        (
            "I have an observation: it is slow.",
            "Observations of our users are in the folder docs.",
            "Results: sort them.",
        ),
        after=TEXT_ACTION,
    ),
    ProgramText(
        "mini-swe-agent, Cline and others: the error of a tool call",
        r"\[?(?:tool|function)(?:[ _-]call(?:ing)?)? (?:call )?(?:error|failed|failure)\b\]?\s{0,8}:",
        (
            "Tool call error: No tool calls found in the response.",
            "Tool call error:\n\n<error>\nNo tool calls found\n</error>",
            "Function call failed: unknown function",
            "[Tool error]: timed out",
        ),
        (
            "Tool call errors appear when I start it. Please look.",
            "The tool call error: what does it mean?",
            "Tool errors should be logged: add that.",
        ),
    ),
    ProgramText(
        "mini-swe-agent",
        r"(?:<exception>.{0,4000}?</exception>\s{0,8})?<returncode>|"
        r"no tool calls found in the response\. every response must include at least one tool call\b|"
        r"(?:error parsing tool call arguments: .{0,4000}?|unknown tool '[^'\n]{0,256}'\.)?"
        r"missing 'command' argument in bash tool call\.|unknown tool '[^'\n]{0,256}'\.\s{0,8}\Z|"
        r"expected exactly 1 action, found \d{1,6}\.|format error:\s{0,8}<error>"
        r"|please always provide exactly one action\b",
        (
            "<returncode>1</returncode>\n<output>\nno such file\n</output>",
            "<exception>timed out</exception>\n<returncode>-1</returncode>\n<output>\n</output>",
            "No tool calls found in the response. Every response MUST include at least one tool call.",
            "Error parsing tool call arguments: Expecting value.Missing 'command' argument in bash tool call.",
            "Unknown tool 'sh'.Missing 'command' argument in bash tool call.",
            "Unknown tool 'sh'.",
            "Expected exactly 1 action, found 2.",
            "Format error:\n\n<error>\nno action\n</error>",
            "Please always provide EXACTLY ONE action in triple backticks, found 0 actions.",
        ),
        (
            "Format error: the table on page 2 is broken.",
            "Please always provide exact numbers.",
            "No tool calls found in the log. Why?",
            "Unknown tool 'sh' is what it says. Add it.",
        ),
    ),
    ProgramText(
        "smolagents",
        r"error:\s.{0,4000}?now let's retry: take care not to repeat previous errors|"
        r"now proceed and carry on this plan\b",
        (
            "Error:\nboom\nNow let's retry: take care not to repeat previous errors! Try another way.",
            "Now proceed and carry on this plan.",
        ),
        ("Error: the page does not load. Can you look?", "Now proceed with the second file."),
    ),
    ProgramText(
        "OpenHands and SWE-agent",
        r"please continue working on the task on whatever approach you think is suitable|"
        r"your (?:last )?output (?:did not use any tool calls|was not formatted correctly)",
        (
            "Please continue working on the task on whatever approach you think is suitable.\nIf you are done, finish.",
            "Your last output did not use any tool calls!\nPlease make sure your output includes exactly ONE call.",
            "Your output was not formatted correctly. You must always include one discussion.",
        ),
        ("Please continue working on the task.", "Your output was not formatted as I like it. Use tables."),
    ),
    ProgramText(
        "Cline and Roo Code",
        r"\[(?:[a-z]+(?:_[a-z]+)+(?: for '[^'\n]{0,400}')?|[a-z]{3,40} for '[^'\n]{0,400}')\] result:|"
        r"\[error\] you did not use a tool in your previous response|"
        r"the tool execution failed with the following error:",
        (
            "[execute_command for 'ls'] Result:\na.py",
            "[ERROR] You did not use a tool in your previous response! Please retry with a tool use.",
            "The tool execution failed with the following error:\n<error>\nno\n</error>",
        ),
        ("[urgent] result: still red", "[ERROR] appears in the log, why?", "The tool execution failed, try again."),
    ),
    ProgramText(
        "AutoGen and AG2: the output of executed code",
        r"exitcode: -?\d+ \((?:execution|no)\b",
        ("exitcode: 1 (execution failed)\nCode output: boom",),
        ("exitcode: 1 is what I get. Why?",),
    ),
    ProgramText(
        "CrewAI",
        r"i did it wrong\. (?:invalid format|tried to)\b|analyze the tool result\. if requirements are met\b",
        (
            "I did it wrong. Invalid Format: I missed the 'Action:' after 'Thought:'.",
            "Analyze the tool result. If requirements are met, provide the Final Answer. Otherwise, go on.",
        ),
        ("I did it wrong. Please undo my last commit.", "Analyze the tool results in report.csv."),
    ),
    ProgramText(
        "Instructor and Pydantic AI: an answer that did not validate",
        r"correct your json only response\b|recall the function correctly, fix the errors\b|"
        r"validation (?:error found:|feedback:)|\d{1,6} validation errors?:\s{0,8}```json|"
        r"plain text responses are not permitted\b",
        (
            "Validation Error found:\n1 validation error for User\nRecall the function correctly, fix the errors",
            "Validation feedback:\nmust be positive\n\nFix the errors and try again.",
            "Plain text responses are not permitted, please include your response in a tool call",
        ),
        ("Validation errors are shown twice in the form.", "Correct your JSON, the key is wrong."),
    ),
    ProgramText(
        "Claude Code",
        r"<command-|<local-command|<system-reminder|<task-notification|\[request interrupted|"
        r"caveat: the messages below were generated\b",
        (
            "<command-name>/clear</command-name>",
            "<local-command-stdout></local-command-stdout>",
            "<system-reminder>Today is Monday.</system-reminder>",
            "[Request interrupted by user for tool use]",
            "Caveat: The messages below were generated by the user while running local commands.",
        ),
        ("<command> is not found, why?", "Caveat: change the tests only.", "[Request] add a button"),
    ),
    ProgramText(
        "Codex CLI",
        r"<(?:environment_context|user_instructions|permissions instructions|turn_aborted)>|"
        r"# agents\.md instructions for\b",
        ("<environment_context>\n<cwd>/src</cwd>\n</environment_context>", "# AGENTS.md instructions for /src"),
        ("# AGENTS.md needs a section about tests.", "<environment> is missing in the manual."),
    ),
    ProgramText(
        "hosts that have condensed a conversation",
        r"this session is being continued from a previous conversation\b|<(?:state_snapshot|conversation_summary)>|"
        r"another language model started to solve this problem and produced a summary\b|"
        r"here is a summary of the conversation to date\b|"
        r"the conversation history before this point was compacted\b",
        (
            "This session is being continued from a previous conversation that ran out of context.",
            "<state_snapshot>\n<overall_goal>…</overall_goal>",
            "Another language model started to solve this problem and produced a summary of its thinking process.",
            "Here is a summary of the conversation to date:\n\nThe user wants a report.",
        ),
        ("Here is a summary of the meeting. Write the minutes.", "This session is over, thanks."),
    ),
)  # fmt: skip
