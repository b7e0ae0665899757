# The Postgres for the metadata, or the network rules for an existing Postgres.
#
# Acknowledged records must survive a failover. So RDS copies every write to a standby in another zone before it answers
# (Multi-AZ instance). RDS makes the password of its master user and keeps it in Secrets Manager. Agents and compactors
# have roles of their own: `siltstone migrate` makes them and their passwords, and writes these into the secrets below.
# So no password is in Terraform's state.

locals {
  creates = var.existing == null
  logs    = ["postgresql", "upgrade"]

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

  tags = var.tags
}

resource "aws_db_instance" "this" {
  count = local.creates ? 1 : 0

  identifier     = "${var.name}-metadata"
  engine         = "postgres"
  engine_version = var.instance.engine_version
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

  parameter_group_name = aws_db_parameter_group.this[0].name
  # Nothing is upgraded by surprise: a new minor version is written into `engine_version`, and installed in the window.
  auto_minor_version_upgrade  = false
  allow_major_version_upgrade = false
  apply_immediately           = false
  maintenance_window          = var.instance.maintenance_window

  backup_retention_period         = 14
  backup_window                   = var.instance.backup_window
  delete_automated_backups        = !var.deletion_protection
  copy_tags_to_snapshot           = true
  enabled_cloudwatch_logs_exports = local.logs

  # what a slow commit waited for; the first 7 days are free
  performance_insights_enabled          = var.instance.performance_insights
  performance_insights_kms_key_id       = var.instance.performance_insights ? var.kms_key_arn : null
  performance_insights_retention_period = var.instance.performance_insights ? 7 : null

  deletion_protection       = var.deletion_protection
  skip_final_snapshot       = !var.deletion_protection
  final_snapshot_identifier = var.deletion_protection ? "${var.name}-metadata-final" : null

  # else RDS makes them itself, and they are kept for ever
  depends_on = [aws_cloudwatch_log_group.this]

  tags = var.tags
}

resource "aws_cloudwatch_log_group" "this" {
  for_each = local.creates ? toset(local.logs) : toset([])

  name              = "/aws/rds/instance/${var.name}-metadata/${each.key}"
  retention_in_days = var.log_retention_days

  tags = var.tags
}

# RDS would change the password of its master user every seven days. Only the admin task uses it, and reads it when it
# starts; a command that runs for long must not lose it in the middle too often.
resource "aws_secretsmanager_secret_rotation" "this" {
  count = local.creates ? 1 : 0

  secret_id          = local.secret_arn
  rotate_immediately = false

  rotation_rules {
    automatically_after_days = 90
  }
}

# What the roles of agents and compactors log in with.
resource "aws_secretsmanager_secret" "role" {
  for_each = local.roles

  name                    = "${var.name}-postgres-${each.key}"
  description             = "Postgres: the role ${each.value} of Siltstone ${var.name}"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = var.deletion_protection ? 30 : 0

  tags = var.tags
}
