"""The parts of the stand-in for the AWS provider that can be tested without Terraform."""

from __future__ import annotations

import json

import pytest

from infra.check import extract, iam
from infra.check.stand_in import arguments, plausible
from infra.check.stand_in.schema import Attribute, Block, NestedBlock, TypeReader, type_json
from infra.check.stand_in.values import UNKNOWN, DamagedMessage, Value, decoded, encoded, message, parsed, text_field

# The way the bindings write a resource, cut down to one of each kind.
BINDINGS = """
function thingRuleToHclTerraform(struct) {
    const attrs = {
        days: {
            value: cdktf.numberToHclTerraform(struct.days),
            isBlock: false,
            type: "simple",
            storageClassType: "number",
        },
    };
}
class ThingRuleOutputReference extends cdktf.ComplexObject {
    get days() {
        return this.getNumberAttribute('days');
    }
}
class ThingSecretOutputReference extends cdktf.ComplexObject {
    get secretArn() {
        return this.getStringAttribute('secret_arn');
    }
}
class Thing extends cdktf.TerraformResource {
    constructor() {
        this._secret = new ThingSecretList(this, "secret", false);
        this._rule = new ThingRuleOutputReference(this, "rule");
    }
    get secret() {
        return this._secret;
    }
    get names() {
        return cdktf.Fn.tolist(this.getListAttribute('names'));
    }
    resetNames() {
    }
    resetName() {
    }
    synthesizeHclAttributes() {
        const attrs = {
            names: {
                value: cdktf.listMapperHcl(cdktf.stringToHclTerraform, false)(this._names),
                isBlock: false,
                type: "set",
                storageClassType: "stringList",
            },
            name: {
                value: cdktf.stringToHclTerraform(this._name),
                isBlock: false,
                type: "simple",
                storageClassType: "string",
            },
            size: {
                value: cdktf.numberToHclTerraform(this._size),
                isBlock: false,
                type: "simple",
                storageClassType: "number",
            },
            rule: {
                value: thingRuleToHclTerraform(this._rule.internalValue),
                isBlock: true,
                type: "list",
                storageClassType: "ThingRuleList",
            },
        };
    }
}
"""


def test_a_schema_is_read_out_of_bindings() -> None:
    schema = extract.schema_of(extract.Source(BINDINGS, {"aws_thing": ["name"]}), "aws_thing")
    assert schema == {
        "attributes": {
            "name": ["string", "optional computed"],
            "names": ["set(string)", "optional"],
            "secret": ["list(object({secret_arn=string}))", "computed"],
            "size": ["number", "required"],
        },
        "blocks": {
            "rule": {
                "nesting": "list",
                "min": 1,
                "max": 1,
                "attributes": {"days": ["number", "required"]},
                "blocks": {},
            }
        },
    }


def test_bindings_that_are_written_otherwise_are_refused() -> None:
    with pytest.raises(extract.UnknownBindings, match="aws_thing"):
        extract.schema_of(extract.Source("class Thing {}", {}), "aws_thing")


def test_types_are_read_and_written_in_json() -> None:
    kind = TypeReader("set(object({name=string, values=list(string)}))").read()
    assert type_json(kind) == ["set", ["object", {"name": "string", "values": ["list", "string"]}]]


@pytest.mark.parametrize("value", [None, True, 5, 2.5, "text", ["a", UNKNOWN], {"a": {"b": [1, None]}}], ids=str)
def test_values_go_both_ways(value: Value) -> None:
    assert decoded(encoded(value)) == value


def test_messages_go_both_ways_and_cut_ones_are_refused() -> None:
    sent = message((1, "name"), (2, 300), (3, False), (4, b""))
    fields = parsed(sent)
    assert text_field(fields, 1) == "name" and fields[2] == [300] and 3 not in fields and fields[4] == [b""]
    with pytest.raises(DamagedMessage):
        parsed(sent[:3])


def test_what_is_computed_is_unknown_in_a_plan_and_there_after_an_apply() -> None:
    # given a bucket with a computed attribute at the top and one in a block
    computed = Attribute("string", required=False, optional=False, computed=True)
    given = Attribute("string", required=False, optional=True, computed=False)
    block = Block({"arn": computed, "bucket": given}, {"rule": NestedBlock("list", 0, 0, Block({"id": computed}, {}))})
    # when it is planned, then applied
    plan = plausible.planned(block, {"arn": None, "bucket": "records", "rule": [{"id": None}]})
    state = plausible.applied(block, "aws_s3_bucket", plan)
    # then
    assert plan == {"arn": UNKNOWN, "bucket": "records", "rule": [{"id": UNKNOWN}]}
    assert state["arn"] == "arn:aws:s3:::records"
    assert plausible.known(state)


def test_a_policy_document_is_what_the_provider_makes_of_it() -> None:
    condition: Value = {"test": "Bool", "variable": "aws:SecureTransport", "values": ["false"]}
    statement: Value = {
        "sid": "TlsOnly",
        "effect": "Deny",
        "actions": ["s3:*"],
        "resources": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"],
        "principals": [{"type": "*", "identifiers": ["*"]}],
        "condition": [condition],
    }
    document = json.loads(iam.rendered({"statement": [statement]}))
    assert document == {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "TlsOnly",
                "Effect": "Deny",
                "Action": "s3:*",
                "Resource": ["arn:aws:s3:::b/*", "arn:aws:s3:::b"],
                "Principal": "*",
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }


@pytest.mark.parametrize(
    ("pattern", "action", "covered"),
    [
        ("s3:Delete*", "s3:DeleteObject", True),
        ("S3:deleteobject", "s3:DeleteObject", True),
        ("s3:DeleteObject?ersion", "s3:DeleteObjectVersion", True),
        ("*", "s3:DeleteObject", True),
        ("s3:GetObject", "s3:DeleteObject", False),
        ("s3:[D]eleteObject", "s3:DeleteObject", False),
    ],
)
def test_an_action_is_covered_as_iam_matches_it(pattern: str, action: str, covered: bool) -> None:
    assert iam.covers(pattern, action) is covered


@pytest.mark.parametrize(
    ("type_name", "config", "attribute"),
    [
        ("aws_lb", {"name": "internal-x"}, "name"),
        ("aws_lb_target_group", {"health_check": [{"protocol": "ICMP"}]}, "health_check"),
        ("aws_ecs_service", {"task_definition_arn": "siltstone:1"}, "task_definition_arn"),
        ("aws_subnet", {"cidr_block": "10.0.0.1/16"}, "cidr_block"),
        ("aws_iam_role", {"assume_role_policy": "{"}, "assume_role_policy"),
        ("aws_cloudwatch_log_group", {"retention_in_days": 31}, "retention_in_days"),
        ("aws_ecs_task_definition", {"requires_compatibilities": ["FARGATE"], "cpu": "1000", "memory": "2048"}, "cpu"),
    ],
)
def test_values_that_the_provider_refuses_are_refused(type_name: str, config: dict[str, Value], attribute: str) -> None:
    assert [mistake.attribute for mistake in arguments.mistakes(type_name, config)] == [attribute]


def test_what_is_not_known_yet_is_not_judged() -> None:
    config: dict[str, Value] = {"requires_compatibilities": UNKNOWN, "cpu": UNKNOWN, "memory": "1", "role_arn": UNKNOWN}
    assert arguments.mistakes("aws_ecs_task_definition", config) == []
