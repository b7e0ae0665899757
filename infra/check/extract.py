"""Takes the schemas of the AWS resources that we use out of the generated bindings of CDK for Terraform.

    pip download --no-deps cdktf-cdktf-provider-aws && unzip -d DIR cdktf_cdktf_provider_aws-*.whl
    python -m infra.check.extract DIR

The bindings are generated from the provider's own schema. Their wheel holds a JavaScript package (`_jsii/*.tgz`) in
which every resource has a class: its HCL function names each argument with its type, a `reset` method means that an
argument is optional, and a getter without an argument is computed. The bindings do not tell whether an optional
argument is also computed: for that, a list of our own (`schemas/also-computed.json`) follows the provider's
documentation, for the arguments that our configuration leaves out.

The types to take are read from the configuration (`infra/terraform/**/*.tf`). It writes `infra/check/schemas/aws.json`
whole, or nothing. A developer runs it after using a new resource type; the check itself needs neither the bindings nor
a network.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

HERE: Final = Path(__file__).parent
TERRAFORM: Final = HERE.parent / "terraform"
SCHEMAS: Final = HERE / "schemas" / "aws.json"

Json: TypeAlias = "str | int | list[Json] | dict[str, Json]"

HCL_FUNCTION: Final = re.compile(
    r"^function (\w+)ToHclTerraform\(struct\) \{\n.*?^    const attrs = \{(.*?)^    \};", re.M | re.S
)
RESOURCE_ARGUMENTS: Final = re.compile(
    r"^    synthesizeHclAttributes\(\) \{\n        const attrs = \{(.*?)^        \};", re.M | re.S
)
ARGUMENT: Final = re.compile(
    r"^ +(\w+): \{\n +value: (.*),\n +isBlock: (true|false),\n +type: \"(\w+)\",\n +storageClassType: \"(\w+)\",", re.M
)
CLASS: Final = re.compile(r"^class (\w+) extends cdktf\.(\w+) \{(.*?)^\}", re.M | re.S)
GETTER: Final = re.compile(r"^    get (\w+)\(\) \{\n +return (.*?);\n    \}", re.M | re.S)
ATTRIBUTE_READ: Final = re.compile(r"this\.get(\w+)Attribute\('(\w+)'\)")
MEMBER: Final = re.compile(r"this\.(_\w+) = new (\w+(?:\.\w+)?)\(this, \"(\w+)\"(?:, (true|false))?\)")
RESET: Final = re.compile(r"^    reset(\w+)\(\)", re.M)
OBJECT_LIST: Final = re.compile(r"listMapperHcl\((\w+)ToHclTerraform, false\)")
BLOCK_STRUCT: Final = re.compile(r"(\w+)ToHclTerraform")
USED: Final = re.compile(r'^(resource|data)\s+"(aws_\w+)"', re.M)
VERSION: Final = re.compile(r"hashicorp/aws provider version (\S+)|providers/hashicorp/aws/([\d.]+)")

SCALARS: Final = {"string": "string", "number": "number", "boolean": "bool", "any": "string"}
READS: Final = {
    "String": "string",
    "Number": "number",
    "Boolean": "bool",
    "List": "list(string)",
    "NumberList": "list(number)",
    "StringMap": "map(string)",
    "NumberMap": "map(number)",
    "BooleanMap": "map(bool)",
}
MEMBER_TYPES: Final = {
    "cdktf.StringMap": "map(string)",
    "cdktf.NumberMap": "map(number)",
    "cdktf.BooleanMap": "map(bool)",
    "cdktf.StringListMap": "map(list(string))",
}

ANY_RESOURCE: Final = {"id", "arn", "region", "tags_all", "name_prefix", "owner_id", "account_id"}
ALSO_COMPUTED: Final = HERE / "schemas" / "also-computed.json"
USAGE: Final = "usage: python -m infra.check.extract DIR    (the unpacked wheel)"
NOTICE: Final = (
    "Derived from cdktf-cdktf-provider-aws, Copyright (c) HashiCorp, Inc., "
    "under the Mozilla Public License 2.0: see LICENSE-MPL-2.0 beside this file."
)


class UnknownBindings(Exception):
    """The bindings have an unexpected form. Nothing was written."""


@dataclass(slots=True)
class Source:
    """One resource's JavaScript, taken apart."""

    text: str
    also_computed: dict[str, list[str]]
    structs: dict[str, str] = field(default_factory=dict[str, str])
    classes: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.structs = {name.lower(): body for name, body in HCL_FUNCTION.findall(self.text)}
        self.classes = {name.lower(): body for name, _, body in CLASS.findall(self.text)}


