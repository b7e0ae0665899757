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
        "a value that the provider does not know",
        "modules/agents/load_balancer.tf",
        '  load_balancer_type               = "network"',
        '  load_balancer_type               = "net"',
        "validate",
        "invalid value for load_balancer_type",
    ),
    Seed(
        "memory that Fargate does not give to one vCPU",
        "modules/compactor/main.tf",
        '  memory                   = "3072"',
        '  memory                   = "3000"',
        "plan",
        "invalid value for memory",
    ),
    Seed(
        "a region that is misspelt",
        "examples/minimal/terraform.tfvars",
        'region = "eu-central-1"',
        'region = "eu-cental-1"',
        "plan",
        "image must lie in ECR of var.region (eu-cental-1)",
    ),
    Seed(
        "an image in the registry of another region",
        "examples/minimal/main.tf",
        "  image = var.image",
        '  image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/siltstone:0.1.0"',
        "plan",
        "must lie in ECR of the provider's region (eu-central-1)",
        place="main.tf",
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

# Found by the policy scan, in what would be made.
IN_WHAT_IT_MAKES = [
    Seed(
        "an open bucket",
        "modules/storage/main.tf",
        "  block_public_policy     = true",
        "  block_public_policy     = false",
        "buckets",
        "the bucket is open to the public: block_public_policy is not true",
    ),
    Seed(
        "a bucket that takes requests without TLS",
        "modules/storage/iam.tf",
        'variable = "aws:SecureTransport"\n      values   = ["false"]',
        'variable = "aws:SecureTransport"\n      values   = ["true"]',
        "buckets",
        "does not refuse requests without TLS",
        place="modules/storage/main.tf",
    ),
    Seed(
        "a bucket policy for everybody",
        "modules/storage/iam.tf",
        "  count = local.creates ? 1 : 0\n\n",
        '  count = local.creates ? 1 : 0\n\n  statement {\n    sid       = "Everybody"\n'
        '    actions   = ["s3:GetObject"]\n    resources = ["${local.bucket_arn}/*"]\n'
        '    principals {\n      type        = "*"\n      identifiers = ["*"]\n    }\n  }\n\n',
        "buckets",
        "statement 'Everybody' of the bucket's policy allows anybody",
        place="modules/storage/main.tf",
        root=THREE_ZONES,
    ),
    Seed(
        "a right to delete everything",
        "modules/agents/iam.tf",
        'resources = ["${var.bucket.objects_arn}/probe/*"]',
        'resources = ["${var.bucket.objects_arn}/*"]',
        "rights",
        "statement 'CleanUpProbe' allows s3:DeleteObject on",
    ),
    Seed(
        "a wildcard that hides a right to delete",
        "modules/agents/iam.tf",
        'sid       = "TellGoneFromForbidden"\n    actions   = ["s3:ListBucket"]',
        'sid       = "TellGoneFromForbidden"\n    actions   = ["s3:ListBucket", "s3:Del*"]',
        "rights",
        "statement 'TellGoneFromForbidden' allows s3:DeleteBucket",
    ),
    Seed(
        "all rights on the bucket",
        "modules/compactor/iam.tf",
        '    sid       = "Read"\n    actions   = ["s3:GetObject"]',
        '    sid       = "Read"\n    actions   = ["s3:*"]',
        "rights",
        "statement 'Read' allows s3:*",
    ),
    Seed(
        "a public load balancer",
        "modules/agents/load_balancer.tf",
        "  internal                         = true #",
        "  internal                         = false #",
        "internal only",
        "the load balancer faces the internet",
    ),
    Seed(
        "an open security group",
        "modules/agents/security_groups.tf",
        '  security_group_id = aws_security_group.agents.id\n  description       = "Kafka clients"',
        '  security_group_id = aws_security_group.agents.id\n  cidr_ipv6         = "::/0"',
        "internal only",
        "the security group lets ::/0 in",
    ),
    Seed(
        "a database on the internet",
        "modules/metadata/main.tf",
        "  publicly_accessible    = false",
        "  publicly_accessible    = true",
        "database",
        "the database is open to the internet",
    ),
    Seed(
        "a database on plain disks",
        "modules/metadata/main.tf",
        "  storage_encrypted     = true",
        "  storage_encrypted     = false",
        "database",
        "the database's storage is not encrypted",
    ),
    Seed(
        "a database in one zone",
        "modules/metadata/main.tf",
        "  multi_az               = var.instance.multi_az",
        "  multi_az               = false",
        "database",
        "the database is in one zone",
        root=THREE_ZONES,
    ),
    Seed(
        "a database without TLS",
        "modules/metadata/parameters.tf",
        '"rds.force_ssl"    = "1"',
        '"rds.force_ssl"    = "0"',
        "database",
        "the database accepts connections without TLS",
    ),
    Seed(
        "a password in the configuration",
        "modules/metadata/main.tf",
        "  manage_master_user_password   = true",
        '  password                      = "hunter2"',
        "database",
        "the database's password is plain text",
    ),
    Seed(
        "a password in a task's environment",
        "main.tf",
        '      SILTSTONE_LOG_FORMAT     = "json"',
        '      SILTSTONE_LOG_FORMAT     = "json"\n      PGPASSWORD               = "hunter2"',
        "tasks",
        "container agent has a secret in plain text: PGPASSWORD",
        place="modules/agents/main.tf",
    ),
    Seed(
        "a setting that Siltstone does not have",
        "modules/cluster/admin.tf",
        "{ name = name, value = var.environment[name] }",
        '{ name = "${name}S", value = var.environment[name] }',
        "tasks",
        "container admin would not start",
    ),
    Seed(
        "an agent that is killed while it drains",
        "modules/agents/main.tf",
        "  stop_timeout_s   = 120",
        "  stop_timeout_s   = 90",
        "tasks",
        "container agent is killed before it has drained",
        root=THREE_ZONES,
    ),
    Seed(
        "a task as root",
        "modules/agents/main.tf",
        "    readonlyRootFilesystem = true",
        '    readonlyRootFilesystem = true\n    user                   = "0:0"',
        "tasks",
        "container agent runs as root",
    ),
    Seed(
        "a compactor without a place for snapshots",
        "modules/compactor/main.tf",
        '    mountPoints            = [{ sourceVolume = local.scratch, containerPath = "/tmp", readOnly = false }]\n',
        "",
        "tasks",
        "container compactor has no /tmp that it can write",
    ),
    Seed(
        "logs for ever",
        "modules/observability/main.tf",
        "  retention_in_days = var.log_retention_days",
        "  retention_in_days = 0",
        "tasks",
        "the log group keeps everything for ever",
    ),
    Seed(
        "a right to delete all but something",
        "modules/cluster/admin.tf",
        'actions   = ["s3:PutObject", "s3:DeleteObject"]\n    resources = [',
        'actions   = ["s3:PutObject", "s3:DeleteObject"]\n    not_resources = [',
        "rights",
        "statement 'Probe' allows s3:DeleteObject on all but",
    ),
    Seed(
        "a right to delete for merges on Spark",
        "modules/spark/iam.tf",
        'actions   = ["s3:AbortMultipartUpload"]',
        'actions   = ["s3:AbortMultipartUpload", "s3:DeleteObject"]',
        "rights",
        "statement 'OwnUploads' allows s3:DeleteObject on",
        root=THREE_ZONES,
    ),
    Seed(
        "a wildcard within the name of an action",
        "modules/compactor/iam.tf",
        'sid       = "FindOrphans"\n    actions   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]',
        'sid       = "FindOrphans"\n    actions   = ["s3:List*"]',
        "rights",
        "statement 'FindOrphans' allows s3:List*",
    ),
    Seed(
        "a wildcard within the name of a bucket",
        "modules/cluster/admin.tf",
        "    resources = [var.bucket.arn]",
        '    resources = ["arn:aws:s3:::s*"]',
        "rights",
        "statement 'List' allows s3:ListBucket",
    ),
    Seed(
        "a role that is passed to whatever service asks",
        "modules/compactor/iam.tf",
        'variable = "iam:PassedToService"',
        'variable = "aws:RequestedRegion"',
        "rights",
        "statement 'RunMergesAs' passes roles too freely",
        root=THREE_ZONES,
    ),
    Seed(
        "a role for tasks of any account",
        "modules/cluster/iam.tf",
        'variable = "aws:SourceAccount"',
        'variable = "aws:RequestedRegion"',
        "rights",
        "can take the role on behalf of any account",
    ),
    Seed(
        "a managed policy on the role itself",
        "modules/compactor/iam.tf",
        "  assume_role_policy = data",
        '  managed_policy_arns = ["arn:aws:iam::aws:policy/AmazonS3FullAccess"]\n  assume_role_policy = data',
        "rights",
        "the role gets AmazonS3FullAccess",
    ),
    Seed(
        "a lifecycle rule for some objects alone",
        "modules/storage/main.tf",
        '    id     = "abandoned-uploads"\n    status = "Enabled"\n\n    filter {}',
        '    id     = "abandoned-uploads"\n    status = "Enabled"\n\n    filter {\n      prefix = "log/l0/"\n    }',
        "buckets",
        "no lifecycle rule removes uploads that were given up",
    ),
    Seed(
        "a lifecycle rule that keeps some versions for ever",
        "modules/storage/main.tf",
        "      noncurrent_days = max(var.noncurrent_days, 1)",
        "      noncurrent_days = max(var.noncurrent_days, 1)\n      newer_noncurrent_versions = 5",
        "buckets",
        "no lifecycle rule removes old versions of deleted objects",
    ),
    Seed(
        "a prefix list that is let in",
        "modules/metadata/security_groups.tf",
        "  referenced_security_group_id = var.task_security_group_id",
        '  prefix_list_id               = "pl-12345678"',
        "internal only",
        "the security group lets pl-12345678 in",
    ),
    Seed(
        "a compactor that is killed while it gives its merge back",
        "modules/compactor/main.tf",
        "    stopTimeout            = 120\n",
        "",
        "tasks",
        "container compactor is killed before it has drained",
    ),
    Seed(
        "a password in a command",
        "modules/cluster/admin.tf",
        'command                = ["migrate"]',
        'command                = ["migrate", "--metadata", "postgresql://u:hunter2@h/db"]',
        "tasks",
        "container admin has a secret in plain text: in its command",
    ),
    Seed(
        "a secret that is the password itself",
        "modules/compactor/main.tf",
        "valueFrom = var.task.secrets[name] }]",
        'valueFrom = "hunter2" }]',
        "tasks",
        "container compactor has a secret in plain text",
    ),
    Seed(
        "a right to write everything",
        "modules/agents/iam.tf",
        'resources = [for key in ["l0/*", "probe/*", "cluster.json"] : "${var.',
        'resources = [for key in ["*"] : "${var.',
        "rights",
        "the role agent may s3:PutObject on *, which is not in the list",
    ),
    Seed(
        "a role for tasks of another service",
        "modules/agents/iam.tf",
        'identifiers = ["ecs-tasks.amazonaws.com"]',
        'identifiers = ["lambda.amazonaws.com"]',
        "rights",
        "the role agent may sts:AssumeRole on lambda.amazonaws.com, which is not in the list",
    ),
    Seed(
        "a right that is gone",
        "modules/compactor/iam.tf",
        'actions   = ["s3:AbortMultipartUpload"]',
        'actions   = ["s3:ListMultipartUploadParts"]',
        "rights",
        "the role compactor may not s3:AbortMultipartUpload on catalog/*, jobs/*, l0/*, l1/*, l2/*, probe/*",
    ),
    Seed(
        "a condition that is gone",
        "modules/cluster/iam.tf",
        'variable = "kms:ViaService"',
        'variable = "aws:RequestedRegion"',
        "rights",
        "kms:Decrypt of the role execution has the conditions aws:RequestedRegion, not kms:ViaService",
        root=THREE_ZONES,
    ),
    Seed(
        "a lifecycle rule that moves objects where no GET reads them",
        "modules/storage/main.tf",
        "    expiration {\n",
        '    transition {\n      days          = 90\n      storage_class = "GLACIER"\n    }\n\n    expiration {\n',
        "buckets",
        "lifecycle rule 'deleted-is-gone' moves objects to GLACIER",
        root=THREE_ZONES,
    ),
    Seed(
        "a bucket policy for another account",
        "modules/storage/iam.tf",
        '  statement {\n    sid       = "TlsOnly"',
        "  statement {\n"
        '    sid       = "Friends"\n'
        '    actions   = ["s3:GetObject"]\n'
        '    resources = ["${local.bucket_arn}/*"]\n\n'
        "    principals {\n"
        '      type        = "AWS"\n'
        '      identifiers = ["arn:aws:iam::999999999999:root"]\n'
        "    }\n"
        "  }\n\n"
        '  statement {\n    sid       = "TlsOnly"',
        "buckets",
        "statement 'Friends' of the bucket's policy allows AWS:arn:aws:iam::999999999999:root",
        place="modules/storage/main.tf",
        root=THREE_ZONES,
    ),
]
