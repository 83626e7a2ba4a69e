"""Which attributes tests may replace: CONTRIBUTING.md, "Mocks"."""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
STANDARD_LIBRARY = {"getaddrinfo", "randbelow"}
"""Name resolution and chance, which no configuration controls."""
FAULTS = {
    ("services/sessions/test_evaluation.py", "observe_call"): "a defect of the engine",
    ("services/sessions/test_quarantine.py", "observe_call"): "a defect of the engine, and its fix",
    (
        "services/sessions/test_folding.py",
        "observe_call",
    ): "a defect of the engine, and that it is not called",
    ("consumers/test_approval_long_poll.py", "closed_among"): "counts queries of another thread",
    ("consumers/test_live.py", "ended"): "counts queries of another thread",
    ("api/test_containment_alerts.py", "now"): "a time that is reached, of the server",
    ("api/test_containments.py", "now"): "a time that is reached, of the server",
    ("api/test_weekly_report.py", "now"): "a Monday",
    ("console/test_change_here.py", "try_lock"): "a replay of another request that runs",
    ("console/test_change_here.py", "_replay"): "counts replays",
    (
        "services/ingestion/test_nodes.py",
        "add",
    ): "lists the statements that a server is sent, prepared ones too",
    ("services/ingestion/test_nodes.py", "has_nodes"): "one run on one server and on nodes",
    ("sql/test_pipeline.py", "add"): "lists the statements that a server is sent, prepared ones too",
    ("api/test_containments.py", "time"): "a time that is reached, of the process",
}
"""Functions that are replaced, by file, with the fault or count that nothing outside can produce."""


def replaced(file: Path) -> list[str]:
    """Return the names of the attributes that a test file sets on other objects."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "setattr"
        ):
            named = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            names.append(str(named[0]).rpartition(".")[2] if named else "")
    return names


def test_tests_replace_only_constants_the_standard_library_and_listed_functions():
    found = {(str(file.relative_to(TESTS)), name) for file in TESTS.rglob("*.py") for name in replaced(file)}
    functions = {(file, name) for file, name in found if not name.isupper() and name not in STANDARD_LIBRARY}
    assert functions == set(FAULTS)
