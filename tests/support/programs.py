"""Programs of the machine that some tests call; where one is missing, those tests are skipped and say so."""

import shutil

import pytest

needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None, reason="curl is not installed; the lines that LoopGuard shows call it"
)
