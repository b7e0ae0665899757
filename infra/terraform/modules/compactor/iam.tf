# The only role that may delete records. No role may delete cluster.json.

locals {
  written = [for key in ["l1/*", "l2/*", "jobs/*", "catalog/*", "probe/*"] : "${var.bucket.objects_arn}/${key}"]
  l0      = "${var.bucket.objects_arn}/l0/*"
  cluster = "${var.bucket.objects_arn}/cluster.json"
}

locals {
  # the second bucket: a directory bucket knows sessions, any other one rights for each request
  directory = [for each in var.bucket.second[*] : each if each.is_directory]
  second    = [for each in var.bucket.second[*] : each if !each.is_directory]
  name_file = [for each in var.bucket.second[*] : "${var.bucket.objects_arn}/second-store.json"]
}

data "aws_iam_policy_document" "task" {
  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = concat(local.written, [local.l0, local.cluster])
  }

  statement {
    sid       = "Write"
    actions   = ["s3:PutObject"]
    resources = concat(local.written, [local.cluster])
  }

  statement {
    sid       = "Janitor"
    actions   = ["s3:DeleteObject"]
    resources = concat(local.written, [local.l0])
  }

  statement {
    sid       = "AbandonedUploads"
    actions   = ["s3:AbortMultipartUpload"]
    resources = concat(local.written, [local.l0])
  }

  # ListBucket also makes S3 answer 404 for a missing key, and not 403.
  statement {
    sid       = "FindOrphans"
    actions   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
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
      resources = [for key in ["probe/*", "cluster.json"] : "${statement.value.objects_arn}/${key}"]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreJanitor"
      actions   = ["s3:DeleteObject", "s3:AbortMultipartUpload"]
      resources = [for key in ["l0/*", "probe/*"] : "${statement.value.objects_arn}/${key}"]
    }
  }

  dynamic "statement" {
    for_each = local.second

    content {
      sid       = "SecondStoreList"
      actions   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
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

  dynamic "statement" {
    for_each = var.spark == null ? [] : [var.spark]

    content {
      sid       = "SubmitMerges"
      actions   = ["emr-serverless:StartJobRun", "emr-serverless:GetApplication"]
      resources = [statement.value.application_arn]
    }
  }

  dynamic "statement" {
    for_each = var.spark == null ? [] : [var.spark]

    content {
      sid       = "FollowMerges"
      actions   = ["emr-serverless:GetJobRun", "emr-serverless:CancelJobRun"]
      resources = ["${statement.value.application_arn}/jobruns/*"]
    }
  }

  dynamic "statement" {
    for_each = var.spark == null ? [] : [var.spark]

    content {
      sid       = "RunMergesAs"
      actions   = ["iam:PassRole"]
      resources = [statement.value.job_role_arn]

      condition {
        test     = "StringEquals"
        variable = "iam:PassedToService"
        values   = ["emr-serverless.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role" "task" {
  name                 = "${var.name}-compactor"
  description          = "Compactors of Siltstone ${var.name}"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = var.task.trust_policy

  tags = var.tags
}

resource "aws_iam_role_policy" "task" {
  name   = "compactor"
  role   = aws_iam_role.task.id
  policy = data.aws_iam_policy_document.task.json
}
