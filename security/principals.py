"""The principal of a client with a certificate: the subject as Java prints it, and Kafka's rules that shorten it. Pure.

Operators move their ACLs and `ssl.principal.mapping.rules` from Kafka, so the name must be Java's, character for
character: `X500Principal.getName()`, which is RFC 2253 with habits of its own. Java reads the bytes of most kinds of
strings as UTF-8, even of those that are UTF-16, and prints in hex all but nine well-known types. That is why the name
is read from the certificate's bytes here: a parser's own idea of a text would be another one.

Rules are regular expressions in Java's dialect. Those parts of it are taken that mean the same in Python; a rule
with anything else is refused when it is read, by its position. `tests/fixtures/java_names.json` has the answers of Java
and Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runtime.errors import BadInputError

NAME_CHARACTERS_MAX: Final = 1_024
"""The longest name of a subject: rules run on every handshake."""
RULES_CHARACTERS_MAX: Final = 16_384
DEFAULT: Final = "DEFAULT"

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_STRINGS: Final = {0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E}
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_PADDING: Final = " \r"
_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Java's `.` and `$` treat some of these as ends of a line, and Python's do not."""


class MappingRuleError(BadInputError):
    """The rules of a listener cannot be read."""


class NobodyError(BadInputError):
    """A certificate does not say who its owner is."""


# ---- the name


def distinguished_name(certificate: bytes) -> str:
    """The subject of a certificate in DER. Raises NobodyError."""
    try:
        (_, body, _), *_ = _elements(certificate)
        (_, to_be_signed, _), *_ = _elements(body)
        fields = [each for each in _elements(to_be_signed) if each[0] != _VERSION]
        # serial number, algorithm, issuer, validity, subject
        name = printed_name(fields[4][1])
    except (ValueError, IndexError) as error:
        raise NobodyError("the client's certificate has no subject that can be read") from error
    if not name:
        raise NobodyError("the client's certificate has no subject", remedy="give it a subject, such as CN=ann")
    if len(name) > NAME_CHARACTERS_MAX:
        raise NobodyError(f"the subject of the client's certificate is longer than {NAME_CHARACTERS_MAX} characters")
    if _BREAKS.search(name):
        raise NobodyError(f"the subject of the client's certificate has control characters: {name!r}")
    return name


def printed_name(name: bytes) -> str:
    """The contents of a Name of X.501: a sequence of sets of (type, value). Java prints the last set first."""
    sets: list[str] = []
    for kind, relative, _ in _elements(name):
        if kind != _SET:
            raise ValueError("no set")
        sets.append("+".join(_printed_pair(pair) for _, pair, _ in _elements(relative)))
    return ",".join(reversed(sets))


def _printed_pair(pair: bytes) -> str:
    (kind, oid, _), (value_kind, value, whole) = _elements(pair)
    if kind != _OID:
        raise ValueError("no object identifier")
    dotted = _dotted(oid)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or value_kind not in _STRINGS:
        return f"{keyword or dotted}=#{whole.hex()}"
    escaped = "".join(
        f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each
        for each in value.decode("utf-8", "replace")
    )
    start = len(escaped) - len(escaped.lstrip(_PADDING))
    end = len(escaped.rstrip(_PADDING))
    return f"{keyword}=" + "".join(f"\\{each}" if at < start or at >= end else each for at, each in enumerate(escaped))


