"""Partition specs and sort orders: those of an Iceberg table as our `Layout`, and those of a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from runtime.errors import BugError
from spark_jobs.tables.errors import BadTableError, WrongTableError
from spark_jobs.tables.iceberg.catalog import missing
from spark_jobs.tables.layout.layout import Layout, SectionField, SortField
from spark_jobs.tables.layout.wanted import TIMES, SectionRule, SortRule, WantedLayout

try:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.table import sorting
    from pyiceberg.transforms import IdentityTransform, UnknownTransform, parse_transform
    from pyiceberg.types import StructType
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

VOID = "void"
"""The transform of a field that was taken out of a spec."""
_CONVERT = "_convert_schema_if_needed"
"""pyiceberg's private name, because there is no public one for a schema without ids."""
NAMED_MAX = 50
"""The most columns that an error names."""
_sorting: Any = sorting
_fresh_ids: Any = assign_fresh_schema_ids
_partition_field: Any = PartitionField
_partition_spec: Any = PartitionSpec
_parse_transform: Any = parse_transform

if not hasattr(Catalog, _CONVERT):
    raise BugError(f"this pyiceberg makes no tables with partitions of ours: its Catalog no longer has {_CONVERT}")


class _Column(NamedTuple):
    path: tuple[str, ...]
    type: Any


def layout_of(metadata: Any, name: str) -> Layout:
    """The layout of new files of a table. A sort order by anything but columns is left out. Raises WrongTableError."""
    columns = dict(_columns(metadata.schema().fields))
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    sorts: Sequence[Any] = [] if order is None else order.fields
    followed = all(isinstance(each.transform, IdentityTransform) and each.source_id in columns for each in sorts)
    return Layout(
        spec_id=metadata.default_spec_id,
        sections=tuple(_section_field(each, columns, name) for each in metadata.spec().fields),
        order_id=metadata.default_sort_order_id if followed else 0,
        order=tuple(
            SortField(columns[each.source_id].path, _descends(each), each.null_order == _sorting.NullOrder.NULLS_FIRST)
            for each in (sorts if followed else ())
        ),
        names=tuple(
            {field.name for spec in metadata.partition_specs for field in spec.fields}
            - {field.name for field in metadata.schema().fields}
        ),
    )


def check_layout(metadata: Any, wanted: WantedLayout, name: str) -> None:
    """Check that a table has the layout that is asked for. Raises WrongTableError."""
    columns = dict(_columns(metadata.schema().fields))

    def column(source_id: int) -> str:
        return ".".join(columns[source_id].path) if source_id in columns else "a dropped column"

    fields = [each for each in metadata.spec().fields if str(each.transform) != VOID]
    sections = [SectionRule(column(each.source_id), str(each.transform)).text for each in fields]
    asked = [rule.text for rule in wanted.sections]
    if asked and asked != sections:
        raise _other(name, "partitioned", sections, "--partition-by", asked)
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    ordered: Sequence[Any] = [] if order is None else order.fields
    sorts = [
        SortRule(
            column(each.source_id)
            if isinstance(each.transform, IdentityTransform)
            else f"{each.transform}({column(each.source_id)})",
            _descends(each),
        ).text
        for each in ordered
    ]
    asked = [rule.text for rule in wanted.order]
    if asked and asked != sorts:
        raise _other(name, "sorted", sorts, "--sort-by", asked)


def needed(columns: Any, sampled: Any, wanted: WantedLayout) -> list[Any]:
    """The fields of a sample without which a new table cannot be laid out. Raises BadTableError."""
    added: list[Any] = []
    for rule in (*wanted.sections, *wanted.order):
        if rule.column not in sampled.names:
            option = "--partition-by" if isinstance(rule, SectionRule) else "--sort-by"
            some = [*sampled.names[:NAMED_MAX], *(["..."] if len(sampled.names) > NAMED_MAX else [])]
            raise BadTableError(
                f"{option} {rule.text!r}: there is no column {rule.column!r}; there are {', '.join(some)}",
                remedy="name one of these, or give the columns of the values with --schema",
            )
        if rule.column not in (*columns.names, *(each.name for each in added)):
            added.append(sampled.field(rule.column))
    return added


def new_table(catalog: Any, columns: Any, sampled: Sequence[str], wanted: WantedLayout) -> Mapping[str, Any]:
    """The arguments for a table with these columns (`pyarrow.Schema`) and that layout. `sampled`: names that later
    columns may have. Raises BadTableError."""
    schema = _fresh_ids(getattr(catalog, _CONVERT)(columns))
    fields = {field.name: field for field in schema.fields}
    taken = {*fields, *sampled}
    parts: list[Any] = []
    for rule in wanted.sections:
        source, transform = fields[rule.column], _parse_transform(rule.transform)
        if not transform.can_transform(source.field_type):
            raise BadTableError(
                f"--partition-by {rule.text!r}: the column is of the type {source.field_type}, to which that does"
                " not apply",
                remedy=f"of a text, truncate(10, {rule.column}) is the first 10 characters: the date in a time"
                if rule.transform in TIMES
                else "name a column of another type",
            )
        name = _free(rule.field_name, taken) if rule.field_name != rule.column else rule.column
        taken.add(name)
        parts.append(_partition_field(source.field_id, PARTITION_FIELD_ID_START + len(parts), transform, name))
    sorts: list[Any] = []
    for rule in wanted.order:
        source = fields[rule.column]
        if not source.field_type.is_primitive:
            raise BadTableError(
                f"--sort-by {rule.text!r}: the column is of the type {source.field_type}, which has no order",
                remedy="name a column of another type",
            )
        direction = _sorting.SortDirection.DESC if rule.descending else _sorting.SortDirection.ASC
        sorts.append(_sorting.SortField(source.field_id, IdentityTransform(), direction))
    return {
        "schema": schema,
        "partition_spec": _partition_spec(*parts),
        "sort_order": _sorting.SortOrder(*sorts) if sorts else _sorting.UNSORTED_SORT_ORDER,
    }


def _free(name: str, taken: Iterable[str]) -> str:
    lower = {each.lower() for each in taken}
    while name.lower() in lower:
        name += "_"
    return name


def _other(name: str, how: str, have: Sequence[str], option: str, asked: Sequence[str]) -> WrongTableError:
    return WrongTableError(
        f"{name} is {f'{how} by ' + ', '.join(have) if have else f'not {how}'}, not by {', '.join(asked)}",
        remedy=f"leave out {option}: a table keeps what it was made with; or export to another table",
    )


def _section_field(field: Any, columns: Mapping[int, _Column], name: str) -> SectionField:
    transform: Any = field.transform
    if isinstance(transform, UnknownTransform):
        raise WrongTableError(
            f"{name} is partitioned by {field.transform}, which is not known here", remedy="export to another table"
        )
    column = columns.get(field.source_id)
    if column is None:
        return SectionField((), "int", VOID)
    return SectionField(column.path, str(column.type), str(field.transform))


def _columns(fields: Iterable[Any], above: tuple[str, ...] = ()) -> Iterator[tuple[int, _Column]]:
    """The columns by their ids, those in structs too."""
    for field in fields:
        path = (*above, field.name)
        yield field.field_id, _Column(path, field.field_type)
        if isinstance(field.field_type, StructType):
            inner: Any = field.field_type
            yield from _columns(inner.fields, path)


def _descends(field: Any) -> bool:
    return field.direction == _sorting.SortDirection.DESC
