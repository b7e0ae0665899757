resource "aws_security_group" "tasks" {
  name        = "${var.name}-tasks"
  description = "Every task of Siltstone: what it may reach"
  vpc_id      = local.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-tasks" })

  lifecycle {
    create_before_destroy = true
  }
}

# To any address, because S3 has public addresses even through its gateway endpoint. modules/metadata adds the rule for
# Postgres.
resource "aws_vpc_security_group_egress_rule" "tasks_https" {
  security_group_id = aws_security_group.tasks.id
  description       = "S3 and the APIs of AWS"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"

  tags = var.tags
}

resource "aws_security_group" "endpoints" {
  count = local.creates ? 1 : 0

  name        = "${var.name}-endpoints"
  description = "Interface endpoints of AWS services"
  vpc_id      = local.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-endpoints" })
}

resource "aws_vpc_security_group_ingress_rule" "endpoints_https" {
  count = local.creates ? 1 : 0

  security_group_id = aws_security_group.endpoints[0].id
  description       = "Tasks and their hosts"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = var.vpc_cidr

  tags = var.tags
}
