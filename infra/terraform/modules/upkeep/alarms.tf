# A migration or a drill that failed, or could not be started.

resource "aws_cloudwatch_event_rule" "failed" {
  name        = "${var.name}-upkeep-failed"
  description = "A migration or drill of Siltstone ${var.name} ended with an error"

  event_pattern = jsonencode({
    source      = ["aws.ecs"]
    detail-type = ["ECS Task State Change"]
    detail = {
      clusterArn = [var.cluster.arn]
      lastStatus = ["STOPPED"]
      startedBy  = [{ prefix = "events-rule/" }]
      # the second: a task whose image or secret could not be read has no exit code
      "$or" = [
        { containers = { exitCode = [{ anything-but = [0] }] } },
        { stopCode = ["TaskFailedToStart"] },
      ]
    }
  })

  tags = var.tags
}

resource "aws_cloudwatch_event_target" "failed" {
  for_each = { for index, arn in var.alarm_topic_arns : tostring(index) => arn }

  rule = aws_cloudwatch_event_rule.failed.name
  arn  = each.value

  input_transformer {
    input_paths = {
      task    = "$.detail.taskArn"
      command = "$.detail.overrides.containerOverrides[0].command"
      reason  = "$.detail.stoppedReason"
    }
    input_template = "\"Siltstone ${var.name}: a task that AWS started failed (command <command>; none: migrate). Task <task>: <reason>. Its log is in ${var.log_group_name}.\""
  }
}

locals {
  rules = merge(
    { rollout = aws_cloudwatch_event_rule.rollout.name },
    { for rule in aws_cloudwatch_event_rule.drill : "drill" => rule.name },
  )
}

resource "aws_cloudwatch_metric_alarm" "not_started" {
  for_each = local.rules

  alarm_name          = "${var.name}-${each.key}-not-started"
  alarm_description   = "EventBridge could not start a task of the rule ${each.value}: rights, quota or capacity."
  namespace           = "AWS/Events"
  metric_name         = "FailedInvocations"
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns

  dimensions = { RuleName = each.value }

  tags = var.tags
}
