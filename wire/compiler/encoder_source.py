"""Writes the Python source of an encoder for one version of one message.

The encoder appends to a bytearray; a run of fixed-width fields is one `pack`. A `records` field closes the bytearray,
goes uncopied into the list of parts, and opens a new one. The encoder refuses a value that the version cannot carry,
unless its field is ignorable; the text of an error is cut where it is too long. It does not write a tagged field that
has its default (KIP-482).

An encoder that is not in steps gives up, and returns None, as soon as it comes to more elements than a step may have:
before it writes the elements of the array with which there are too many.
"""

from __future__ import annotations

from typing import Any

from wire.compiler.primitives import (
    NUMBER_LAYOUTS,
    STRING_BYTES_MAX,
    cut_text,
    number_bytes,
    octets_parts,
    octets_size,
    uvarint,
)
from wire.compiler.source_text import STEP_ELEMENTS, SourceText, layout
from wire.errors import EncodingError
from wire.schema import (
    Array,
    EncodedElements,
    FieldTable,
    Fixed,
    MessageTable,
    Nested,
    StructTable,
    Variable,
    WireType,
)

_NAMES: dict[str, Any] = {
    "EncodedElements": EncodedElements,
    "cut_text": cut_text,
    "Unfit": EncodingError,
    "number_bytes": number_bytes,
    "octets_parts": octets_parts,
    "octets_size": octets_size,
    "uvarint": uvarint,
}


