"""The development commands of `manage.py`, by name."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from development import advisories, clients, gateway_matrix, images, locks, quality, suite, vendoring
from development import package as distribution
from development import release as releases

ROOT = Path(__file__).resolve().parents[1]


def test(arguments: Sequence[str]) -> int:
    """Run the test suite on embedded servers; arguments are those of pytest.

    `test clients` runs those of the clients, `test gateway-matrix` real SDKs through the gateway.
    """
    if arguments[:1] == ["clients"]:
        return clients.run(ROOT, arguments[1:])
    if arguments[:1] == ["gateway-matrix"]:
        return gateway_matrix.run(ROOT, arguments[1:])
    return suite.run(ROOT, arguments)


def check_all(arguments: Sequence[str]) -> int:
    """Run every check that CI runs; --no-tests skips the suite."""
    return quality.check_all(ROOT, arguments)


def lock(arguments: Sequence[str]) -> int:
    """Renew the lock files from pyproject.toml; --upgrade takes newer versions."""
    parser = argparse.ArgumentParser(prog="manage.py lock", description=lock.__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    parser.add_argument(
        "--upgrade-package",
        action="append",
        default=[],
        metavar="NAME",
        help="take a newer version of one package",
    )
    chosen = parser.parse_args(arguments)
    return locks.renew(ROOT, upgrade=chosen.upgrade, packages=chosen.upgrade_package)


def vendor(arguments: Sequence[str]) -> int:
    """Fetch the browser code and fonts that static/vendor/vendored.toml lists; --check names what differs."""
    parser = argparse.ArgumentParser(prog="manage.py vendor", description=vendor.__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if a file differs"
    )
    return vendoring.vendor(ROOT / "static", check=parser.parse_args(arguments).check)


def coverage(arguments: Sequence[str]) -> int:
    """Run the test suite and report which lines and branches it executes; arguments are those of pytest."""
    return suite.run(ROOT, ["--cov", "--cov-report=term:skip-covered", "--cov-report=html", *arguments])


def package(arguments: Sequence[str]) -> int:
    """Build sdist and wheel into dist/, install the wheel into an empty environment and run it."""
    parser = argparse.ArgumentParser(prog="manage.py package", description=package.__doc__)
    parser.add_argument(
        "--test-clients",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="also run `test clients` with the rest of the command line, on the installed server",
    )
    return distribution.package(ROOT, tested=parser.parse_args(arguments).test_clients)


def sbom(arguments: Sequence[str]) -> int:
    """Write a software bill of materials (CycloneDX) of an installation to dist/."""
    _no_arguments("sbom", sbom.__doc__, arguments)
    return releases.sbom(ROOT)


def audit_dependencies(arguments: Sequence[str]) -> int:
    """List known vulnerabilities of all dependencies; says so when advisory data is unavailable."""
    parser = argparse.ArgumentParser(
        prog="manage.py audit_dependencies", description=audit_dependencies.__doc__
    )
    parser.add_argument("--url", default=advisories.OSV_URL, help="a server with the API of OSV")
    return advisories.audit(ROOT, parser.parse_args(arguments).url)


def pin_images(arguments: Sequence[str]) -> int:
    """Pin the container images of docker-compose.yml and Dockerfile by digest; needs docker and a network."""
    _no_arguments("pin_images", pin_images.__doc__, arguments)
    return images.pin(ROOT)


def release(arguments: Sequence[str]) -> int:
    """Check a release and write its files to dist/."""
    _no_arguments("release", release.__doc__, arguments)
    return releases.release(ROOT)


def screenshots(arguments: Sequence[str]) -> int:
    """Take the pictures of screens in docs/images anew, on an installation of its own; needs Chromium."""
    _no_arguments("screenshots", screenshots.__doc__, arguments)
    from development import screenshots as pictures  # the browser's driver takes half a second to load

    return pictures.take(ROOT)


def chaos(arguments: Sequence[str]) -> int:
    """Kill, freeze and fill an installation of its own at random under load, and compare; --seeds 10 runs ten."""
    from development.chaos import command  # only this command needs its packages

    return command.run(arguments)


def _no_arguments(name: str, description: str | None, arguments: Sequence[str]) -> None:
    argparse.ArgumentParser(prog=f"manage.py {name}", description=description).parse_args(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    command.__name__: command
    for command in (
        test,
        check_all,
        coverage,
        screenshots,
        chaos,
        lock,
        package,
        sbom,
        audit_dependencies,
        pin_images,
        vendor,
        release,
    )
}