def snake(camel: str) -> str:
    """The Terraform name of a binding's member (`reset` methods carry no other)."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", camel).lower()


def list_type(storage: str, kind: str) -> str:
    """A type expression from the words of the bindings: ("stringList", "set") is `set(string)`."""
    found = re.fullmatch(r"(string|number|boolean|any)(List)?(Map)?(List)?", storage)
    if found is None:
        raise UnknownBindings(f"storage class {storage!r}")
    inner = SCALARS[found[1]]
    if found[2] and found[3]:
        return f"map(list({inner}))"
    if found[3]:
        return f"list(map({inner}))" if found[4] else f"map({inner})"
    return f"{kind}({inner})"


def computed_type(
    source: Source, getter_body: str, members: dict[str, tuple[str, str, bool]]
) -> tuple[str, str] | None:
    """(Terraform name, type) of the attribute that a getter reads; None if it reads none."""
    read = ATTRIBUTE_READ.search(getter_body)
    if read is not None:
        kind = READS[read[1]]
        return read[2], kind.replace("list(", "set(", 1) if "Fn.tolist" in getter_body else kind
    member = re.fullmatch(r"this\.(_\w+)", getter_body.strip())
    if member is None or member[1] not in members:
        return None
    class_name, name, wraps_set = members[member[1]]
    if class_name in MEMBER_TYPES:
        return name, MEMBER_TYPES[class_name]
    if not class_name.endswith("List"):
        return None
    inner = source.classes.get((class_name.removesuffix("List") + "OutputReference").lower())
    if inner is None:
        raise UnknownBindings(f"no class for the elements of {class_name}")
    parts = computed_attributes(source, inner)
    shown = ", ".join(f"{key}={value}" for key, value in sorted(parts.items()))
    return name, f"{'set' if wraps_set else 'list'}(object({{{shown}}}))"


def members_of(body: str) -> dict[str, tuple[str, str, bool]]:
    return {member: (kind, name, wraps == "true") for member, kind, name, wraps in MEMBER.findall(body)}


def computed_attributes(source: Source, body: str) -> dict[str, str]:
    members = members_of(body)
    found = (
        computed_type(source, getter, members) for name, getter in GETTER.findall(body) if not name.endswith("Input")
    )
    return dict(pair for pair in found if pair is not None)


def block_of(source: Source, type_name: str, arguments: str, body: str, *, top: bool) -> dict[str, Json]:
    """The schema of one block: its attributes as [type, use], and its nested blocks."""
    members = {name: (kind, wraps) for kind, name, wraps in members_of(body).values()}
    resets = {snake(name).replace("_", "") for name in RESET.findall(body)}
    also_computed = (ANY_RESOURCE | set(source.also_computed.get(type_name, []))) if top else set[str]()
    attributes: dict[str, Json] = {}
    blocks: dict[str, Json] = {}
    for name, value, is_block, kind, storage in ARGUMENT.findall(arguments):
        required = name.replace("_", "") not in resets
        objects = OBJECT_LIST.search(value)
        if is_block == "true" and objects is not None and objects[1].lower() in source.structs:
            shape = f"{kind}({object_type(source, objects[1])})"
        elif is_block == "true":
            struct = BLOCK_STRUCT.search(value.replace("listMapperHcl(", ""))
            if struct is None:
                raise UnknownBindings(f"block {name} of {type_name}: {value}")
            blocks[name] = nested_block(source, type_name, struct[1], kind, required, members.get(name))
            continue
        else:
            shape = SCALARS[storage] if kind == "simple" else list_type(storage, kind)
        use = "required" if required else "optional computed" if name in also_computed else "optional"
        attributes[name] = [shape, use]
    for name, shape in computed_attributes(source, body).items():
        if name not in blocks:
            attributes.setdefault(name, [shape, "computed"])
    return {"attributes": dict(sorted(attributes.items())), "blocks": dict(sorted(blocks.items()))}


def object_type(source: Source, struct: str) -> str:
    """Some lists of objects are attributes that may be written as blocks: `ingress` of a security group."""
    parts: list[str] = []
    for name, _, is_block, kind, storage in ARGUMENT.findall(source.structs[struct.lower()]):
        if is_block == "true":
            raise UnknownBindings(f"{struct} has a block {name} in an attribute")
        parts.append(f"{name}={SCALARS[storage] if kind == 'simple' else list_type(storage, kind)}")
    return f"object({{{', '.join(sorted(parts))}}})"


def nested_block(
    source: Source,
    type_name: str,
    struct: str,
    kind: str,
    required: bool,
    member: tuple[str, bool] | None,
) -> Json:
    """A nested block. The bindings keep one object where at most one may be given, and a list of them otherwise."""
    body = source.classes.get(f"{struct}OutputReference".lower(), "")
    inner = block_of(source, type_name, source.structs[struct.lower()], body, top=False)
    single = kind == "struct"
    one_at_most = member is not None and member[0].endswith("OutputReference")
    nesting = "single" if single else kind
    return {"nesting": nesting, "min": int(required and not single), "max": int(one_at_most and not single), **inner}


def schema_of(source: Source, type_name: str) -> dict[str, Json]:
    arguments = RESOURCE_ARGUMENTS.search(source.text)
    bodies = [
        body
        for _, base, body in CLASS.findall(source.text)
        if base in ("TerraformResource", "TerraformDataSource", "TerraformProvider")
    ]
    if arguments is None or len(bodies) != 1:
        raise UnknownBindings(f"{type_name} has no class that could be read")
    return block_of(source, type_name, arguments[1], bodies[0], top=True)


def used_types(terraform: Path) -> tuple[set[str], set[str]]:
    """(resource types, data sources) of the configuration."""
    found = [pair for path in terraform.rglob("*.tf") for pair in USED.findall(path.read_text(encoding="utf-8"))]
    resources = {name for kind, name in found if kind == "resource"}
    return resources, {name for kind, name in found if kind == "data"}


def read_source(package: tarfile.TarFile, folder: str) -> Source:
    try:
        member = package.extractfile(f"package/lib/{folder}/index.js")
    except KeyError:
        member = None
    if member is None:
        raise UnknownBindings(f"the bindings have no {folder}: is the type's name right?")
    also_computed = json.loads(ALSO_COMPUTED.read_text(encoding="utf-8"))
    return Source(member.read().decode(), also_computed)


def extract(bindings: Path, resources: set[str], data_sources: set[str]) -> dict[str, Json]:
    """Raises UnknownBindings for a type that is not there or cannot be read."""
    packages = sorted(bindings.rglob("_jsii/*.tgz"))
    if len(packages) != 1:
        raise UnknownBindings(f"{bindings} holds {len(packages)} JavaScript packages (_jsii/*.tgz), not one")
    with tarfile.open(packages[0]) as package:

        def schemas(names: set[str], prefix: str) -> dict[str, Json]:
            return {
                name: schema_of(read_source(package, prefix + name.removeprefix("aws_").replace("_", "-")), name)
                for name in sorted(names)
            }

        provider = schema_of(read_source(package, "provider"), "aws")
        # The provider's endpoint addresses, one per service, are left out: they are a tenth of the file, and serve only
        # tests against other servers.
        provider["blocks"] = {name: block for name, block in items(provider["blocks"]) if name != "endpoints"}
        version = VERSION.search(next(bindings.rglob("METADATA")).read_text(encoding="utf-8"))
        if version is None:
            raise UnknownBindings("the version of the provider is not told")
        return {
            "notice": NOTICE,
            "bindings": packages[0].name.removesuffix(".jsii.tgz"),
            "provider_version": version[1] or version[2],
            "provider": provider,
            "resources": schemas(resources, ""),
            "data_sources": schemas(data_sources, "data-aws-"),
        }


def items(value: Json) -> list[tuple[str, Json]]:
    return list(value.items()) if isinstance(value, dict) else []


def dumped(value: Json, indent: int = 0) -> str:
    """JSON with one attribute a line, so that a change of a schema reads as one."""
    if not isinstance(value, dict):
        return json.dumps(value)
    if not value:
        return "{}"
    pad = "  " * (indent + 1)
    lines = ",\n".join(f"{pad}{json.dumps(key)}: {dumped(item, indent + 1)}" for key, item in value.items())
    return f"{{\n{lines}\n{'  ' * indent}}}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 2
    resources, data_sources = used_types(TERRAFORM)
    try:
        text = dumped(extract(Path(arguments[0]), resources, data_sources)) + "\n"
    except UnknownBindings as error:
        print(f"nothing was written: {error}", file=sys.stderr)  # noqa: T201
        return 1
    SCHEMAS.parent.mkdir(exist_ok=True)
    SCHEMAS.write_text(text, encoding="utf-8")
    print(f"{SCHEMAS.name}: {len(resources)} resources, {len(data_sources)} data sources")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
