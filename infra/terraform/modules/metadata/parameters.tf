# Why each: a few narrow tables take thousands of updates a second (watermarks, leases, producers). Vacuum must come
# early and finish quickly, and no session may hold an old snapshot, which makes these updates many times dearer. Tables
# that are hotter still carry thresholds of their own, in the schema.

locals {
  parameters = {
    # the default, a fifth of a table of 1e9 rows, is 2e8 dead rows and a dozen passes over every index
    autovacuum_vacuum_scale_factor = "0.02"
    autovacuum_vacuum_threshold    = "10000"
    autovacuum_vacuum_cost_limit   = "2000"
    # kB: a sixteenth of the memory, at most 1 GiB a worker. More memory is fewer passes over the indexes.
    autovacuum_work_mem = "LEAST({DBInstanceClassMemory/16384},1048576)"
    autovacuum_naptime  = "10"
    # of people and tools: our own sessions set 10 s
    idle_in_transaction_session_timeout = "60000"
    # a commit counts when the standby has it, too
    synchronous_commit = "on"
    "rds.force_ssl"    = "1"
    # what to look at first when commits are slow
    log_lock_waits              = "1"
    log_min_duration_statement  = "1000"
    log_autovacuum_min_duration = "10000"
  }
}

resource "aws_db_parameter_group" "this" {
  count = local.creates ? 1 : 0

  # a family cannot be changed in place
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
