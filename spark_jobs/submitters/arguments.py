"""The arguments of `spark-submit` as Spark understands them: those of `spark.submit.args` and of the other settings,
and `spark-defaults.conf` below both. This only reads, and starts nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.settings.spark import is_local_master
from runtime.settings.table import Settings

CLUSTER, CLIENT = "cluster", "client"
_SWITCHES = frozenset({"--verbose", "-v", "--supervise", "--help", "-h", "--version", "--usage-error"})
"""The options without a value."""
_DEFAULT_LINE = re.compile(r"\s*(spark\.[^\s=:]+)\s*[=:\s]\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class SubmitArguments:
    """Options by their long names ("--master"), and configuration by its names ("spark.master"); the last of each."""

    options: Mapping[str, str]
    confs: Mapping[str, str]

    def value(self, option: str, conf: str) -> str:
        """The value that Spark takes: its option wins over its configuration. "" for none."""
        return self.options.get(option) or self.confs.get(conf, "")

    @property
    def master(self) -> str:
        return self.value("--master", "spark.master")

    @property
    def deploy_mode(self) -> str:
        return self.value("--deploy-mode", "spark.submit.deployMode") or CLIENT


def parse_arguments(words: Sequence[str], defaults: Mapping[str, str] | None = None) -> SubmitArguments:
    """The arguments before the program. `defaults`: the configuration that they win over."""
    options: dict[str, str] = {}
    confs = dict(defaults or {})
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in _SWITCHES or not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if not equals:
            value = rest.pop(0) if rest else ""
        if name in ("--conf", "-c"):
            key, _, text = value.partition("=")
            confs[key.strip()] = text
        else:
            options[name] = value
    return SubmitArguments(options, confs)


def submit_arguments(settings: Settings, defaults: Mapping[str, str] | None = None) -> SubmitArguments:
    """The arguments that these settings give `spark-submit`, without those for the archive."""
    words = [*master_arguments(settings.spark_master), *shlex.split(settings.spark_submit_args)]
    return parse_arguments(words, defaults)


def master_arguments(master: str) -> list[str]:
    """The arguments for a master. A master on this machine is the setting's default and leaves the choice to Spark's
    own configuration.
    """
    return [] if is_local_master(master) else ["--master", master]


def read_defaults(home: Path | None, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The names and values of `spark-defaults.conf`; empty if there is none that can be read."""
    folder = environ.get("SPARK_CONF_DIR") or (str(home / "conf") if home else "")
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8") if folder else ""
    except (OSError, UnicodeDecodeError):
        return {}
    found = [_DEFAULT_LINE.fullmatch(line) for line in text.splitlines()]
    return {each[1]: each[2] for each in found if each is not None}
