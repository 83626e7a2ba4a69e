"""Checks the Kubernetes manifests against schemas: those of Kubernetes itself, which `kubernetes-validate` contains.

It has none of the Gateway API and of Kustomize. Theirs are here, with the fields that the manifests use and no others.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes"
VERSIONS = ("1.31", "1.37")
"""The oldest and the newest release that the manifests are checked against."""


def _object(required: str, **properties: object) -> dict[str, object]:
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(of: dict[str, object]) -> dict[str, object]:
    return {"type": "array", "items": of, "minItems": 1}


_TEXT: dict[str, object] = {"type": "string", "minLength": 1}
_NAME: dict[str, object] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_DURATION: dict[str, object] = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_PATH = {
    **_object("type value", type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value=_TEXT),
    "if": {"properties": {"type": {"enum": ["Exact", "PathPrefix"]}}},
    "then": {"properties": {"value": {"pattern": "^/[^?#]*$"}}},
}
_RULE = _object(
    "matches backendRefs",
    matches=_list(_object("path", path=_PATH)),
    timeouts=_object("request", request=_DURATION),
    backendRefs=_list(_object("name port", name=_NAME, port={"type": "integer", "minimum": 1})),
)
SCHEMAS = {
    # As of the Gateway API v1.6, whose v1 has had these fields since its release 1.2.
    "HTTPRoute": _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": "gateway.networking.k8s.io/v1"},
        kind=_TEXT,
        metadata=_object("name labels", name=_NAME, labels={"type": "object"}),
        spec=_object(
            "parentRefs hostnames rules",
            parentRefs=_list(_object("name", name=_NAME, namespace=_NAME)),
            hostnames=_list(_TEXT),
            rules=_list(_RULE),
        ),
    ),
    "Kustomization": _object(
        "apiVersion kind resources",
        apiVersion={"const": "kustomize.config.k8s.io/v1beta1"},
        kind=_TEXT,
        resources=_list(_TEXT),
    ),
}


def problems(folder: Path = FOLDER) -> list[str]:
    """Return what is wrong with the manifests, one line each; unknown fields are wrong, too."""
    found = []
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            place = (
                f"{file.name}: {document.get('kind')} {document.get('metadata', {}).get('name', '')}".strip()
            )
            found += [f"{place}, {problem}" for problem in _problems_of(document)]
    return found


def _problems_of(document: dict[str, object]) -> Iterator[str]:
    import jsonschema  # type: ignore[import-untyped]
    import kubernetes_validate  # compiles a grammar for a second

    kind = str(document.get("kind"))
    if kind in SCHEMAS:
        for error in jsonschema.Draft7Validator(SCHEMAS[kind]).iter_errors(document):
            yield f"{error.json_path}: {error.message}"
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            yield f"Kubernetes {version}: there is no schema of this kind"
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {str(error).splitlines()[0]}"


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "All manifests are valid.")
    sys.exit(1 if lines else 0)
