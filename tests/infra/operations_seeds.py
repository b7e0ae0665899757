"""Mistakes that show on the second day, each of which the configuration once had."""

from __future__ import annotations

from tests.infra.seeds import MINIMAL, THREE_ZONES, Seed


def seed(name: str, file: str, old: str, new: str, message: str, *, place: str = "", root: str = THREE_ZONES) -> Seed:
    return Seed(name, f"modules/{file}", old, new, "operations", message, place=place, root=root)


FIGURES = "observability/figures.tf"
TOPIC = "observability/topic.tf"
DATABASE = "metadata/main.tf"
UPKEEP = "upkeep/main.tf"
FAILURES = "upkeep/alarms.tf"
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
        "a record that is late and counts as lost",
        FIGURES,
        ', where = "$.outcome = \\"lost\\""',
        "",
        "the alarm does not tell that a record of the probe is lost: it watches probe elapsed_ms",
    ),
    seed(
        "alert rules that stay in a file",
        "observability/prometheus.tf",
        "name => group if var.monitoring.collector_image != null }",
        'name => group if name == "siltstone-clients" }',
        "the workspace lacks alert rules of siltstone-compaction: all",
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
# Mistakes after which all parts are there, and nobody hears of trouble. They are planted together.
OF_SILENCE = [
    seed(
        "no compactor, which says nothing, and the alarm takes that for good",
        FIGURES,
        'threshold = 1\n        period      = 60, periods = 5, missing = "breaching"',
        'threshold = 1\n        period      = 60, periods = 5, missing = "notBreaching"',
        "the alarm does not tell that no compactor works: silence counts as well-being",
    ),
    seed(
        "a field that no line has",
        FIGURES,
        'field = "erasures_overdue"',
        'field = "erasure_overdue"',
        "the compactor writes no event figures with the field erasure_overdue",
    ),
    seed(
        "a field of another process",
        FIGURES,
        'JanitorHalted     = { process = "compactor"',
        'JanitorHalted     = { process = "agent"',
        "the agent writes no event figures with the field janitor_halted",
    ),
    seed(
        "an event that nobody writes",
        FIGURES,
        'event = "figures", field = "group_lag_s_max"',
        'event = "figure", field = "group_lag_s_max"',
        "the compactor writes no event figure with the field group_lag_s_max",
    ),
    seed(
        "lines of any event",
        FIGURES,
        '    "$.event = \\"${figure.event}\\"", try(',
        '    name == "MergesDone" ? "" : "$.event = \\"${figure.event}\\"", try(',
        "the filter takes lines of any event",
    ),
    seed(
        "an outcome that no round trip has",
        FIGURES,
        'where = "$.outcome = \\"lost\\""',
        'where = "$.outcome = \\"gone\\""',
        "the probe writes no event probe with the outcome 'gone'",
    ),
    seed(
        "a log that no process writes into",
        FIGURES,
        'ProduceBatches    = { process = "agent"',
        'ProduceBatches    = { process = "admin"',
        "no agent, compactor or probe writes into /siltstone/silt/admin",
    ),
    seed(
        "an alarm of another figure",
        FIGURES,
        'metric      = "CompactorPassword", statistic',
        'metric      = "ProbeRoundTrip", statistic',
        "the alarm does not tell that the compactors' password is old: it watches probe round_trip_ms",
    ),
    seed(
        "an alarm of the best of several processes",
        FIGURES,
        'metric      = "CatalogueAge", statistic = "Maximum"',
        'metric      = "CatalogueAge", statistic = "Minimum"',
        "the alarm does not tell that the catalogue in the bucket is old: it takes the Minimum",
    ),
    seed(
        "an alarm that rings while all is well",
        FIGURES,
        'metric      = "L0OldestAge", statistic = "Maximum", comparison = "GreaterThanThreshold"',
        'metric      = "L0OldestAge", statistic = "Maximum", comparison = "LessThanThreshold"',
        "the alarm does not tell that merging does not keep up: it rings by LessThanThreshold",
    ),
    seed(
        "a threshold of a thousand years",
        FIGURES,
        '"AgentPasswordAge", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 365 *',
        '"AgentPasswordAge", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 365000 *',
        "the alarm does not tell that a password is old: its threshold 31536000000 is out of all reason",
    ),
    seed(
        "an alarm that waits for days",
        FIGURES,
        "period      = 60, periods = 1, missing",
        "period      = 60, periods = 1500, missing",
        "the alarm does not tell that a record of the probe is lost: it rings after 90000 s",
    ),
    seed(
        "an alarm that computes something else",
        FIGURES,
        "AND files > 500, 1, 0)",
        "AND files > 500000, 1, 0)",
        "the alarm does not tell that no merge is done: it computes something else",
    ),
    seed(
        "an alarm of the database that is not there",
        "observability/alarms.tf",
        "    wraparound = {",
        "    transactions = {",
        "no alarm tells that vacuum does not keep up",
        place="modules/metadata/main.tf",
    ),
    seed(
        "an alarm of a rule that is not there",
        FAILURES,
        "dimensions = { RuleName = each.value }",
        'dimensions = { RuleName = "${each.value}s" }',
        "the alarm watches the RuleName silt-rollouts, of which nothing is told here",
    ),
    seed(
        "alarms whose actions are off",
        FAILURES,
        "  alarm_actions       = var.alarm_topic_arns\n",
        "  alarm_actions       = var.alarm_topic_arns\n  actions_enabled     = false\n",
        "nobody hears of the alarm: its actions are switched off",
    ),
    Seed(
        "figures once a day",
        "main.tf",
        'SILTSTONE_LOG_FIGURES_INTERVAL_MS = "60000"',
        'SILTSTONE_LOG_FIGURES_INTERVAL_MS = "86400000"',
        "operations",
        "container compactor writes figures every 86400 s, and an alarm asks every 60 s",
        place="modules/compactor/main.tf",
        root=THREE_ZONES,
    ),
    Seed(
        "a log without its figures",
        "main.tf",
        '      SILTSTONE_METRICS_LISTEN   = "0.0.0.0:9644"\n',
        '      SILTSTONE_METRICS_LISTEN   = "0.0.0.0:9644"\n      SILTSTONE_LOG_LEVEL        = "error"\n',
        "operations",
        "container agent leaves the lines out of its log",
        place="modules/agents/main.tf",
        root=THREE_ZONES,
    ),
    seed(
        "a log that no filter can read",
        "probe/main.tf",
        '{ name = "SILTSTONE_LOG_FORMAT", value = "json" }',
        '{ name = "SILTSTONE_LOG_FORMAT", value = "text" }',
        "no filter can read the log of container probe",
    ),
    seed(
        "a receiver that is not there",
        "observability/prometheus.tf",
        'receiver        = "alarms"',
        'receiver        = "nobody"',
        "alerts go to the receiver nobody, which is not there",
    ),
    seed(
        "groups without rules",
        "observability/prometheus.tf",
        "data         = yamlencode({ groups = [each.value] })",
        "data         = yamlencode({ groups = [{ name = each.key, rules = [] }] })",
        "the workspace lacks alert rules of siltstone-clients: all",
    ),
    seed(
        "a migration that is switched off",
        UPKEEP,
        '  description = "New agents of Siltstone ${var.name}: migrate the schema"\n',
        '  description = "New agents of Siltstone ${var.name}: migrate the schema"\n  state       = "DISABLED"\n',
        "silt-rollout is switched off",
    ),
    seed(
        "a migration by events that ECS does not send",
        UPKEEP,
        'detail-type = ["ECS Deployment State Change"]',
        'detail-type = ["ECS Task State Change"]',
        "new agents wait for a migration that somebody must start",
        place="modules/agents/main.tf",
    ),
    seed(
        "a drill that only tells of drills",
        UPKEEP,
        'command = ["drill"]',
        'command = ["help", "drill"]',
        "nobody tries whether the metadata can be rebuilt",
        place="modules/cluster/main.tf",
    ),
    seed(
        "failures that no event matches",
        FAILURES,
        'lastStatus = ["STOPPED"]',
        'lastStatus = ["RUNNING"]',
        "nobody hears of a task of the rule silt-restore-drill that fails",
        place="modules/upkeep/main.tf",
    ),
    seed(
        "failures that are told to nobody",
        FAILURES,
        "for_each = { for index, arn in var.alarm_topic_arns : tostring(index) => arn }",
        "for_each = {}",
        "silt-upkeep-failed has no target",
    ),
    seed(
        "a right to start tasks in another cluster",
        "upkeep/iam.tf",
        "values   = [var.cluster.arn]",
        'values   = ["${var.cluster.arn}-old"]',
        "EventBridge may start tasks in arn:aws:ecs:",
    ),
    seed(
        "a probe that does not run",
        "probe/main.tf",
        "desired_count   = 1",
        "desired_count   = 0",
        "no probe runs",
    ),
    Seed(
        "a right to start tasks under a condition that there is not",
        "modules/upkeep/iam.tf",
        'variable = "ecs:cluster"',
        'variable = "ecs:clusterx"',
        "rights",
        "ecs:RunTask of the role events has the conditions ecs:clusterx",
    ),
    seed(
        "alarms from all but this account",
        TOPIC,
        'test     = "StringEquals"',
        'test     = "StringNotEquals"',
        "other accounts may publish alarms",
        root=MINIMAL,
    ),
    seed(
        "a topic that takes no events",
        TOPIC,
        'identifiers = ["events.amazonaws.com"]',
        'identifiers = ["scheduler.amazonaws.com"]',
        "events.amazonaws.com",
        root=MINIMAL,
    ),
    seed(
        "a topic without subscribers",
        TOPIC,
        "for_each = local.makes_topic ? toset(var.monitoring.alarm_emails) : toset([])",
        "for_each = toset([])",
        "nobody is subscribed to the topic",
        root=MINIMAL,
    ),
    seed(
        "word of everything that went well",
        FAILURES,
        "{ containers = { exitCode = [{ anything-but = [0] }] } }",
        "{ containers = { exitCode = [{ exists = true }] } }",
        "silt-try-upkeep-failed tells of tasks that ended well",
        root=MINIMAL,
    ),
]
