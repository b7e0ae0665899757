# A few narrow tables (watermarks, leases, producers) get thousands of updates a second. So vacuum must run early and
# finish quickly. And no session may hold an old snapshot: vacuum cannot remove the rows that died after it, and updates
# become many times slower. The schema sets its own thresholds for the busiest tables.

locals {
  parameters = {
    # with the default (0.2) a table of 1e9 rows collects 2e8 dead rows, which take a dozen passes over every index
    autovacuum_vacuum_scale_factor = "0.02"
    autovacuum_vacuum_threshold    = "10000"
    autovacuum_vacuum_cost_limit   = "2000"
    # In kB: a sixteenth of the memory, at most 1 GiB per worker. More memory means fewer passes over the indexes.
    autovacuum_work_mem = "LEAST({DBInstanceClassMemory/16384},1048576)"
    autovacuum_naptime  = "10"
    # for sessions of people and tools; Siltstone's own sessions set 10 s
    idle_in_transaction_session_timeout = "60000"
    # with less, a commit could be acknowledged and then lost
    synchronous_commit = "on"
    "rds.force_ssl"    = "1"
    # for finding out why commits are slow
    log_lock_waits              = "1"
    log_min_duration_statement  = "1000"
    log_autovacuum_min_duration = "10000"
  }
}

resource "aws_db_parameter_group" "this" {
  count = local.creates ? 1 : 0

  # The family of a parameter group cannot change: a new major version needs a new group, so its name has the version.
  name        = "${var.name}-metadata-postgres${var.instance.engine_version}"
  family      = "postgres${var.instance.engine_version}"
  description = "Metadata of Siltstone"

  dynamic "parameter" {
    for_each = local.parameters

    content {
      name  = parameter.key
      value = parameter.value
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}
