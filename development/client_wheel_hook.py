"""Build hook of the server's wheel: builds the client's wheel and packs it, for the Connect page.

Runs in the build environment, which has hatchling and nothing else.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder


class ClientWheelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the client's wheel to the files of the server's."""

    _folder = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the client's wheel, unless the server is installed in place."""
        if version == "editable":
            return
        self._folder = tempfile.mkdtemp(prefix="loopguard-client-wheel-")
        builder = WheelBuilder(str(Path(self.root) / "clients" / "python"))
        for wheel in builder.build(directory=self._folder, versions=["standard"]):
            build_data["force_include"][wheel] = f"loopguard_site/assets/client/{Path(wheel).name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built apart."""
        shutil.rmtree(self._folder, ignore_errors=True)
