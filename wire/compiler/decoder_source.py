"""Writes the Python source of a decoder for one version of one message.

The decoder is one function: nested structs and arrays are in line, and a run of fixed-width fields is one
`unpack_from`. Its rules:

- Compare a length or count with the bytes that are left before slicing or looping by it. Multiply a count by the least
  size of an element, so that no loop outlives its bytes.
- Count the elements of a request against a budget (`elements_max` of its table), unknown tagged fields too.
- Check slices, but leave a message that ends early to `unpack_from` and indexing; `wire.compiler.compile` translates
  their errors.
- Skip unknown tagged fields; a known one must fill its size exactly (KIP-482).
- Make an object without its `__init__`, because every field is assigned here.
- In steps, the function is a generator that pauses after each STEP_ELEMENTS elements, or as much work on fewer.
"""

from __future__ import annotations

from typing import Any

from wire.compiler.primitives import (
    NUMBER_LAYOUTS,
    STRING_BYTES_MAX,
    read_compact_length,
    read_numbers,
    read_tag,
    read_uvarint,
    skip_tagged_fields,
    uuid_from,
)
from wire.compiler.source_text import SourceText, layout
from wire.errors import MalformedMessageError
from wire.schema import Array, FieldTable, Fixed, MessageTable, Nested, StructTable, Variable, WireType

_NAMES: dict[str, Any] = {
    "Malformed": MalformedMessageError,
    "new": object.__new__,
    "read_compact_length": read_compact_length,
    "read_numbers": read_numbers,
    "read_tag": read_tag,
    "read_uvarint": read_uvarint,
    "skip_tagged_fields": skip_tagged_fields,
    "uuid_from": uuid_from,
}


def least_size(wire_type: WireType[Any], version: int, flexible: bool) -> int:
    """The fewest bytes that an element of an array can take; at least 1."""
    match wire_type:
        case Fixed(size=size):
            return size
        case Variable(name="string"):
            return 1 if flexible else 2
        # Counted through: the product of count and least size then bounds the loop by the bytes at hand.
        case Nested(struct_class):
            size = 1 if flexible else 0
            for row in struct_class.wire_table.fields:
                if version not in row.versions or (flexible and version in row.tagged):
                    continue
                null_struct = isinstance(row.type, Nested) and version in row.nullable
                size += 1 if null_struct else least_size(row.type, version, flexible)
            return max(1, size)
        case _:
            return 1 if flexible else 4


