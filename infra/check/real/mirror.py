"""The real AWS provider where it is at hand: a filesystem mirror of Terraform, unpacked.

Terraform uses an unpacked mirror in place. A packed one (zip files) it would unpack for each root module, 700 MB each,
so a packed one counts as none.
"""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "INFRA_CHECK_MIRROR"
PLACES: Final = ("/opt/tf-plugins", "/usr/share/terraform/plugins", "~/.terraform.d/plugins")
PROVIDER: Final = "registry.terraform.io/hashicorp/aws"
SERIES: Final = (5, 6)  # the major versions that infra/terraform takes
VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class NoProvider(Exception):
    """The real provider is not at hand, or lacks what is asked of it."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A folder with the provider's program, and the version that Terraform takes from it."""

    folder: Path
    version: str

    def settings(self, scratch: Path) -> dict[str, str]:
        """The environment that makes Terraform take providers from here alone; its file lies in `scratch`."""
        path = scratch / "mirror.terraformrc"
        folder = json.dumps(str(self.folder))
        path.write_text(f"provider_installation {{\n  filesystem_mirror {{\n    path = {folder}\n  }}\n}}\n")
        return {"TF_CLI_CONFIG_FILE": str(path)}


def mirror_in(folder: Path) -> Mirror | None:
    """The mirror in this folder; None if it has no unpacked provider for this machine."""
    system = f"{platform.system().lower()}_{ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())}"
    programs = (folder / PROVIDER).glob(f"*/{system}/terraform-provider-aws*")
    found = {tuple(map(int, match.groups())) for program in programs if (match := VERSION.fullmatch(program.parts[-3]))}
    usable = [version for version in found if version[0] in SERIES]
    return Mirror(folder.resolve(), ".".join(map(str, max(usable)))) if usable else None


def mirror_at_hand(folder: Path | None = None) -> Mirror | None:
    """The mirror in this folder, or in INFRA_CHECK_MIRROR, or else in a usual place. An empty variable means none.

    Raises NoProvider if a folder that somebody named has none.
    """
    named = os.environ.get(VARIABLE) if folder is None else str(folder)
    if named is not None:
        found = mirror_in(Path(named)) if named else None
        if named and found is None:
            raise NoProvider(f"{named} holds no unpacked {PROVIDER}, 5.x or 6.x, for this machine")
        return found
    return next(filter(None, (mirror_in(Path(place).expanduser()) for place in PLACES)), None)
