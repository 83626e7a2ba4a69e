"""The limit that the formatters of templates, styles, scripts and modules cannot always keep."""

from pathlib import Path

from development.line_lengths import MAX_COLUMNS, long_lines, sources


def test_each_line_over_the_limit_is_named(tmp_path):
    template = tmp_path / "page.html"
    template.write_text(f"{'a' * MAX_COLUMNS}\n{'b' * (MAX_COLUMNS + 1)}\n")
    assert long_lines([template]) == [f"{template}:2: 121 columns; at most 120 are allowed."]


def test_a_remark_to_a_linter_does_not_count(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(f"{'a' * MAX_COLUMNS}  # noqa: S608 - constants\n")
    assert long_lines([module]) == []


def test_templates_styles_and_own_code_are_checked_and_code_of_others_is_not():
    root = Path(__file__).resolve().parents[2]
    found = {path.relative_to(root).as_posix() for path in sources(root)}
    assert {
        "templates/sessions/page.html", "static/css/base.css", "static/js/live.js", "detection/jobs.py",
        "clients/python/loopguard_client/wire.py",
    } <= found  # fmt: skip
    assert not any("/vendor/" in name or "migrations" in name for name in found)
