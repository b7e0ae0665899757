"""Mistakes that show on the second day, each of which the configuration once had."""

from __future__ import annotations

from tests.infra.seeds import THREE_ZONES, Seed


def seed(name: str, file: str, old: str, new: str, message: str, *, place: str = "") -> Seed:
    return Seed(name, f"modules/{file}", old, new, "operations", message, place=place, root=THREE_ZONES)


FIGURES = "observability/figures.tf"
DATABASE = "metadata/main.tf"
OF_THE_SECOND_DAY = [
    seed(
        "an alarm that nobody hears",
        "upkeep/alarms.tf",
        "  alarm_actions       = var.alarm_topic_arns\n",
        "",
        "nobody hears of the alarm",
    ),
    seed(
        "no alarm for a compactor that is not there",
        FIGURES,
        "      no-compactor = {",
        "      compactor = {",
        "no alarm tells that no compactor works",
        place="modules/cluster/main.tf",
    ),
    seed(
        "no alarm for an old catalogue",
        FIGURES,
        "      catalogue-old = {",
        "      catalogue = {",
        "no alarm tells that the catalogue in the bucket is old",
        place="modules/cluster/main.tf",
    ),
    seed(
        "an alarm of a figure that nothing writes",
        FIGURES,
        'metric      = "JanitorHalted", statistic',
        'metric      = "JanitorHalts", statistic',
        "the alarm watches JanitorHalts",
    ),
    seed(
        "a filter that takes other lines",
        FIGURES,
        ', "$.${figure.field} = *",\n',
        ",\n",
        "the filter takes lines without its figure",
    ),
    seed(
        "alert rules that stay in a file",
        "observability/prometheus.tf",
        "name => group if var.monitoring.collector_image != null }",
        'name => group if name == "siltstone-clients" }',
        "the workspace lacks alert rules: siltstone-compaction",
    ),
    seed(
        "an alert manager that tells nobody",
        "observability/prometheus.tf",
        "          topic_arn     = local.alarm_topic_arns[0]\n",
        "",
        "nobody hears of its alerts",
    ),
    seed(
        "a password that a task reads once",
        "metadata/outputs.tf",
        "&password_secret=${aws_secretsmanager_secret.role[process].arn}",
        "",
        "container agent reads its password of Postgres when it starts",
        place="modules/agents/main.tf",
    ),
    seed(
        "upgrades of Postgres by surprise",
        DATABASE,
        "auto_minor_version_upgrade  = false",
        "auto_minor_version_upgrade  = true",
        "RDS upgrades Postgres by itself",
    ),
    seed(
        "slow commits that nobody can explain",
        DATABASE,
        "  performance_insights_enabled          = var.instance.performance_insights\n",
        "",
        "nobody can see what slow commits waited for",
    ),
    seed(
        "logs of Postgres for ever",
        DATABASE,
        'name              = "/aws/rds/instance/${var.name}-metadata/${each.key}"',
        'name              = "/siltstone/${var.name}/${each.key}"',
        "the log postgresql of Postgres is kept for ever",
    ),
    seed(
        "hosts that keep their first image",
        "cluster/ec2.tf",
        """  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage       = 100
      max_healthy_percentage       = 110
      instance_warmup              = 120
      skip_matching                = true
      scale_in_protected_instances = "Refresh"
    }
  }
""",
        "",
        "hosts are never replaced",
    ),
    seed(
        "hosts without an owner",
        "cluster/ec2.tf",
        'toset(["instance", "volume", "network-interface"])',
        'toset(["instance"])',
        "nobody can tell what these belong to: network-interface, volume",
    ),
    seed(
        "a resource without the operator's tags",
        "agents/load_balancer.tf",
        "  enable_cross_zone_load_balancing = true # so that the address of a zone without an agent still answers\n\n"
        "  tags = var.tags\n",
        "  enable_cross_zone_load_balancing = true # so that the address of a zone without an agent still answers\n",
        "it lacks the tags team",
    ),
    seed(
        "a migration that somebody must start",
        "upkeep/main.tf",
        '    detail      = { eventName = ["SERVICE_DEPLOYMENT_IN_PROGRESS"] }',
        '    detail      = { eventName = ["SERVICE_DEPLOYMENT_COMPLETED"] }',
        "new agents wait for a migration that somebody must start",
        place="modules/agents/main.tf",
    ),
    seed(
        "a restore that nobody tries",
        "upkeep/main.tf",
        'command = ["drill"]',
        'command = ["doctor"]',
        "nobody tries whether the metadata can be rebuilt",
        place="modules/cluster/main.tf",
    ),
    seed(
        "a role without the operator's boundary",
        "upkeep/iam.tf",
        "  permissions_boundary = var.permissions_boundary\n",
        "",
        "the role has no boundary, though others have",
    ),
    Seed(
        "alarms from strangers",
        "modules/observability/topic.tf",
        """    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
""",
        "",
        "operations",
        "other accounts may publish alarms",
    ),
]
