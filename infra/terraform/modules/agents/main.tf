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

  # Certificate and key of the listener. ECS gives secrets as variables, and Siltstone reads files: a container that ends
  # before the agent starts writes them into a volume of the task, in memory of nobody else.
  by_certificate = var.listener.authentication == "CERTIFICATE"
  tls_folder     = "/tls"
  tls_secrets = merge(
    { certificate = "certificate", key = "key" },
    local.by_certificate ? { ca = "ca" } : {},
  )
  write_files = <<-EOT
    import os, sys
    for name in sys.argv[1:]:
        with open(os.open(f"/tmp/{name}.pem", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o400), "w") as file:
            file.write(os.environ[name])
  EOT

  listener = merge(
    {
      ADDRESS       = "0.0.0.0:${local.kafka_port}"
      ADVERTISED    = "ecs-name:${local.kafka_port}" # the private name of the task, which a certificate can cover
      PROTOCOL      = local.by_certificate ? "SSL" : "SASL_SSL"
      TLS_CERT_FILE = "${local.tls_folder}/certificate.pem"
      TLS_KEY_FILE  = "${local.tls_folder}/key.pem"
    },
    local.by_certificate ? { TLS_CLIENT_AUTH = "required", TLS_CA_FILE = "${local.tls_folder}/ca.pem" } : {},
  )

  environment = merge(var.task.environment, { for name, value in local.listener : "SILTSTONE_LISTENER_DEFAULT_${name}" => value }, {
    SILTSTONE_ACL_MODE         = "on"
    SILTSTONE_SUPER_USERS      = join(";", var.listener.super_users)
    SILTSTONE_AGENT_ZONE       = "ecs" # read from the task's metadata
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
    dependsOn              = [{ containerName = local.certificates.name, condition = "SUCCESS" }]
    mountPoints            = [{ sourceVolume = local.tls_volume, containerPath = local.tls_folder, readOnly = true }]
    environment            = [for name in sort(keys(local.environment)) : { name = name, value = local.environment[name] }]
    portMappings = [
      { containerPort = local.kafka_port, hostPort = local.kafka_port, protocol = "tcp" },
      { containerPort = local.http_port, hostPort = local.http_port, protocol = "tcp" },
    ]
    logConfiguration = var.log_configuration
    # Asks whether the agent has started, and then whether it is alive; the load balancer asks whether it is ready. It has ten
    # minutes for the migration. An agent that waits for Postgres later must not be killed for it.
    healthCheck = {
      command     = ["CMD", "/opt/siltstone/bin/python", "-m", "siltstone.health", "--started"]
      interval    = 30
      timeout     = 5
      retries     = 10
      startPeriod = 300
    }
  }
}

locals {
  tls_volume = "tls"

  certificates = {
    name                   = "certificates"
    image                  = var.task.image
    entryPoint             = ["/opt/siltstone/bin/python", "-c", local.write_files]
    command                = sort(keys(local.tls_secrets))
    essential              = false
    readonlyRootFilesystem = true
    # The image declares /tmp as a volume, so ECS gives this one the owner and rights of the image's /tmp.
    mountPoints      = [{ sourceVolume = local.tls_volume, containerPath = "/tmp", readOnly = false }]
    secrets          = [for name in sort(keys(local.tls_secrets)) : { name = name, valueFrom = "${var.listener.tls_secret_arn}:${local.tls_secrets[name]}::" }]
    logConfiguration = var.log_configuration
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
  container_definitions    = jsonencode(concat([local.container, local.certificates], var.sidecars))

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.task.cpu_architecture
  }

  # Empty at the start of each task, and gone with it
  volume {
    name = local.tls_volume
  }

  tags = var.tags
}

resource "aws_ecs_service" "this" {
  name            = "${var.name}-agents"
  cluster         = var.task.cluster_arn
  task_definition = aws_ecs_task_definition.this.arn
  desired_count   = var.size.count_min
  propagate_tags  = "SERVICE"
  force_delete    = !var.deletion_protection

  # after an outage of one zone, spread the agents over all zones again
  availability_zone_rebalancing = "ENABLED"

  # New agents serve before old ones drain, and never all at once: a client must always know one that still answers.
  # A single agent is replaced by a second one.
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = var.size.count_min > 1 ? 150 : 200
  health_check_grace_period_seconds  = 600 # for the migration

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

  tags = var.tags
}
