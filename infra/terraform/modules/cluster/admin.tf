# A task that the operator runs by hand. Its command is `siltstone migrate`, for before the first start and before an
# upgrade. It can be replaced by commands that inspect the cluster (`doctor`, `fsck`, `files list`) or repair its
# metadata (`fsck --adopt`, `rebuild`). The task may read the whole bucket, and write below l1/, where `rebuild` puts
# files with empty extents in place of lost offsets. It may delete only what its own test of the store wrote.

module "client_files" {
  source = "../client_files"
  count  = var.client_secret_arn == null ? 0 : 1

  secret_arn        = var.client_secret_arn
  image             = var.image
  log_configuration = var.log_configuration
}

locals {
  admin_family = "${var.name}-admin"
  client_files = one(module.client_files[*])

  admin_environment = merge(var.environment, { for files in local.client_files[*] : "SILTSTONE_CLIENT_CONFIG" => files.client_config })

  admin_container = merge(try(local.client_files.of_reader, {}), {
    name                   = "admin"
    image                  = var.image
    command                = var.migrate
    essential              = true
    readonlyRootFilesystem = true
    environment            = [for name in sort(keys(local.admin_environment)) : { name = name, value = local.admin_environment[name] }]
    secrets                = [for name in sort(keys(var.secrets)) : { name = name, valueFrom = var.secrets[name] }]
    logConfiguration       = var.log_configuration
  })
}

resource "aws_ecs_task_definition" "admin" {
  family                   = local.admin_family
  network_mode             = "awsvpc"
  requires_compatibilities = [var.launch_type]
  cpu                      = "512"
  memory                   = "1024"
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = aws_iam_role.admin.arn
  container_definitions    = jsonencode(concat([local.admin_container], [for files in local.client_files[*] : files.container]))

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.cpu_architecture
  }

  dynamic "volume" {
    for_each = local.client_files[*]

    content {
      name = volume.value.volume
    }
  }

  tags = var.tags
}

locals {
  # the second bucket: a directory bucket knows sessions, any other one rights for each request
  directory = [for each in var.bucket.second[*] : each if each.is_directory]
  second    = [for each in var.bucket.second[*] : each if !each.is_directory]
}

data "aws_iam_policy_document" "admin" {
  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = ["${var.bucket.objects_arn}/*"]
  }

  statement {
    sid       = "FillHoles"
    actions   = ["s3:PutObject", "s3:AbortMultipartUpload"]
    resources = ["${var.bucket.objects_arn}/l1/*"]
  }

  statement {
    sid       = "List"
    actions   = ["s3:ListBucket", "s3:GetBucketVersioning", "s3:GetLifecycleConfiguration"]
    resources = [var.bucket.arn]
  }

  statement {
    sid       = "Probe"
    actions   = ["s3:PutObject", "s3:DeleteObject"]
    resources = ["${var.bucket.objects_arn}/probe/*"]
  }

  # `migrate` gives the roles of agents and compactors their passwords
  statement {
    sid       = "PasswordsOfRoles"
    actions   = ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"]
    resources = var.role_secret_arns
  }

  dynamic "statement" {
    for_each = local.directory

    content {
      sid       = "SecondStoreSession"
      actions   = ["s3express:CreateSession"]
      resources = [statement.value.arn]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreRead"
      actions   = ["s3:GetObject"]
      resources = ["${statement.value.objects_arn}/*"]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreProbe"
      actions   = ["s3:PutObject", "s3:DeleteObject"]
      resources = [for key in ["probe/*"] : "${statement.value.objects_arn}/${key}"]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreList"
      actions   = ["s3:ListBucket"]
      resources = [statement.value.arn]
    }
  }

  dynamic "statement" {
    for_each = var.bucket.kms_key_arn == null ? [] : [var.bucket.kms_key_arn]

    content {
      sid       = "Encryption"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = [statement.value]
    }
  }
}

resource "aws_iam_role" "admin" {
  name                 = "${var.name}-admin"
  description          = "Commands run by hand on Siltstone ${var.name}"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = data.aws_iam_policy_document.tasks_trust.json

  tags = var.tags
}

resource "aws_iam_role_policy" "admin" {
  name   = "admin"
  role   = aws_iam_role.admin.id
  policy = data.aws_iam_policy_document.admin.json
}
