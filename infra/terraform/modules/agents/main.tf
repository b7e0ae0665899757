# Agents: one per task, each with one vCPU (a Python process uses one core) and its own address.
#
# Clients connect first through the internal load balancer, then to each agent at the address that it advertises. So no
# record passes through the load balancer. On SIGTERM an agent drains: Metadata answers no longer name it, it sends its
# clients to the other agents, and it stores and acknowledges the records that it has received before it ends.

locals {
  cpu_units  = 1024
  kafka_port = 9092
  http_port  = 9644
  # Fargate kills a task 120 s after SIGTERM at the latest: the agent must give up before that
  stop_timeout_s   = 120
  drain_notice_ms  = 100000
  drain_timeout_ms = 15000

  environment = merge(var.task.environment, {
    SILTSTONE_LISTEN           = "0.0.0.0:${local.kafka_port}"
    SILTSTONE_ADVERTISED_HOST  = "ecs" # read from the task's metadata: its own address and zone
    SILTSTONE_AGENT_ZONE       = "ecs"
    SILTSTONE_DRAIN_NOTICE_MS  = tostring(local.drain_notice_ms)
    SILTSTONE_DRAIN_TIMEOUT_MS = tostring(local.drain_timeout_ms)
    # clients that lost all agents they knew ask here
    SILTSTONE_ADVERTISED_BOOTSTRAP = "${aws_lb.bootstrap.dns_name}:${local.kafka_port}"
  })

  container = {
    name                   = "agent"
    image                  = var.task.image
    command                = ["agent"]
    essential              = true
    readonlyRootFilesystem = true
    stopTimeout            = local.stop_timeout_s
    environment            = [for name in sort(keys(local.environment)) : { name = name, value = local.environment[name] }]
    secrets                = [for name in sort(keys(var.task.secrets)) : { name = name, valueFrom = var.task.secrets[name] }]
    portMappings = [
      { containerPort = local.kafka_port, hostPort = local.kafka_port, protocol = "tcp" },
      { containerPort = local.http_port, hostPort = local.http_port, protocol = "tcp" },
    ]
    logConfiguration = var.log_configuration
    # Asks only whether the agent is alive; the load balancer asks whether it is ready. An agent that waits for Postgres
    # must not be killed for it.
    healthCheck = {
      command     = ["CMD", "/opt/siltstone/bin/python", "-m", "siltstone.health"]
      interval    = 10
      timeout     = 5
      retries     = 3
      startPeriod = 60
    }
  }
}

resource "aws_ecs_task_definition" "this" {
  family                   = "${var.name}-agent"
  network_mode             = "awsvpc"
  requires_compatibilities = [var.task.launch_type]
  cpu                      = tostring(local.cpu_units)
  memory                   = tostring(var.size.memory_mib)
  execution_role_arn       = var.task.execution_role_arn
  task_role_arn            = aws_iam_role.task.arn
  container_definitions    = jsonencode(concat([local.container], var.sidecars))

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.task.cpu_architecture
  }
}

resource "aws_ecs_service" "this" {
  name            = "${var.name}-agents"
  cluster         = var.task.cluster_arn
  task_definition = aws_ecs_task_definition.this.arn
  desired_count   = var.size.count_min
  propagate_tags  = "SERVICE"

  # after an outage of one zone, spread the agents over all zones again
  availability_zone_rebalancing = "ENABLED"

  # New agents serve before old ones drain, and never all at once: a client must always know one that still answers.
  # A single agent is replaced by a second one.
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = var.size.count_min > 1 ? 150 : 200
  health_check_grace_period_seconds  = 120

  # Roll back an image that does not start or needs another schema. The old agents keep running meanwhile.
  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  capacity_provider_strategy {
    capacity_provider = var.task.capacity_provider
    weight            = 1
  }

  network_configuration {
    subnets          = var.task.subnet_ids
    security_groups  = [var.task.security_group_id, aws_security_group.agents.id]
    assign_public_ip = false
  }

  load_balancer {
    target_group_arn = aws_lb_target_group.bootstrap.arn
    container_name   = local.container.name
    container_port   = local.kafka_port
  }

  lifecycle {
    # autoscaling sets it
    ignore_changes = [desired_count]
  }

  depends_on = [aws_lb_listener.bootstrap, aws_iam_role_policy.task]
}
