"""Fetches the files of npm packages that the product serves, and describes them for the bill of materials.

`static/vendor/vendored.toml` lists them. Does not belong here: browser code of our own.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import tomllib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

REGISTRY = "https://registry.npmjs.org"
FETCH_SECONDS = 60.0
"""Deadline of one package; the largest has a megabyte. A judgement."""


class IntegrityError(Exception):
    """A package is not the one that was pinned."""


@dataclass(frozen=True, slots=True)
class VendoredPackage:
    """An npm package with files that are served.

    Attributes
    ----------
    integrity
        As npm writes it: `sha512-` and the base64 digest of the tarball.
    files
        Path in the package for each path below `static`.
    """

    name: str
    version: str
    integrity: str
    licence: str
    why: str
    files: dict[str, str]

    @property
    def purl(self) -> str:
        """The package URL."""
        return f"pkg:npm/{self.name.replace('@', '%40')}@{self.version}"

    @property
    def address(self) -> str:
        """Where the registry keeps the tarball."""
        return f"{REGISTRY}/{self.name}/-/{self.name.rpartition('/')[2]}-{self.version}.tgz"


def packages(static: Path) -> list[VendoredPackage]:
    """Return the listed packages."""
    table = tomllib.loads((static / "vendor" / "vendored.toml").read_text(encoding="utf-8"))
    return [VendoredPackage(**one) for one in table["package"]]


def contents(package: VendoredPackage, tarball: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield path below `static` and bytes of each file.

    Raises
    ------
    IntegrityError
        If the tarball is another one than was pinned, or has not all of the files.
    """
    digest = b64encode(hashlib.sha512(tarball).digest()).decode()
    if package.integrity != f"sha512-{digest}":
        raise IntegrityError(f"{package.name} {package.version} is sha512-{digest}, not {package.integrity}")
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        for path, inside in package.files.items():
            try:
                file = archive.extractfile(f"package/{inside}")
            except KeyError:
                file = None
            if file is None:
                raise IntegrityError(f"{package.name} {package.version} has no file {inside}")
            yield path, file.read()


def fetched(address: str) -> bytes:
    """Return the body of an address; raises `httpx.HTTPError`."""
    return httpx.get(address, timeout=FETCH_SECONDS, follow_redirects=True).raise_for_status().content


def vendor(static: Path, *, check: bool = False, fetch: Callable[[str], bytes] = fetched) -> int:
    """Write the files of all packages, or only name those that differ; return an exit status.

    Parameters
    ----------
    static
        The folder that is served.
    check
        Change nothing; 1 is returned if a file is missing or differs.
    fetch
        Returns the tarball at an address.
    """
    differing = []
    for package in packages(static):
        try:
            found = dict(contents(package, fetch(package.address)))
        except (httpx.HTTPError, IntegrityError) as error:
            print(f"{package.name}: {error}", file=sys.stderr)
            return 2
        for path, body in found.items():
            file = static / path
            if file.is_file() and file.read_bytes() == body:
                continue
            differing.append(path)
            if not check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(body)
    for path in differing:
        print(f"{path} differs." if check else f"{path} written.")
    return 1 if check and differing else 0
