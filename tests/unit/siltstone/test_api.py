"""The arguments that `siltstone.read_topic` refuses before it opens anything. tests/integration tests its reading."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import siltstone
from runtime.errors import SiltstoneError
from spark_jobs.scan.contract import BadScanError


@pytest.mark.parametrize("partitions", ["0", b"0", 0, ["0"], [], [True], [0.5]])
def test_partitions_that_are_no_numbers_in_a_list_are_refused_with_what_to_write(partitions: Any) -> None:
    with pytest.raises(BadScanError, match="names no partitions") as refused:
        siltstone.read_topic("t", data="nowhere", partitions=partitions)
    assert "[0, 2]" in refused.value.remedy
    with pytest.raises(BadScanError, match="names no partitions"):
        siltstone.topic_dataset("t", data="nowhere", partitions=partitions)


@pytest.mark.parametrize("columns", ["key", 3, [b"key"]])
def test_columns_that_are_no_names_in_a_list_are_refused_with_what_to_write(columns: Any) -> None:
    with pytest.raises(BadScanError, match="names no columns") as refused:
        siltstone.read_topic("t", data="nowhere", columns=columns)
    assert '["key", "value"]' in refused.value.remedy


def test_numbers_of_numpy_are_partitions() -> None:
    with pytest.raises(SiltstoneError, match="nowhere"):  # the arguments pass; only the place fails
        siltstone.read_topic("t", data="nowhere", partitions=numpy.array([0, 1]))  # type: ignore[arg-type]


def test_the_package_has_the_errors_that_a_reader_of_topics_meets() -> None:
    for name in siltstone.__all__:
        found = getattr(siltstone, name)
        assert name in ("read_topic", "topic_dataset") or issubclass(found, siltstone.SiltstoneError), name
    with pytest.raises(siltstone.BadScanError):
        siltstone.read_topic("t", data="nowhere", batch_rows=0)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        siltstone.nothing  # type: ignore[attr-defined]  # noqa: B018
