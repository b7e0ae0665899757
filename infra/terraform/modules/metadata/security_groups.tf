resource "aws_security_group" "database" {
  count = local.creates ? 1 : 0

  name        = "${var.name}-metadata"
  description = "Postgres: tasks of Siltstone, nobody else"
  vpc_id      = var.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-metadata" })
}

resource "aws_vpc_security_group_ingress_rule" "database" {
  security_group_id            = local.database_security_group_id
  description                  = "Tasks of Siltstone ${var.name}"
  ip_protocol                  = "tcp"
  from_port                    = local.port
  to_port                      = local.port
  referenced_security_group_id = var.task_security_group_id

  tags = var.tags
}

resource "aws_vpc_security_group_egress_rule" "tasks" {
  security_group_id            = var.task_security_group_id
  description                  = "Postgres"
  ip_protocol                  = "tcp"
  from_port                    = local.port
  to_port                      = local.port
  referenced_security_group_id = local.database_security_group_id

  tags = var.tags
}
