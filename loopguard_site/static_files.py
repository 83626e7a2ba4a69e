"""Static files as they are served: the style sheets of the console as one file, without comments and white space.

A page then fetches 14 KB in one request, instead of 25 KB in fourteen. Only `collectstatic` makes the file; tests serve
the sheets as they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import rcssmin
from django.conf import settings
from django.core.files.base import ContentFile
from whitenoise.storage import CompressedManifestStaticFilesStorage

BUNDLE: Final = "css/console.css"


class BundledStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # has no types
    """Files under names with digests, compressed, and the style sheets of the console as one."""

    style_sheets = (BUNDLE,)

    def post_process(self, paths: dict[str, Any], dry_run: bool = False, **options: Any) -> Iterator[Any]:
        """Make the one style sheet before all files get their names."""
        if not dry_run and all(name in paths for name in settings.STYLE_SHEETS):
            parts = []
            for name in settings.STYLE_SHEETS:
                storage, path = paths[name]
                with storage.open(path) as file:
                    parts.append(file.read().decode())
            self.delete(BUNDLE)
            self._save(BUNDLE, ContentFile(rcssmin.cssmin("\n".join(parts)).encode()))
            paths[BUNDLE] = (self, BUNDLE)
        yield from super().post_process(paths, dry_run, **options)
