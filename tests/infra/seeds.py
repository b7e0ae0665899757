"""Mistakes to plant in a copy of the configuration, and the finding that the check must report for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MINIMAL = "examples/minimal"
THREE_ZONES = "examples/three_zones"


@dataclass(frozen=True)
class Seed:
    """`old` stands once in `file` and becomes `new`; then `check` finds `message` at `place`."""

    name: str
    file: str
    old: str
    new: str
    check: str
    message: str
    place: str = ""  # "": in that file
    root: str = MINIMAL

    def sow(self, tree: Path) -> None:
        path = tree / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.file} holds {self.old!r} {text.count(self.old)} times: renew the seed"
        path.write_text(text.replace(self.old, self.new))


# Found by reading the text alone, or by `terraform fmt`.
IN_THE_TEXT = [
    Seed(
        "a file that is not formatted",
        "modules/storage/main.tf",
        '    id     = "abandoned-uploads"',
        '    id = "abandoned-uploads"',
        "fmt",
        "is not formatted",
    ),
    Seed(
        "a variable without a type",
        "variables.tf",
        'variable "deletion_protection" {',
        'variable "untyped" {\n  description = "Anything."\n}\n\nvariable "deletion_protection" {',
        "variables",
        "variable untyped has no type",
    ),
    Seed(
        "a variable without a description",
        "modules/storage/variables.tf",
        '  description = "The VPC that gets a gateway endpoint of S3."\n  type        = string',
        "  type = string",
        "variables",
        "variable vpc_id is not described",
    ),
    Seed(
        "a variable that takes anything",
        "variables.tf",
        'variable "deletion_protection" {',
        'variable "free" {\n  description = "Any text."\n  type        = string\n}\n\nvariable "deletion_protection" {',
        "variables",
        "variable free is not validated",
    ),
    Seed(
        "too many variables",
        "variables.tf",
        'variable "deletion_protection" {',
        "".join(f'variable "one{n}" {{\n  description = "Of many."\n  type        = bool\n}}\n\n' for n in range(9))
        + 'variable "deletion_protection" {',
        "variables",
        "variables at the top: more than 25",
        place=".",
    ),
]

# Found by Terraform, with the provider's schemas.
IN_THE_CONFIGURATION = [
    Seed(
        "a misspelt argument",
        "modules/metadata/main.tf",
        "  publicly_accessible    = false",
        "  publicly_accesible     = false",
        "validate",
        "Unsupported argument",
    ),
    Seed(
        "a missing variable of a module",
        "examples/minimal/main.tf",
        '  client_cidrs = ["10.90.0.0/16"]\n',
        "",
        "validate",
        "Missing required argument",
    ),
    Seed(
        "a missing argument of a block",
        "modules/storage/main.tf",
        "      noncurrent_days = max(var.noncurrent_days, 1)\n",
        "",
        "validate",
        "Missing required argument",
    ),
    Seed(
        "a type of resource that is not there",
        "modules/agents/load_balancer.tf",
        'resource "aws_lb" "bootstrap" {',
        'resource "aws_load_balancer" "bootstrap" {',
        "validate",
        "Invalid resource type",
    ),
    Seed(
        "an output of an attribute that is not there",
        "modules/agents/outputs.tf",
        "${aws_lb.bootstrap.dns_name}",
        "${aws_lb.bootstrap.address}",
        "validate",
        "Unsupported attribute",
    ),
    Seed(
        "a value of the wrong type",
        "modules/metadata/main.tf",
        "  backup_retention_period         = 14",
        '  backup_retention_period         = "a fortnight"',
        "validate",
        "Incorrect attribute value type",
    ),
    Seed(
        "a region that is misspelt",
        "examples/minimal/terraform.tfvars",
        'region              = "eu-central-1"',
        'region              = "eu-cental-1"',
        "plan",
        "image must lie in ECR of var.region (eu-cental-1)",
    ),
    Seed(
        "an image in the registry of another region",
        "examples/minimal/main.tf",
        "  image = var.image",
        '  image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/siltstone@sha256:' + "0123456789abcdef" * 4 + '"',
        "plan",
        "must lie in ECR of the provider's region (eu-central-1)",
        place="main.tf",
    ),
    Seed(
        "a certificate in another region",
        "examples/minimal/terraform.tfvars",
        'listener_secret_arn = "arn:aws:secretsmanager:eu-central-1:',
        'listener_secret_arn = "arn:aws:secretsmanager:us-east-1:',
        "plan",
        "These do not: arn:aws:secretsmanager:us-east-1:",
        place="main.tf",
    ),
    Seed(
        "a setting that there is not",
        "examples/minimal/main.tf",
        "  deletion_protection = false\n",
        '  deletion_protection = false\n\n  settings = { "produce.lingers.ms" = "100" }\n',
        "validate",
        "There is no produce.lingers.ms",
    ),
    Seed(
        "an image that is named by a tag",
        "examples/minimal/terraform.tfvars",
        "siltstone@sha256:" + "0123456789abcdef" * 4,
        "siltstone:latest",
        "plan",
        "image must name a digest",
        place="examples/minimal/main.tf",
    ),
    Seed(
        "clients that need not say who they are",
        "examples/minimal/main.tf",
        '    authentication   = "SCRAM"',
        '    authentication   = "NONE"',
        "validate",
        "listener.authentication must be SCRAM or CERTIFICATE",
    ),
    Seed(
        "a number of instances that only an apply would tell",
        "modules/metadata/security_groups.tf",
        'resource "aws_vpc_security_group_ingress_rule" "database" {',
        'resource "aws_vpc_security_group_ingress_rule" "database" {\n  count = length(aws_db_instance.this[0].arn)\n',
        "plan",
        "Invalid count argument",
    ),
]

# Found by the tests of the configuration itself.
IN_WHAT_FOLLOWS = [
    Seed(
        "a number of compactors that may be a fraction",
        "variables.tf",
        " && floor(var.compactors) == var.compactors",
        "",
        "test",
        "Missing expected failure",
        place="tests/variables.tftest.hcl",
    ),
    Seed(
        "a Postgres that is asked for by another port",
        "modules/metadata/main.tf",
        "  port       = local.creates ? 5432 : var.existing.port",
        "  port       = 5432",
        "test",
        "Test assertion failed",
        place="tests/derived.tftest.hcl",
    ),
]

# Found by a second plan alone.
RESTLESS = Seed(
    "a tag that is another one each time",
    "modules/compactor/main.tf",
    'tags = merge(var.tags, { Name = "${var.name}-compactor" })',
    'tags = merge(var.tags, { Name = "${var.name}-compactor", At = timestamp() })',
    "second plan",
    "each plan would change tags",
    place="module.compactor.aws_security_group.compactor",
)

# Found by the real provider alone: values that its schemas' types allow.
FOR_THE_PROVIDER = [
    Seed(
        "a kind of load balancer that there is not",
        "modules/agents/load_balancer.tf",
        '  load_balancer_type               = "network"',
        '  load_balancer_type               = "net"',
        "validate",
        "expected load_balancer_type to be one of",
    ),
    Seed(
        "a name that AWS keeps to itself",
        "modules/agents/load_balancer.tf",
        '  name                             = "${var.name}-bootstrap"',
        '  name                             = "internal-bootstrap"',
        "validate",
        "cannot begin with",
    ),
    Seed(
        "tags of something that has none",
        "modules/compactor/main.tf",
        '  propagate_tags  = "SERVICE"',
        '  propagate_tags  = "CLUSTER"',
        "validate",
        "expected propagate_tags to be one of",
    ),
    Seed(
        "a trust policy that is no JSON",
        "modules/agents/iam.tf",
        "= var.task.trust_policy",
        '= "ecs-tasks.amazonaws.com"',
        "validate",
        "JSON",
    ),
    Seed(
        "a number of days that CloudWatch does not offer",
        "modules/observability/main.tf",
        "  retention_in_days = var.monitoring.log_retention_days",
        "  retention_in_days = 31",
        "validate",
        "expected retention_in_days to be one of",
    ),
    Seed(
        "an owner of objects that S3 does not know",
        "modules/storage/main.tf",
        '    object_ownership = "BucketOwnerEnforced"',
        '    object_ownership = "BucketOwner"',
        "validate",
        "object_ownership to be one of",
    ),
    Seed(
        "rules of a group that begin with a number",
        "modules/metadata/parameters.tf",
        '  name        = "${var.name}-metadata-postgres${local.major_version}"',
        '  name        = "16-metadata-postgres"',
        "validate",
        "first character of",
    ),
]
