"""Pins the images of `docker-compose.yml` and the Dockerfile by digest, so that a tag that moves changes nothing.

The Kubernetes manifests run only the image that is built here.
"""

import re
import subprocess
import sys
from pathlib import Path

FILES = ("docker-compose.yml", "Dockerfile")
OWN_IMAGE = "loopguard"
TIMEOUT_SECONDS = 60
_IMAGE = re.compile(
    r"^(?P<before>\s+image: |FROM )(?P<name>[a-z0-9./-]+:[A-Za-z0-9._-]+)(?:@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
_USED = re.compile(r"^\s*(?:-?\s*image:|FROM)\s+(\S+)", re.MULTILINE)
_PINNED = re.compile(r"[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pin(root: Path) -> int:
    """Write the present digest behind the tag of each image, and print it; return the exit status.

    Asks the registry of each image through `docker`. Nothing is written unless every digest is known.
    """
    texts = {name: (root / name).read_text(encoding="utf-8") for name in FILES}
    images = sorted({found["name"] for text in texts.values() for found in _IMAGE.finditer(text)})
    digests = {}
    for image in images:
        digest = _digest(image)
        if not digest:
            print(f"The digest of {image} is unknown. Nothing was changed.", file=sys.stderr)
            return 1
        digests[image] = digest
        print(f"{image}@{digest}")
    for name, text in texts.items():
        pinned = _IMAGE.sub(lambda found: f"{found['before']}{found['name']}@{digests[found['name']]}", text)
        (root / name).write_text(pinned, encoding="utf-8")
    return 0


def unpinned(root: Path) -> list[str]:
    """Return the images of other projects that a file of the deployment names without a digest, as ``file: image``."""
    files = [*(root / name for name in FILES), *sorted((root / "deploy").rglob("*.yaml"))]
    return [
        f"{file.relative_to(root)}: {image}"
        for file in files
        for image in _USED.findall(file.read_text(encoding="utf-8"))
        if image.partition(":")[0] != OWN_IMAGE and not _PINNED.fullmatch(image)
    ]


def _digest(image: str) -> str:
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"`docker buildx imagetools` failed: {error}", file=sys.stderr)
        return ""
    if done.returncode != 0:
        print(done.stderr.strip(), file=sys.stderr)
    found = _DIGEST.fullmatch(done.stdout.strip())
    return found[0] if found else ""