def _dotted(oid: bytes) -> str:
    if not oid or oid[-1] & 0x80:
        raise ValueError("an object identifier without an end")
    numbers: list[int] = []
    number = 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(tag, contents, whole) of the elements that DER has put one after the other. Raises ValueError."""
    at = 0
    while at < len(data):
        start = at
        tag, length, at = data[at], data[at + 1], at + 2
        if tag & 0x1F == 0x1F:
            raise ValueError("a tag of several bytes")
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4:
                raise ValueError("a length of an unknown form")
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            raise ValueError("cut short")
        yield tag, data[at : at + length], data[start : at + length]
        at += length


# ---- the rules


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    """None: the name as it is."""
    replacement: Sequence[str | int] = ()
    """Texts, and numbers of groups."""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if not self.pattern.fullmatch(name):
            return None
        # As Java does it: every match is replaced, and that of the whole name may not be the first one.
        result = self.pattern.sub(self._replace, name)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result

    def _replace(self, match: re.Match[str]) -> str:
        return "".join(each if isinstance(each, str) else match.group(each) or "" for each in self.replacement)


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """`ssl.principal.mapping.rules`: the first rule that matches a name gives the principal."""

    _rules: Sequence[_Rule]

    @classmethod
    def of(cls, text: str) -> PrincipalRules:
        """`RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas. Raises MappingRuleError."""
        if len(text) > RULES_CHARACTERS_MAX:
            raise MappingRuleError(
                f"the mapping rules are longer than {RULES_CHARACTERS_MAX} characters", remedy="write fewer"
            )
        rules = tuple(_rules_in(text))
        if not rules:
            raise MappingRuleError(
                "there is no mapping rule, so nobody could come in", remedy=f"write {DEFAULT} for the name as it is"
            )
        return cls(rules)

    def name(self, distinguished: str) -> str:
        """Raises NobodyError."""
        for rule in self._rules:
            if (name := rule.apply(distinguished)) is not None:
                if not name:
                    raise NobodyError(f"a mapping rule makes an empty name of {distinguished}")
                return name
        raise NobodyError(
            f"no mapping rule matches {distinguished}", remedy=f"add a rule for it, or {DEFAULT} as the last one"
        )

    def principal(self, certificate: bytes) -> str:
        """`User:` and the name of the certificate's (DER) owner. Raises NobodyError."""
        return f"User:{self.name(distinguished_name(certificate))}"


_ITEM: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)|)"
    r"\s*(?:,|\Z)"
)


def _rules_in(text: str) -> Iterator[_Rule]:
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            at += len(text) - at - len(text[at:].lstrip())
            raise _malformed(text, at, f"this is neither {DEFAULT} nor RULE:pattern/replacement/[LU]")
        at = item.end()
        if item["default"]:
            yield _Rule(None)
        elif item["pattern"] is not None:
            pattern = _compiled(text, item.start("pattern"), item["pattern"])
            parts = _replacement_parts(text, item.start("replacement"), item["replacement"], pattern)
            yield _Rule(pattern, tuple(parts), item["case"])


_CLASS_ESCAPES: Final = "dDwWsStnrf"
_GROUP: Final = re.compile(r"\((?!\?)|\(\?(?::|=|!|<=|<!|>|[ims]+[:)]|<[A-Za-z][A-Za-z0-9]*>)")


def _compiled(text: str, start: int, pattern: str) -> re.Pattern[str]:
    """A pattern of Java's as Python's. Raises MappingRuleError for what does not mean the same, or nothing."""
    python: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        rest = pattern[at:]
        piece = rest[0]
        if piece == "\\":
            piece = _escape_in(text, start + at, rest, in_class=in_class)
            python.append(f"(?P={piece[3:-1]})" if piece.startswith("\\k") else piece)
        elif in_class:
            if piece == "[" or rest.startswith("&&") or (piece == "]" and pattern[at - 1 : at] in ("[", "^")):
                raise _malformed(text, start + at, "sets within sets are not supported")
            in_class = piece != "]"
            python.append(piece)
        elif piece == "(":
            group = _GROUP.match(rest)
            if group is None:
                raise _malformed(text, start + at, "this kind of group is not supported")
            piece = group.group()
            is_named = piece.startswith("(?<") and piece[3:4].isalpha()
            python.append(f"(?P<{piece[3:]}" if is_named else piece)
        else:
            in_class = piece == "["
            python.append(piece)
        at += len(piece)
    try:
        # ASCII, as Java takes \d, \w, \s and the case of letters unless told otherwise
        return re.compile("".join(python), re.ASCII)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise _malformed(text, start, f"the pattern cannot be read: {error}") from error


def _escape_in(text: str, at: int, rest: str, *, in_class: bool) -> str:
    """The escape at the beginning of `rest`, if Java and Python mean the same by it."""
    letter = rest[1:2]
    if not letter.isascii() or not letter.isalnum() or letter in _CLASS_ESCAPES:
        return rest[:2]
    for form in (r"\\x[0-9a-fA-F]{2}", r"\\u[0-9a-fA-F]{4}"):
        if found := re.match(form, rest):
            return found.group()
    if not in_class and (found := re.match(r"\\(?:[bBA]|[1-9]|k<[A-Za-z][A-Za-z0-9]*>)", rest)):
        return found.group()
    raise _malformed(text, at, f"the escape \\{letter} is not supported")


def _replacement_parts(text: str, start: int, replacement: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    at = 0
    while at < len(replacement):
        piece = replacement[at]
        if piece == "\\":
            yield replacement[at + 1]
            at += 2
        elif piece != "$":
            yield piece
            at += 1
        elif found := re.compile(r"\$\{([A-Za-z][A-Za-z0-9]*)\}").match(replacement, at):
            if found[1] not in pattern.groupindex:
                raise _malformed(text, start + at, f"the pattern has no group {found[1]}")
            yield pattern.groupindex[found[1]]
            at = found.end()
        elif replacement[at + 1 : at + 2].isdecimal() and replacement[at + 1].isascii():
            number, end = int(replacement[at + 1]), at + 2
            if number > pattern.groups:
                if not pattern.groups:
                    raise _malformed(text, start + at, "the pattern has no groups")
                yield "$"  # Kafka takes it as it stands
                at += 1
                continue
            while end < len(replacement) and replacement[end] in "0123456789":
                longer = number * 10 + int(replacement[end])
                if longer > pattern.groups:
                    break
                number, end = longer, end + 1
            yield number
            at = end
        else:
            raise _malformed(text, start + at, "after $ comes the number of a group; a dollar sign is \\$")


def _malformed(text: str, at: int, what: str) -> MappingRuleError:
    shown = text[at : at + 40] + ("…" if len(text) > at + 40 else "")
    return MappingRuleError(
        f"mapping rules, character {at + 1} ('{shown}'): {what}",
        remedy=f"write RULE:pattern/replacement/ with an L or U behind it if wanted, or {DEFAULT}, and commas between",
    )
