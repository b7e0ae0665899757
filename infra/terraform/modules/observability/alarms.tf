locals {
  database_alarms = var.database == null ? {} : {
    cpu = {
      metric      = "CPUUtilization"
      comparison  = "GreaterThanThreshold"
      threshold   = 80
      periods     = 3
      description = "Postgres is short of processor time: commits, and so every produce, become slow."
    }
    storage = {
      metric      = "FreeStorageSpace"
      comparison  = "LessThanThreshold"
      threshold   = var.database.storage_gib * pow(1024, 3) * 0.15
      periods     = 1
      description = "Postgres is nearly full: when it is, nothing can be committed."
    }
    memory = {
      metric      = "FreeableMemory"
      comparison  = "LessThanThreshold"
      threshold   = 256 * pow(1024, 2)
      periods     = 3
      description = "Postgres is short of memory."
    }
    wraparound = {
      metric      = "MaximumUsedTransactionIDs"
      comparison  = "GreaterThanThreshold"
      threshold   = 1000000000
      periods     = 1
      description = "Vacuum does not keep up: at two billion Postgres takes no writes any more."
    }
    queue = {
      metric      = "DiskQueueDepth"
      comparison  = "GreaterThanThreshold"
      threshold   = 16
      periods     = 3
      description = "The volume of Postgres does not keep up with its writes."
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "database" {
  for_each = local.database_alarms

  alarm_name          = "${var.name}-metadata-${each.key}"
  alarm_description   = each.value.description
  namespace           = "AWS/RDS"
  metric_name         = each.value.metric
  statistic           = "Average"
  period              = 300
  evaluation_periods  = each.value.periods
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  treat_missing_data  = "missing"
  alarm_actions       = local.alarm_topic_arns
  ok_actions          = local.alarm_topic_arns

  dimensions = { DBInstanceIdentifier = var.database.instance_identifier }

  tags = var.tags
}

resource "aws_cloudwatch_metric_alarm" "agents" {
  alarm_name          = "${var.name}-agents-healthy"
  alarm_description   = "Fewer agents are ready than there should be at least."
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  statistic           = "Minimum"
  period              = 60
  evaluation_periods  = 5
  comparison_operator = "LessThanThreshold"
  threshold           = var.agents_min
  treat_missing_data  = "breaching"
  alarm_actions       = local.alarm_topic_arns
  ok_actions          = local.alarm_topic_arns

  dimensions = {
    LoadBalancer = var.load_balancer.load_balancer
    TargetGroup  = var.load_balancer.target_group
  }

  tags = var.tags
}
