# For bootstrap alone: clients then connect to each agent at its own address.

resource "aws_lb" "bootstrap" {
  name                             = "${var.name}-bootstrap"
  load_balancer_type               = "network"
  internal                         = true # agents have private addresses alone
  subnets                          = var.subnet_ids
  security_groups                  = [aws_security_group.load_balancer.id]
  enable_deletion_protection       = var.deletion_protection
  enable_cross_zone_load_balancing = true # so that the address of a zone without an agent still answers

  tags = var.tags
}

resource "aws_lb_target_group" "bootstrap" {
  name        = "${var.name}-agents"
  vpc_id      = var.vpc_id
  target_type = "ip"
  protocol    = "TCP"
  port        = local.kafka_port

  # Short, because bootstrap connections are short, and because ECS sends SIGTERM only after this delay.
  deregistration_delay   = 15
  connection_termination = true

  health_check {
    protocol            = "HTTP"
    port                = tostring(local.http_port)
    path                = "/readyz"
    interval            = 10
    timeout             = 5
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }

  tags = var.tags
}

resource "aws_lb_listener" "bootstrap" {
  load_balancer_arn = aws_lb.bootstrap.arn
  protocol          = "TCP"
  port              = local.kafka_port

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.bootstrap.arn
  }

  tags = var.tags
}
