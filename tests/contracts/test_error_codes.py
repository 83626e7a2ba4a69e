"""Every code that the API answers with is in the list of codes, and nothing else is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from detection.api.error_codes import ERROR_CODES
from detection.api.problems import CODE_OF_STATUS

ROOT = Path(__file__).resolve().parents[2]
_RAISED = {"Problem", "JsonProblem", "InvalidInput", "OtlpError", "LongPollError"}
"""Errors whose code is one of their first two arguments."""
_ONLY_PAGES = ("console", "services/accounts", "services/projects", "services/storage/database_rights.py")
"""Below `detection`: their errors are shown on pages only."""
_BY_NAME = {"approval_expired", "approval_withdrawn", "changed_meanwhile", "invalid_setting"} | {
    "nul", "surrogate", "duplicate_key", "number_precision",
}  # fmt: skip
"""Codes that the source does not write beside the error."""
_NO_DOCUMENTS = {"missing_arguments", "invalid_id"}


def _codes_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        values: list[ast.AST] = []
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            values += node.args[:2] if name in _RAISED else []
            if name[:1].isupper():  # an error, not a query
                values += [one for key in node.keywords if key.arg == "code" for one in ast.walk(key.value)]
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                given = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                values += [
                    value
                    for name, value in zip(names, given, strict=False)
                    if isinstance(name, ast.Name) and name.id == "code"
                ]
        for one in values:
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.isidentifier():
                yield one.value


def _in_source() -> set[str]:
    files = [*(ROOT / "detection").rglob("*.py"), *(ROOT / "loopguard_site" / "front").rglob("*.py")]
    pages = tuple(str(ROOT / "detection" / one) for one in _ONLY_PAGES)
    read = [file for file in files if not str(file).startswith(pages)]
    return {code for file in read for code in _codes_of(ast.parse(file.read_text()))}


def test_the_list_of_codes_has_every_code_of_the_source_and_no_other():
    known = (_in_source() | _BY_NAME | set(CODE_OF_STATUS.values())) - _NO_DOCUMENTS
    assert known == set(ERROR_CODES)


def test_every_code_has_a_status_and_a_sentence():
    for code, (status, text) in ERROR_CODES.items():
        assert all(one.strip().isdecimal() for one in status.split(",")), code
        assert text[:1] == "`" or text[:1].isupper(), code
        assert text.endswith("."), code


def test_the_type_of_a_problem_is_an_address_in_the_documentation(client):
    page = client.get("/api/v1/docs").content.decode()
    assert [code for code in ERROR_CODES if f'id="{code}"' not in page] == []
