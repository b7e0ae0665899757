# A few narrow tables (watermarks, leases, producers) get thousands of updates a second. So vacuum must run early and
# finish quickly. And no session may hold an old snapshot: vacuum cannot remove the rows that died after it, and updates
# become many times slower. The schema sets its own thresholds for the busiest tables.

locals {
  major_version = split(".", var.instance.engine_version)[0]

  parameters = {
    # with the default (0.2) a table of 1e9 rows collects 2e8 dead rows, which take a dozen passes over every index
    autovacuum_vacuum_scale_factor = "0.02"
    autovacuum_vacuum_threshold    = "10000"
    autovacuum_vacuum_cost_limit   = "2000"
    # In kB: a sixteenth of the memory, at most 1 GiB per worker. More memory means fewer passes over the indexes.
    autovacuum_work_mem = "LEAST({DBInstanceClassMemory/16384},1048576)"
    autovacuum_naptime  = "10"
    # Every commit, heart-beat, hint and commit of offsets takes a transaction id: hundreds a second, or thousands. With
    # the default (200 million) vacuum would read and freeze every table each day or two; with more than a billion it
    # might begin too late. RDS takes it at a restart.
    autovacuum_freeze_max_age = "500000000"
    # After a checkpoint the first change of a page writes the whole page, and the hot pages change always: so few
    # checkpoints, and compressed pages. A crash replays the log since the last one, a minute or two.
    checkpoint_timeout = "900"
    # In MB: an eighth of the disk, at most 8 GiB. A checkpoint begins at about half of it, whatever the timeout says.
    max_wal_size    = tostring(min(8192, floor(var.instance.storage_gib * 128)))
    wal_compression = "lz4"
    # for sessions of people and tools; Siltstone's own sessions set 10 s
    idle_in_transaction_session_timeout = "60000"
    # with less, a commit could be acknowledged and then lost
    synchronous_commit = "on"
    "rds.force_ssl"    = "1"
    # for finding out why commits are slow
    log_lock_waits             = "1"
    log_min_duration_statement = "1000"
    # a statement that stores a user has what is kept of the password among its arguments
    log_parameter_max_length          = "0"
    log_parameter_max_length_on_error = "0"
    log_autovacuum_min_duration       = "10000"
  }

  # AWS refuses to apply these to a running instance.
  at_restart = toset(["autovacuum_freeze_max_age"])
}

resource "aws_db_parameter_group" "this" {
  count = local.creates ? 1 : 0

  # The family of a parameter group cannot change: a new major version needs a new group, so its name has the version.
  name        = "${var.name}-metadata-postgres${local.major_version}"
  family      = "postgres${local.major_version}"
  description = "Metadata of Siltstone"

  dynamic "parameter" {
    for_each = local.parameters

    content {
      name         = parameter.key
      value        = parameter.value
      apply_method = contains(local.at_restart, parameter.key) ? "pending-reboot" : "immediate"
    }
  }

  lifecycle {
    create_before_destroy = true
  }

  tags = var.tags
}
