"""Checks the Kubernetes manifests against the schemas of Kubernetes, which `kubernetes-validate` contains."""

import sys
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes"
VERSIONS = ("1.31", "1.37")
"""The oldest and the newest release that the manifests are checked against."""


def problems(folder: Path = FOLDER) -> list[str]:
    """Return what is wrong with the manifests, one line each; unknown fields are wrong, too."""
    import kubernetes_validate  # compiles a grammar for a second

    found = []
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            place = f"{file.name}: {document.get('kind')} {document.get('metadata', {}).get('name')}"
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(document, version, strict=True)
                except (
                    kubernetes_validate.ValidationError,
                    kubernetes_validate.SchemaNotFoundError,
                ) as error:
                    found.append(f"{place}, Kubernetes {version}: {str(error).splitlines()[0]}")
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "All manifests are valid.")
    sys.exit(1 if lines else 0)
