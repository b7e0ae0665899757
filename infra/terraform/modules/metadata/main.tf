# The Postgres for the metadata, or the network rules for an existing Postgres.
#
# Acknowledged records must survive a failover. So RDS copies every write to a standby in another zone before it answers
# (Multi-AZ instance). RDS makes the password of its master user and keeps it in Secrets Manager. Agents and compactors
# have roles of their own, which `siltstone migrate` makes with what their secrets hold; `password_commands` fills these.
# So no password is in Terraform's state.

locals {
  creates = var.existing == null

  host       = local.creates ? aws_db_instance.this[0].address : var.existing.host
  port       = local.creates ? 5432 : var.existing.port
  database   = local.creates ? "siltstone" : var.existing.database
  user       = local.creates ? "siltstone" : var.existing.user
  secret_arn = local.creates ? aws_db_instance.this[0].master_user_secret[0].secret_arn : var.existing.secret_arn

  database_security_group_id = local.creates ? aws_security_group.database[0].id : var.existing.security_group_id

  # what can go wrong with a name is that the server is another one: so it is always verified
  tls   = "sslmode=verify-full&sslrootcert=${local.creates ? "/opt/siltstone/rds-ca.pem" : var.existing.ca_path}"
  place = "${local.host}:${local.port}/${local.database}?${local.tls}"
  # roles belong to the server, which may hold several clusters
  roles = { for process in ["agent", "compactor"] : process => "${replace(var.name, "-", "_")}_${process}" }
}

resource "aws_db_subnet_group" "this" {
  count = local.creates ? 1 : 0

  name        = "${var.name}-metadata"
  description = "Metadata of Siltstone"
  subnet_ids  = var.subnet_ids
}

resource "aws_db_instance" "this" {
  count = local.creates ? 1 : 0

  identifier     = "${var.name}-metadata"
  engine         = "postgres"
  engine_version = var.instance.engine_version # the major version; RDS installs minor versions in the maintenance window
  instance_class = var.instance.instance_class
  db_name        = "siltstone"
  username       = "siltstone"

  manage_master_user_password   = true
  master_user_secret_kms_key_id = var.kms_key_arn

  multi_az               = var.instance.multi_az
  db_subnet_group_name   = aws_db_subnet_group.this[0].name
  vpc_security_group_ids = [aws_security_group.database[0].id]
  publicly_accessible    = false
  ca_cert_identifier     = "rds-ca-rsa2048-g1"

  storage_type          = "gp3"
  allocated_storage     = var.instance.storage_gib
  max_allocated_storage = var.instance.storage_gib * 4
  storage_encrypted     = true
  kms_key_id            = var.kms_key_arn

  parameter_group_name        = aws_db_parameter_group.this[0].name
  auto_minor_version_upgrade  = true
  allow_major_version_upgrade = false
  apply_immediately           = false

  backup_retention_period         = 14
  copy_tags_to_snapshot           = true
  enabled_cloudwatch_logs_exports = ["postgresql", "upgrade"]

  deletion_protection       = var.deletion_protection
  skip_final_snapshot       = !var.deletion_protection
  final_snapshot_identifier = var.deletion_protection ? "${var.name}-metadata-final" : null
}

# RDS would change the password of its master user every seven days. But a task reads the password only when it starts:
# after a change it could not reconnect. So rotation is set to once a year, and the operator changes the password before
# that: see "The password of Postgres" in the README.
resource "aws_secretsmanager_secret_rotation" "this" {
  count = local.creates ? 1 : 0

  secret_id          = local.secret_arn
  rotate_immediately = false

  rotation_rules {
    automatically_after_days = 365
  }
}

# What the roles of agents and compactors log in with.
resource "aws_secretsmanager_secret" "role" {
  for_each = local.roles

  name                    = "${var.name}-postgres-${each.key}"
  description             = "Postgres: the role ${each.value} of Siltstone ${var.name}"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = var.deletion_protection ? 30 : 0
}
