# Where alarms go: the topics of the operator, or one that is made here.

data "aws_caller_identity" "current" {}

locals {
  makes_topic      = length(var.monitoring.alarm_topic_arns) == 0
  alarm_topic_arns = local.makes_topic ? [aws_sns_topic.alarms[0].arn] : var.monitoring.alarm_topic_arns
}

resource "aws_sns_topic" "alarms" {
  count = local.makes_topic ? 1 : 0

  name = "${var.name}-alarms"

  tags = var.tags
}

resource "aws_sns_topic_subscription" "alarms" {
  for_each = local.makes_topic ? toset(var.monitoring.alarm_emails) : toset([])

  topic_arn = aws_sns_topic.alarms[0].arn
  protocol  = "email"
  endpoint  = each.key
}

data "aws_iam_policy_document" "topic" {
  count = local.makes_topic ? 1 : 0

  statement {
    sid       = "Alarms"
    actions   = ["sns:Publish"]
    resources = [aws_sns_topic.alarms[0].arn]

    principals {
      type        = "Service"
      identifiers = ["aps.amazonaws.com", "cloudwatch.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }

  # AWS documents this policy for EventBridge without a condition, and conditions on its way to topics as not supported
  # where a key is involved. A stranger who knows the ARN could send a mail by it, and no more.
  statement {
    sid       = "FailedTasks"
    actions   = ["sns:Publish"]
    resources = [aws_sns_topic.alarms[0].arn]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
  }
}

resource "aws_sns_topic_policy" "alarms" {
  count = local.makes_topic ? 1 : 0

  arn    = aws_sns_topic.alarms[0].arn
  policy = data.aws_iam_policy_document.topic[0].json
}
