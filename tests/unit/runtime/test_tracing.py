"""The interface for traces: the current span, and tracing that is off."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from runtime.settings.table import Settings
from runtime.settings.values import SettingsError
from runtime.tracing import CURRENT_SPAN, NO_SPAN, NO_TRACING, child_span, current


class Heard:
    """A span that remembers its calls."""

    def __init__(self, name: str = "root") -> None:
        self.name, self.children, self.errors = name, list[Heard](), list[str]()

    def child(self, name: str, **_: Any) -> Heard:
        self.children.append(Heard(name))
        return self.children[-1]

    def set(self, attributes: Any) -> None: ...

    def rename(self, name: str) -> None:
        self.name = name

    def event(self, name: str, attributes: Any = None) -> None: ...

    def link(self, other: Any) -> None: ...

    def end(self, *, error: str = "") -> None:
        self.errors.append(error)


def test_where_nothing_is_traced_no_part_of_it_is() -> None:
    with child_span("put") as span:
        assert span is None and CURRENT_SPAN.get() is None
    assert not NO_TRACING.on and not NO_TRACING.samples()
    assert NO_TRACING.start("x").child("y") is NO_SPAN


def test_parts_lie_in_each_other_and_end() -> None:
    with current(Heard()) as root, child_span("merge") as merge, child_span("put"):
        pass
    assert [each.name for each in root.children] == ["merge"] and merge is root.children[0]
    assert [each.name for each in root.children[0].children] == ["put"]
    assert root.errors == root.children[0].errors == [""]
    assert CURRENT_SPAN.get() is None


def test_what_ends_with_an_exception_ends_with_its_name_as_the_error() -> None:
    root = Heard()
    with pytest.raises(LookupError), current(root), child_span("put"):
        raise LookupError
    assert root.errors == ["LookupError"] and root.children[0].errors == ["LookupError"]
    assert CURRENT_SPAN.get() is None


@pytest.mark.parametrize("ratio", ["1.5", "-1", "often", "", "1e-3", "nan"])
def test_a_share_that_cannot_be_is_refused(ratio: str) -> None:
    with pytest.raises(SettingsError, match=r"trace\.sample\.ratio"):
        Settings(trace_sample_ratio=ratio)


@pytest.mark.parametrize(("ratio", "share"), [("0", 0.0), ("0.01", 0.01), (".5", 0.5), ("1", 1.0), ("1.0", 1.0)])
def test_a_share_is_read_as_people_write_it(ratio: str, share: float) -> None:
    assert Settings(trace_sample_ratio=ratio).trace_ratio == share


def test_an_agent_without_traces_does_not_load_what_they_take() -> None:
    program = "import sys, siltstone.processes.agent; print([name for name in sys.modules if 'opentelemetry' in name])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"
