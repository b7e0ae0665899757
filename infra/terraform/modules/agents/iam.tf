# What an agent does in the bucket: it reads files of all levels, writes L0 files, and writes cluster.json if it is the
# very first process of the cluster. When it starts, it tests whether the store refuses to overwrite an object (below
# probe/, where it also deletes). It cannot delete records: only the janitor in the compactor can.

locals {
  # the second bucket: a directory bucket knows sessions, any other one rights for each request
  directory = [for each in var.bucket.second[*] : each if each.is_directory]
  second    = [for each in var.bucket.second[*] : each if !each.is_directory]
  name_file = [for each in var.bucket.second[*] : "${var.bucket.objects_arn}/second-store.json"]
}

data "aws_iam_policy_document" "task" {
  statement {
    sid       = "ReadRecords"
    actions   = ["s3:GetObject"]
    resources = [for key in ["l0/*", "l1/*", "l2/*", "probe/*", "cluster.json"] : "${var.bucket.objects_arn}/${key}"]
  }

  statement {
    sid       = "WriteRecords"
    actions   = ["s3:PutObject"]
    resources = [for key in ["l0/*", "probe/*", "cluster.json"] : "${var.bucket.objects_arn}/${key}"]
  }

  statement {
    sid       = "CleanUpProbe"
    actions   = ["s3:DeleteObject"]
    resources = ["${var.bucket.objects_arn}/probe/*"]
  }

  # For a missing key, S3 answers 404 only to those who may list the bucket; others get 403. An agent must tell a file
  # that a merge has replaced (404) from one that it may not read (403). This needs the right on the whole bucket,
  # without a condition on s3:prefix.
  statement {
    sid       = "TellGoneFromForbidden"
    actions   = ["s3:ListBucket"]
    resources = [var.bucket.arn]
  }

  # read whenever Postgres refuses the password that the process has: a change needs no restart
  statement {
    sid       = "PasswordOfPostgres"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [var.task.password_arn]
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
      resources = [for key in ["l0/*", "probe/*", "cluster.json"] : "${statement.value.objects_arn}/${key}"]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreWrite"
      actions   = ["s3:PutObject"]
      resources = [for key in ["l0/*", "probe/*", "cluster.json"] : "${statement.value.objects_arn}/${key}"]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreProbe"
      actions   = ["s3:DeleteObject"]
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

  # the file that names the second store
  dynamic "statement" {
    for_each = length(local.name_file) > 0 ? [local.name_file] : []

    content {
      sid       = "NameOfSecondStore"
      actions   = ["s3:GetObject", "s3:PutObject"]
      resources = statement.value
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

  dynamic "statement" {
    for_each = length(var.metrics_workspace_arns) > 0 ? [var.metrics_workspace_arns] : []

    content {
      sid       = "Metrics"
      actions   = ["aps:RemoteWrite"]
      resources = statement.value
    }
  }
}

resource "aws_iam_role" "task" {
  name                 = "${var.name}-agent"
  description          = "Agents of Siltstone ${var.name}"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = var.task.trust_policy

  tags = var.tags
}

resource "aws_iam_role_policy" "task" {
  name   = "agent"
  role   = aws_iam_role.task.id
  policy = data.aws_iam_policy_document.task.json
}