class EncoderSource(SourceText):
    """The source of `encode(message, out) -> parts` for one step, or of a generator that returns the parts, or with
    `element` the source of `encode(elements, out)` for a list of such structs.
    """

    def __init__(
        self, table: MessageTable, version: int, element: StructTable | None = None, *, in_steps: bool = False
    ) -> None:
        super().__init__(_NAMES, in_steps=in_steps)
        self._is_bounded = element is None and not in_steps
        self._version = version
        self._flexible = version in table.flexible
        self._title = f"{table.struct_class.__name__} v{version}"
        self._run: list[tuple[str, str]] = []
        self._out = "out"
        with self.block("def encode(message, out):"):
            self.line("parts = []")
            self.begin_steps()
            if self._is_bounded:
                self.line(f"room = {STEP_ELEMENTS}")
            if element is None:
                self._struct(table, "message", "")
                self._flush_run()
            else:
                self._elements(Nested(element.struct_class), "message", element.struct_class.__name__)
            self.line("if out: parts.append(out)")
            self.line("return parts")

    def _refuse(self, path: str, what: str) -> None:
        self.line(f"raise Unfit({f'{self._title}: {path} {what}'!r})")

    def _flush_run(self) -> None:
        """Write the fixed-width values that have accumulated."""
        if not self._run:
            return
        pack = self.name(layout(">" + "".join(code for code, _ in self._run)).pack, "pack")
        self.line(f"{self._out} += {pack}({', '.join(value for _, value in self._run)})")
        self._run.clear()

    def _differs(self, row: FieldTable, value: str) -> str:
        """The condition that `value` is not the field's default."""
        if row.default == () and isinstance(row.type, Array):
            return f"({value} is None or {value})" if self._version in row.nullable else value
        if row.default is None:
            if isinstance(row.type, Nested) and self._version not in row.nullable:
                return f"({value} is not None and {value} != {self.name(row.type.struct_class(), 'defaults')})"
            return f"{value} is not None"
        return f"{value} != {self.default(row)}"

    def _struct(self, table: StructTable, source: str, path: str) -> None:
        tagged: list[FieldTable] = []
        for row in table.fields:
            value, field_path = f"{source}.{row.name}", f"{path}.{row.name}"
            if self._version not in row.versions:
                if not row.ignorable:
                    with self.block(f"if {self._differs(row, value)}:"):
                        self._refuse(field_path, "is not in this version")
            elif self._flexible and self._version in row.tagged:
                tagged.append(row)
            else:
                self._value(row.type, value, self._version in row.nullable, field_path)
        if self._flexible:
            self._tagged_fields(tagged, source, path)

    def _tagged_fields(self, rows: list[FieldTable], source: str, path: str) -> None:
        if not rows:
            self._run.append(("B", "0"))
            return
        self._flush_run()
        # KIP-482: ascending, whatever the order of declaration.
        rows = sorted(rows, key=lambda row: row.tag or 0)
        values = {row.name: self.variable() for row in rows}
        for row in rows:
            self.line(f"{values[row.name]} = {source}.{row.name}")
        differences = {row.name: self._differs(row, values[row.name]) for row in rows}
        count, section, outer = self.variable(), self.variable(), self._out
        with self.block(f"if {' or '.join(differences.values())}:"):
            self.line(f"{count} = 0")
            self.line(f"{section} = bytearray()")
            for row in rows:
                with self.block(f"if {differences[row.name]}:"):
                    self._out = self.variable()
                    self.line(f"{self._out} = bytearray()")
                    self._value(row.type, values[row.name], self._version in row.nullable, f"{path}.{row.name}")
                    self._flush_run()
                    self.line(f"{count} += 1")
                    self.line(f"{section} += {uvarint(row.tag or 0)!r} + uvarint(len({self._out})) + {self._out}")
            self._out = outer
            self.line(f"{outer} += uvarint({count}) + {section}")
        self.line(f"else: {outer}.append(0)")

    def _value(self, wire_type: WireType[Any], value: str, nullable: bool, path: str) -> None:
        match wire_type:
            case Fixed(name="uuid"):
                self._run.append(("16s", f"{value}.bytes"))
            case Fixed(code=code):
                self._run.append((code, value))
            case Variable(name=name):
                self._octets(name, value, nullable, path)
            case Array(element):
                self._array(element, value, nullable, path)
            case Nested(struct_class):
                self._nested(struct_class.wire_table, value, nullable, path)
            case _:
                raise TypeError(f"no encoder for {wire_type}")

    def _length(self, length: str, code: str) -> None:
        """Write the length or count that stands in the variable `length`, -1 for null."""
        if not self._flexible:
            self._run.append((code, length))
        self._flush_run()
        if self._flexible:
            self.line(f"if {length} < 127: {self._out}.append({length} + 1)")
            self.line(f"else: {self._out} += uvarint({length} + 1)")

    def _null_check(self, value: str, length: str, empty: str, nullable: bool, path: str) -> None:
        """Write the `if` branch that handles a null; the caller continues with the `else`."""
        with self.block(f"if {value} is None:"):
            if nullable:
                self.line(f"{value} = {empty}")
                self.line(f"{length} = -1")
            else:
                self._refuse(path, "is None")

    def _octets(self, name: str, source: str, nullable: bool, path: str) -> None:
        # A tagged field's size stands before it, so its bytes must be in one place first.
        if name == "records" and self._out != "out":
            raise TypeError(f"{self._title}: {path} is a records field inside a tagged field")
        content, length = self.variable(), self.variable()
        self.line(f"{content} = {source}")
        self._null_check(content, length, "b''", nullable, path)
        with self.block("else:"):
            if name == "string":
                self.line(f"{content} = {content}.encode()")
                self.line(f"{length} = len({content})")
                with self.block(f"if {length} > {STRING_BYTES_MAX}:"):
                    if path.endswith("error_message"):
                        # It may repeat what the client sent, and the answer must not fail by that.
                        self.line(f"{content} = cut_text({content})")
                        self.line(f"{length} = len({content})")
                    else:
                        self._refuse(path, f"is longer than {STRING_BYTES_MAX} bytes")
                self.took_bytes(length)
            else:
                self.line(f"{length} = octets_size({content})")
        self._length(length, "h" if name == "string" else "i")
        if name != "records":
            self.line(f"{self._out} += {content}")
            return
        with self.block(f"if {length} > 0:"):
            # The bytes so far go out before the records, which are not copied; then a new buffer begins.
            self.line("parts.append(out)")
            self.line(f"parts += octets_parts({content})")
            self.line("out = bytearray()")

    def _array(self, element: WireType[Any], source: str, nullable: bool, path: str) -> None:
        items, count = self.variable(), self.variable()
        self.line(f"{items} = {source}")
        self._null_check(items, count, "()", nullable, path)
        # Inside a tagged field there is no list of parts that ready bytes could join.
        may_be_encoded = isinstance(element, Nested) and self._out == "out"
        if may_be_encoded:
            self.line(f"elif type({items}) is EncodedElements: {count} = {items}.count")
        self.line(f"else: {count} = len({items})")
        self._length(count, "i")
        if isinstance(element, Fixed) and element.name != "uuid":
            packs = NUMBER_LAYOUTS[element.code].packs
            self.line(f"if -1 < {count} < {len(packs)}: {self._out} += {self.name(packs, 'packs')}[{count}](*{items})")
            self.line(f"elif {items}: {self._out} += number_bytes({element.code!r}, {items})")
            self.took_bytes(f"len({items}) * {element.size}")
            return
        if may_be_encoded:
            with self.block(f"if type({items}) is EncodedElements:"):
                self.line("parts.append(out)")
                self.line(f"parts += {items}.parts")
                self.line("out = bytearray()")
                self.line(f"{items} = ()")
        if self._is_bounded:
            self.line(f"room -= len({items})")
            self.line("if room < 0: return None")
        self._elements(element, items, path)

    def _elements(self, element: WireType[Any], items: str, path: str) -> None:
        item = self.variable()
        with self.block(f"for {item} in {items}:"):
            self._value(element, item, False, f"{path}[]")
            self._flush_run()
            self.end_element()

    def _nested(self, table: StructTable, value: str, nullable: bool, path: str) -> None:
        if not nullable:
            self._struct(table, value, path)
            return
        self._flush_run()
        with self.block(f"if {value} is None:"):
            self.line(f"{self._out} += b'\\xff'")
        with self.block("else:"):
            self.line(f"{self._out} += b'\\x01'")
            self._struct(table, value, path)
            self._flush_run()
