# Managed Prometheus, with the very rules that are tested in infra/prometheus. Its alert manager tells the first topic.

resource "aws_prometheus_workspace" "this" {
  count = var.monitoring.collector_image == null ? 0 : 1

  alias = var.name

  tags = var.tags
}

locals {
  # one namespace for each group of the file
  rule_groups = { for group in yamldecode(file("${path.module}/alerts.yml")).groups : group.name => group }
}

resource "aws_prometheus_rule_group_namespace" "this" {
  for_each = { for name, group in local.rule_groups : name => group if var.monitoring.collector_image != null }

  name         = each.key
  workspace_id = aws_prometheus_workspace.this[0].id
  data         = yamlencode({ groups = [each.value] })

  tags = var.tags
}

resource "aws_prometheus_alert_manager_definition" "this" {
  count = var.monitoring.collector_image == null ? 0 : 1

  workspace_id = aws_prometheus_workspace.this[0].id
  definition = yamlencode({
    alertmanager_config = yamlencode({
      route = {
        receiver        = "alarms"
        group_by        = ["alertname"]
        group_wait      = "30s"
        group_interval  = "5m"
        repeat_interval = "4h"
      }
      receivers = [{
        name = "alarms"
        sns_configs = [{
          topic_arn     = local.alarm_topic_arns[0]
          send_resolved = true
          sigv4         = { region = data.aws_region.current.id }
          subject       = "Siltstone ${var.name}: {{ .CommonLabels.alertname }} ({{ .Status }})"
        }]
      }]
    })
  })

  depends_on = [aws_sns_topic_policy.alarms]
}
