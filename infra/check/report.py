"""The findings of a check, and their text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: its place, what is wrong, and the remedy."""

    check: str
    place: str  # file:line of the tree, or the address of a resource
    message: str
    remedy: str

    def shown(self) -> str:
        return f"{self.place}\n    {self.check}: {self.message}\n    remedy: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the table."""

    check: str
    about: str
    findings: tuple[Finding, ...] = ()
    not_run: str = ""  # the reason, if it was not run
    unjudged: tuple[str, ...] = ()  # rules that could not be judged, and the value that each lacked

    def result(self) -> str:
        if self.not_run:
            return f"{NOT_RUN}: {self.not_run}"
        result = "ok" if not self.findings else f"{len(self.findings)} found"
        return f"{result}, {len(self.unjudged)} NOT JUDGED" if self.unjudged else result


def once(findings: Iterable[Finding]) -> list[Finding]:
    """Each mistake once, though several plans hold it: by its line, whatever the resource's address is in each."""
    first: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        line = finding.place.partition(" (")[0]
        first.setdefault((finding.check, line, finding.message), finding)
    return list(first.values())


def table(outcomes: Iterable[Outcome]) -> str:
    rows = [("CHECK", "OF", "RESULT"), *((one.check, one.about, one.result()) for one in outcomes)]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{row[0]:<{first}}  {row[1]:<{second}}  {row[2]}".rstrip() for row in rows)
