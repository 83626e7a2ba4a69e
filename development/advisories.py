"""The audit of dependencies: known vulnerabilities of every package of an installation, from a database of advisories.

Does not belong here: the list of packages itself (`release`, `locks`).
"""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from development import locks
from development.vendoring import packages

OSV_URL = "https://api.osv.dev"
TIMEOUT_SECONDS = 20
VULNERABLE, UNAVAILABLE = 1, 2


def audit(root: Path, url: str = OSV_URL) -> int:
    """Print the known vulnerabilities of the locked Python packages and of the vendored browser code.

    Parameters
    ----------
    root : Path
        The checkout.
    url : str
        A server that speaks the API of OSV (osv.dev), which knows the advisories of PyPI, npm and GitHub.

    Returns
    -------
    int
        0 without findings, 1 with some, 2 if the advisory data is unavailable and nothing was checked.
    """
    packages = purls(root)
    try:
        found = _advisories(packages, url.rstrip("/"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"The advisory data of {url} is unavailable: {error}. Nothing was checked.", file=sys.stderr)
        return UNAVAILABLE
    for purl, ids in found.items():
        print(f"{purl}: {', '.join(f'https://osv.dev/vulnerability/{one}' for one in ids)}")
    print(f"{len(packages)} packages checked, {len(found)} with known vulnerabilities.")
    return VULNERABLE if found else 0


def purls(root: Path) -> list[str]:
    """Return the package URL of everything that an installation contains, the browser code included."""
    lock = (root / "requirements.lock").read_text(encoding="utf-8")
    python = [f"pkg:pypi/{name}@{version}" for name, version in sorted(locks.pins(lock).items())]
    return python + [one.purl for one in packages(root / "static")]


def _advisories(packages: list[str], url: str) -> dict[str, list[str]]:
    body = json.dumps({"queries": [{"package": {"purl": purl}} for purl in packages]}).encode()
    request = urllib.request.Request(  # noqa: S310 (the operator's own address)
        f"{url}/v1/querybatch", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            results: list[dict[str, Any]] = json.load(answer)["results"]
    except urllib.error.HTTPError as error:
        raise OSError(f"the answer was {error.code}") from error
    if len(results) != len(packages):
        raise ValueError(f"{len(results)} answers to {len(packages)} questions")
    return {
        purl: [one["id"] for one in result["vulns"]]
        for purl, result in zip(packages, results, strict=True)
        if result.get("vulns")
    }