class DecoderSource(SourceText):
    """The source of `decode(buffer, position) -> (message, position after it)`, or of a generator that returns them."""

    def __init__(self, table: MessageTable, version: int, *, in_steps: bool = False) -> None:
        super().__init__(_NAMES, in_steps=in_steps)
        self._version = version
        self._flexible = version in table.flexible
        self._elements_max = table.elements_max
        self._is_request = table.kind == "request"
        self._title = f"{table.struct_class.__name__} v{version}"
        self._run: list[tuple[str, str]] = []
        self._uuids: list[str] = []
        with self.block("def decode(buffer, position):"):
            self.line("size = len(buffer)")
            self.line(f"budget = {self._elements_max}")
            self.begin_steps()
            made = self._struct(table, "")
            self.line(f"return {made}, position")

    def _refuse(self, path: str, what: str) -> None:
        self.line(f"raise Malformed({f'{self._title}: {path} {what}'!r})")

    def _spend(self, count: str) -> None:
        self.line(f"budget -= {count}")
        self.line(
            f"if budget < 0: raise Malformed('{self._title}: "
            f"more than {self._elements_max} elements and tagged fields')"
        )

    def _flush_run(self) -> None:
        """Write the read of the fixed-width values that have accumulated."""
        if not self._run:
            return
        form = layout(">" + "".join(code for code, _ in self._run))
        unpack = self.name(form.unpack_from, "unpack")
        self.line(f"{', '.join(variable for _, variable in self._run)}, = {unpack}(buffer, position)")
        self.line(f"position += {form.size}")
        for variable in self._uuids:
            self.line(f"{variable} = uuid_from({variable})")
        self._run.clear()
        self._uuids.clear()

    def _struct(self, table: StructTable, path: str) -> str:
        """Read a struct; returns the variable that holds it."""
        values: dict[str, str] = {}
        tagged: list[FieldTable] = []
        for row in table.fields:
            if self._version not in row.versions:
                values[row.name] = self.default(row)
            elif self._flexible and self._version in row.tagged:
                tagged.append(row)
                values[row.name] = self.variable()
            else:
                values[row.name] = self._value(row.type, self._version in row.nullable, f"{path}.{row.name}")
        self._flush_run()
        if self._flexible:
            self._tagged_fields(tagged, values, path)
        made = self.variable()
        # `object.__new__`: a dataclass's `__init__` would set every field twice.
        self.line(f"{made} = new({self.name(table.struct_class, table.struct_class.__name__)})")
        for name, value in values.items():
            self.line(f"{made}.{name} = {value}")
        return made

    def _tagged_fields(self, rows: list[FieldTable], values: dict[str, str], path: str) -> None:
        if not rows:
            self._unknown_tagged_fields()
            return
        for row in rows:
            self.line(f"{values[row.name]} = {self.default(row)}")
        count, index, tag, stop = (self.variable() for _ in range(4))
        self.line(f"{count} = buffer[position]")
        self.line(f"if not {count}: position += 1")
        with self.block("else:"):
            self.line(f"{count}, position = read_uvarint(buffer, position)")
            self._spend(count)
            self.line(f"{tag} = -1")
            with self.block(f"for {index} in range({count}):"):
                self.line(f"{tag}, position, {stop} = read_tag(buffer, position, {tag})")
                for number, row in enumerate(rows):
                    with self.block(f"{'elif' if number else 'if'} {tag} == {row.tag}:"):
                        self._tagged_field(row, values[row.name], stop, f"{path}.{row.name}")
                # A tag that this version does not know is stepped over (KIP-482).
                self.line(f"else: position = {stop}")
                self.end_element()

    def _unknown_tagged_fields(self) -> None:
        with self.block("if buffer[position]:"):
            # It spends the budget, so the difference is what it did.
            self.took("budget")
            self.line("position, budget = skip_tagged_fields(buffer, position, budget)")
            self.took("-budget")
        self.line("else: position += 1")

    def _tagged_field(self, row: FieldTable, target: str, stop: str, path: str) -> None:
        value = self._value(row.type, self._version in row.nullable, path)
        self._flush_run()
        self.line(f"{target} = {value}")
        with self.block(f"if position != {stop}:"):
            self._refuse(path, "does not fill its tagged field")

    def _value(self, wire_type: WireType[Any], nullable: bool, path: str) -> str:
        """Read one value; returns its variable, which is assigned no later than the next `_flush_run`."""
        match wire_type:
            case Fixed(name=name, code=code):
                variable = self.variable()
                self._run.append((code, variable))
                if name == "uuid":
                    self._uuids.append(variable)
                return variable
            case Variable(name=name):
                return self._octets(name, nullable, path)
            case Array(element):
                return self._array(element, nullable, path)
            case Nested(struct_class):
                return self._nested(struct_class.wire_table, nullable, path)
            case _:
                raise TypeError(f"no decoder for {wire_type}")

    def _length(self, code: str) -> str:
        """Read a length or count, -1 for null; returns its variable."""
        variable = self.variable()
        if self._flexible:
            self._flush_run()
            self.line(f"{variable} = buffer[position] - 1")
            self.line("position += 1")
            # One byte holds lengths up to 126; 127 and more means that the varint goes on.
            self.line(f"if {variable} > 126: {variable}, position = read_compact_length(buffer, position - 1)")
        else:
            self._run.append((code, variable))
            self._flush_run()
        return variable

    def _null_check(self, length: str, value: str, nullable: bool, path: str) -> None:
        """Write the `if` branch that handles a null; the caller continues with the `else`."""
        with self.block(f"if {length} < 0:"):
            if not nullable:
                self._refuse(path, "is null or has a negative length")
                return
            if not self._flexible:
                with self.block(f"if {length} < -1:"):
                    self._refuse(path, "has a negative length")
            self.line(f"{value} = None")

    def _octets(self, name: str, nullable: bool, path: str) -> str:
        value, stop = self.variable(), self.variable()
        length = self._length("h" if name == "string" else "i")
        self._null_check(length, value, nullable, path)
        with self.block("else:"):
            self.line(f"{stop} = position + {length}")
            too_long = f" or {length} > {STRING_BYTES_MAX}" if name == "string" and self._flexible else ""
            with self.block(f"if {stop} > size{too_long}:"):
                self._refuse(path, "is longer than it can be")
            taken = f"buffer[position:{stop}]"
            self.line(f"{value} = str({taken}, 'utf-8')" if name == "string" else f"{value} = {taken}")
            self.line(f"position = {stop}")
            if name == "string":
                self.took_bytes(length)
        return value

    def _array(self, element: WireType[Any], nullable: bool, path: str) -> str:
        value = self.variable()
        count = self._length("i")
        self._null_check(count, value, nullable, path)
        element_size = least_size(element, self._version, self._flexible)
        with self.block("else:"):
            with self.block(f"if {count} * {element_size} > size - position:"):
                self._refuse(path, "has more elements than the message has bytes")
            # Responses come from servers we chose to ask; only strangers' requests need the bound.
            if self._is_request:
                self._spend(count)
            if isinstance(element, Fixed) and element.name != "uuid":
                self._numbers(element, value, count)
                return value
            self.line(f"{value} = []")
            with self.block(f"for {self.variable()} in range({count}):"):
                item = self._value(element, False, f"{path}[]")
                self._flush_run()
                self.line(f"{value}.append({item})")
                self.end_element()
        return value

    def _numbers(self, element: Fixed[Any], value: str, count: str) -> None:
        layouts = NUMBER_LAYOUTS[element.code]
        unpacks = self.name(layouts.unpacks, "unpacks")
        self.line(f"if {count} < {len(layouts.unpacks)}: {value} = list({unpacks}[{count}](buffer, position))")
        self.line(f"else: {value} = read_numbers({element.code!r}, {count}, buffer, position)")
        self.line(f"position += {count} * {element.size}")
        self.took_bytes(f"{count} * {element.size}")

    def _nested(self, table: StructTable, nullable: bool, path: str) -> str:
        if not nullable:
            return self._struct(table, path)
        present, value = self.variable(), self.variable()
        self._run.append(("b", present))
        self._flush_run()
        self.line(f"{value} = None")
        with self.block(f"if {present} >= 0:"):
            self.line(f"{value} = {self._struct(table, path)}")
        return value
