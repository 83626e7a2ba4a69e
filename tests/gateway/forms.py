"""The forms of an answer, in which tests of the gateway run: the protocols, whole and as a stream."""

import zlib
from collections.abc import Callable
from typing import Any

import pytest

FORMS = [(shape, stream) for shape in ("openai", "anthropic", "responses") for stream in (False, True)]
KEPT_FORMS = [(shape, stream) for shape in ("responses", "anthropic") for stream in (False, True)]
"""Those whose model server can keep the conversation."""
_NAMES = ("shape", "is_stream")

every_form = pytest.mark.parametrize(_NAMES, FORMS)


def _in_turns(forms: list[tuple[str, bool]]) -> Callable[[Any], Any]:
    protocols = len(forms) // 2

    def decorate(test: Any) -> Any:
        first = zlib.crc32(test.__name__.encode()) % protocols
        chosen = forms[2 * first], forms[2 * ((first + 1) % protocols) + 1]
        values = [form if form in chosen else pytest.param(*form, marks=pytest.mark.long) for form in forms]
        return pytest.mark.parametrize(_NAMES, values)(test)

    return decorate


forms_in_turns = _in_turns(FORMS)
"""Parametrise by one protocol whole and another as a stream, others for each test; by all of them among the long tests."""
kept_forms_in_turns = _in_turns(KEPT_FORMS)
