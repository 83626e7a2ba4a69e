"""`openapi`: writes the OpenAPI document of the API."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from detection.api.app import api


class Command(BaseCommand):
    """Write the OpenAPI document to a file, or print it."""

    help = (
        "Write the OpenAPI document. After a change of the API: python3 manage.py openapi docs/openapi.json"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("path", type=Path, nargs="?", help="file to write; prints the document if absent")

    def handle(self, *_: object, **options: Any) -> None:
        """Write the document."""
        text = json.dumps(api.get_openapi_schema(), indent=2, ensure_ascii=False)
        if options["path"]:
            options["path"].write_text(f"{text}\n", encoding="utf-8")
        else:
            self.stdout.write(text)
