# Alarms of what Siltstone itself knows, without a Prometheus. Once a minute each task writes a line of figures into its
# log (`log.figures.interval.ms`). Metric filters make metrics of the fields that are named here.

locals {
  namespace = "Siltstone/${var.name}"

  # metric -> the log that has it, and its field
  figures = merge(
    {
      ProduceBatches    = { process = "agent", event = "figures", field = "produce_batches" }
      ProduceFailed     = { process = "agent", event = "figures", field = "produce_failed" }
      LiveL0Files       = { process = "agent", event = "figures", field = "live_l0_files" }
      AgentPasswordAge  = { process = "agent", event = "figures", field = "postgres_password_age_s" }
      L0OldestAge       = { process = "compactor", event = "figures", field = "l0_oldest_s" }
      MergesDone        = { process = "compactor", event = "figures", field = "merges_done" }
      CatalogueAge      = { process = "compactor", event = "figures", field = "catalog_age_s" }
      GroupLag          = { process = "compactor", event = "figures", field = "group_lag_s_max" }
      CompactorPassword = { process = "compactor", event = "figures", field = "postgres_password_age_s" }
      JanitorHalted     = { process = "compactor", event = "figures", field = "janitor_halted" }
      ErasuresOverdue   = { process = "compactor", event = "figures", field = "erasures_overdue" }
    },
    var.monitoring.probe_secret_arn == null ? {} : {
      ProbeOk        = { process = "probe", event = "probe", field = "ok" }
      ProbeRoundTrip = { process = "probe", event = "probe", field = "round_trip_ms" }
      ProbeLost      = { process = "probe", event = "probe", field = "elapsed_ms", where = "$.outcome = \"lost\"" }
    },
  )

  terms = { for name, figure in local.figures : name => compact([
    "$.event = \"${figure.event}\"", try(figure.where, ""), "$.${figure.field} = *",
  ]) }

  # `missing`: what no figure means. Only who does the work tells its figures, so none is as bad as a bad one.
  figure_alarms = merge(
    {
      no-compactor = {
        metric      = "L0OldestAge", statistic = "SampleCount", comparison = "LessThanThreshold", threshold = 1
        period      = 60, periods = 5, missing = "breaching"
        description = "No compactor plans merges: nothing is merged, expired or deleted. Live L0 files pile up until producers are delayed."
      }
      l0-backlog = {
        metric      = "L0OldestAge", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 600
        period      = 60, periods = 10, missing = "notBreaching"
        description = "The oldest live L0 file is more than ten minutes old: merging does not keep up."
      }
      catalogue-old = {
        metric      = "CatalogueAge", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 3600
        period      = 300, periods = 3, missing = "breaching"
        description = "The last snapshot of the metadata in the bucket is more than an hour old: `siltstone rebuild` would know nothing newer."
      }
      password-old = {
        metric      = "AgentPasswordAge", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 365 * 86400
        period      = 3600, periods = 1, missing = "notBreaching"
        description = "The password of the agents is more than a year old: run the output new_passwords_command."
      }
      password-old-compactor = {
        metric      = "CompactorPassword", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 365 * 86400
        period      = 3600, periods = 1, missing = "notBreaching"
        description = "The password of the compactors is more than a year old: run the output new_passwords_command."
      }
      janitor-halted = {
        metric      = "JanitorHalted", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 0
        period      = 60, periods = 3, missing = "notBreaching"
        description = "Postgres was restored or failed over, and nothing is deleted until somebody has checked it and run `siltstone fsck --adopt`."
      }
      erasure-overdue = {
        metric      = "ErasuresOverdue", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 0
        period      = 60, periods = 3, missing = "notBreaching"
        description = "An erasure is not done although its deadline has passed."
      }
    },
    var.monitoring.group_lag_s == 0 ? {} : {
      group-lag = {
        metric      = "GroupLag", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = var.monitoring.group_lag_s
        period      = 60, periods = 10, missing = "notBreaching"
        description = "A consumer group has not read records for longer than ${var.monitoring.group_lag_s} s: `siltstone groups list` names it."
      }
    },
    var.monitoring.probe_secret_arn == null ? {} : {
      probe = {
        metric      = "ProbeOk", statistic = "Sum", comparison = "LessThanThreshold", threshold = 1
        period      = 60, periods = 3, missing = "breaching"
        description = "No record that the probe wrote came back within three minutes: clients cannot produce, cannot fetch, or both."
      }
      probe-lost = {
        metric      = "ProbeLost", statistic = "SampleCount", comparison = "GreaterThanThreshold", threshold = 0
        period      = 60, periods = 1, missing = "notBreaching"
        description = "A record that was acknowledged to the probe is not there: see SiltstoneProbeLost in the runbook."
      }
    },
  )

  # Of produced batches, 1 in 1,000 may fail in a month (99.9 %). At 14.4 times that rate the month's errors are spent in
  # two days: that is told within a quarter of an hour. At 3 times they are spent in ten days: within hours.
  burn_rates = {
    fast = { factor = 14.4, period_s = 300, periods = 12, bad_periods = 3 }
    slow = { factor = 3, period_s = 1800, periods = 12, bad_periods = 6 }
  }
}

