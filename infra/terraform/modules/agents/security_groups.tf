resource "aws_security_group" "load_balancer" {
  name        = "${var.name}-bootstrap"
  description = "Bootstrap: clients of Siltstone"
  vpc_id      = var.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-bootstrap" })
}

resource "aws_vpc_security_group_ingress_rule" "bootstrap_clients" {
  for_each = toset(var.client_cidrs)

  security_group_id = aws_security_group.load_balancer.id
  description       = "Kafka clients"
  ip_protocol       = "tcp"
  from_port         = local.kafka_port
  to_port           = local.kafka_port
  cidr_ipv4         = each.key

  tags = var.tags
}

resource "aws_vpc_security_group_egress_rule" "bootstrap_agents" {
  for_each = toset([tostring(local.kafka_port), tostring(local.http_port)])

  security_group_id            = aws_security_group.load_balancer.id
  description                  = "Agents, and their health"
  ip_protocol                  = "tcp"
  from_port                    = tonumber(each.key)
  to_port                      = tonumber(each.key)
  referenced_security_group_id = aws_security_group.agents.id

  tags = var.tags
}

resource "aws_security_group" "agents" {
  name        = "${var.name}-agents"
  description = "Agents: who may reach them"
  vpc_id      = var.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-agents" })
}

resource "aws_vpc_security_group_ingress_rule" "agents_bootstrap" {
  for_each = toset([tostring(local.kafka_port), tostring(local.http_port)])

  security_group_id            = aws_security_group.agents.id
  description                  = "Load balancer"
  ip_protocol                  = "tcp"
  from_port                    = tonumber(each.key)
  to_port                      = tonumber(each.key)
  referenced_security_group_id = aws_security_group.load_balancer.id

  tags = var.tags
}

# After bootstrap, clients connect to the agents directly.
resource "aws_vpc_security_group_ingress_rule" "agents_clients" {
  for_each = toset(var.client_cidrs)

  security_group_id = aws_security_group.agents.id
  description       = "Kafka clients"
  ip_protocol       = "tcp"
  from_port         = local.kafka_port
  to_port           = local.kafka_port
  cidr_ipv4         = each.key

  tags = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "agents_metrics" {
  for_each = toset(var.metrics_cidrs)

  security_group_id = aws_security_group.agents.id
  description       = "Prometheus"
  ip_protocol       = "tcp"
  from_port         = local.http_port
  to_port           = local.http_port
  cidr_ipv4         = each.key

  tags = var.tags
}

# For commands run by hand that connect to an agent (`topics`, `groups`). The admin task has this group in addition to
# the group of all tasks, which allows no connection to an agent.
resource "aws_security_group" "admin" {
  name        = "${var.name}-admin"
  description = "Commands run by hand: agents"
  vpc_id      = var.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-admin" })
}

locals {
  asked_by_admin = { load_balancer = aws_security_group.load_balancer.id, agents = aws_security_group.agents.id }
}

resource "aws_vpc_security_group_egress_rule" "admin" {
  for_each = local.asked_by_admin

  security_group_id            = aws_security_group.admin.id
  description                  = "Bootstrap, and agents"
  ip_protocol                  = "tcp"
  from_port                    = local.kafka_port
  to_port                      = local.kafka_port
  referenced_security_group_id = each.value

  tags = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "admin" {
  for_each = local.asked_by_admin

  security_group_id            = each.value
  description                  = "Commands run by hand"
  ip_protocol                  = "tcp"
  from_port                    = local.kafka_port
  to_port                      = local.kafka_port
  referenced_security_group_id = aws_security_group.admin.id

  tags = var.tags
}
