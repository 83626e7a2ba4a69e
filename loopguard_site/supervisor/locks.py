"""Checks that both lock files agree and name no registry."""

import re
import sys
from pathlib import Path

_PIN = re.compile(r"^([a-z0-9-]+)(?:\[.*?\])?==(\S+)", re.MULTILINE)


def problems(runtime: str, development: str) -> list[str]:
    """Return what is wrong with the texts of the two lock files, one sentence each."""
    pins = {
        name: set(_PIN.findall(text)) for name, text in (("runtime", runtime), ("development", development))
    }
    found = [
        f"{name}=={version} is in requirements.lock and not in requirements-dev.lock."
        for name, version in sorted(pins["runtime"] - pins["development"])
    ]
    found += ["A lock file names an address." for text in (runtime, development) if "://" in text]
    found += ["A lock file has no hashes." for text in (runtime, development) if "--hash=sha256:" not in text]
    return found


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sentences = problems(
        *(root.joinpath(name).read_text() for name in ("requirements.lock", "requirements-dev.lock"))
    )
    print("\n".join(sentences) or "Both lock files agree.")
    sys.exit(1 if sentences else 0)