resource "aws_cloudwatch_log_metric_filter" "figure" {
  for_each = local.figures

  name           = "${var.name}-${each.key}"
  log_group_name = aws_cloudwatch_log_group.this[each.value.process].name
  pattern        = "{ ${join(" && ", [for term in local.terms[each.key] : "(${term})"])} }"

  metric_transformation {
    name      = each.key
    namespace = local.namespace
    value     = "$.${each.value.field}"
  }
}

resource "aws_cloudwatch_metric_alarm" "figure" {
  for_each = local.figure_alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = local.namespace
  metric_name         = each.value.metric
  statistic           = each.value.statistic
  period              = each.value.period
  evaluation_periods  = each.value.periods
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  treat_missing_data  = each.value.missing
  alarm_actions       = local.alarm_topic_arns
  ok_actions          = local.alarm_topic_arns

  tags = var.tags

  depends_on = [aws_cloudwatch_log_metric_filter.figure]
}

# Merges that do not end, while there is something to merge.
resource "aws_cloudwatch_metric_alarm" "no_merge" {
  alarm_name          = "${var.name}-no-merge"
  alarm_description   = "No merge was done for an hour, although there are more than 500 live L0 files."
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_topic_arns
  ok_actions          = local.alarm_topic_arns

  metric_query {
    id          = "stuck"
    expression  = "IF(FILL(merges, 0) < 1 AND files > 500, 1, 0)"
    label       = "no merge in an hour"
    return_data = true
  }

  metric_query {
    id = "merges"

    metric {
      namespace   = local.namespace
      metric_name = "MergesDone"
      stat        = "Sum"
      period      = 3600
    }
  }

  metric_query {
    id = "files"

    metric {
      namespace   = local.namespace
      metric_name = "LiveL0Files"
      stat        = "Maximum"
      period      = 3600
    }
  }

  tags = var.tags
}

resource "aws_cloudwatch_metric_alarm" "produce_errors" {
  for_each = local.burn_rates

  alarm_name          = "${var.name}-produce-errors-${each.key}"
  alarm_description   = "Agents fail to store batches, ${each.value.factor} times as many as 99.9 % allow."
  evaluation_periods  = each.value.periods
  datapoints_to_alarm = each.value.bad_periods
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.factor * 0.001
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_topic_arns
  ok_actions          = local.alarm_topic_arns

  metric_query {
    id          = "ratio"
    expression  = "IF(all > 0, failed / all, 0)"
    label       = "failed batches, of all"
    return_data = true
  }

  metric_query {
    id = "failed"

    metric {
      namespace   = local.namespace
      metric_name = "ProduceFailed"
      stat        = "Sum"
      period      = each.value.period_s
    }
  }

  metric_query {
    id = "all"

    metric {
      namespace   = local.namespace
      metric_name = "ProduceBatches"
      stat        = "Sum"
      period      = each.value.period_s
    }
  }

  tags = var.tags
}
