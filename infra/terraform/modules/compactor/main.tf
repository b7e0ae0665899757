# Compactors merge files, and only they delete files. Any number may run; one is enough until merges lag behind. They
# need no load balancer, because each takes its work from Postgres. On SIGTERM a compactor gives its merges back, so
# that another one can take them at once.

locals {
  http_port = 9644
  # Snapshots of the metadata and spilled keys. The image declares /tmp as a volume, so ECS gives this one the owner and
  # rights of the image's /tmp.
  scratch = "tmp"

  spark_environment = var.spark == null ? {} : {
    SILTSTONE_SPARK_SUBMITTER          = "emr-serverless"
    SILTSTONE_SPARK_EMR_APPLICATION_ID = var.spark.application_id
    SILTSTONE_SPARK_EMR_ROLE_ARN       = var.spark.job_role_arn
    SILTSTONE_SPARK_EMR_ENTRY_URL      = var.spark.entry_url
    SILTSTONE_SPARK_ARCHIVE_URL        = var.spark.archive_url
  }
  environment = merge(var.task.environment, local.spark_environment)

  container = {
    name                   = "compactor"
    image                  = var.task.image
    command                = ["compactor"]
    essential              = true
    readonlyRootFilesystem = true
    mountPoints            = [{ sourceVolume = local.scratch, containerPath = "/tmp", readOnly = false }]
    stopTimeout            = 120
    environment            = [for name in sort(keys(local.environment)) : { name = name, value = local.environment[name] }]
    portMappings           = [{ containerPort = local.http_port, hostPort = local.http_port, protocol = "tcp" }]
    logConfiguration       = var.log_configuration
    # Asks whether the compactor has started, and then whether it is alive. While a new one waits for the migration, the
    # old one works on: ECS stops it only once the new one is healthy. It has ten minutes for that.
    healthCheck = {
      command     = ["CMD", "/opt/siltstone/bin/python", "-m", "siltstone.health", "--started"]
      interval    = 30
      timeout     = 5
      retries     = 10
      startPeriod = 300
    }
  }
}

resource "aws_ecs_task_definition" "this" {
  family                   = "${var.name}-compactor"
  network_mode             = "awsvpc"
  requires_compatibilities = [var.task.launch_type]
  cpu                      = "1024"
  memory                   = "3072"
  execution_role_arn       = var.task.execution_role_arn
  task_role_arn            = aws_iam_role.task.arn
  container_definitions    = jsonencode(concat([local.container], var.sidecars))

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.task.cpu_architecture
  }

  # Empty at the start of each task, and gone with it
  volume {
    name = local.scratch
  }

  tags = var.tags
}

resource "aws_ecs_service" "this" {
  name            = "${var.name}-compactor"
  cluster         = var.task.cluster_arn
  task_definition = aws_ecs_task_definition.this.arn
  desired_count   = var.tasks
  propagate_tags  = "SERVICE"

  availability_zone_rebalancing      = "ENABLED"
  deployment_minimum_healthy_percent = 100
  deployment_maximum_percent         = 200

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
    security_groups  = [var.task.security_group_id, aws_security_group.compactor.id]
    assign_public_ip = false
  }

  depends_on = [aws_iam_role_policy.task]

  tags = var.tags
}

resource "aws_security_group" "compactor" {
  name        = "${var.name}-compactor"
  description = "Compactors: who may reach them"
  vpc_id      = var.vpc_id

  tags = merge(var.tags, { Name = "${var.name}-compactor" })
}

resource "aws_vpc_security_group_ingress_rule" "metrics" {
  for_each = toset(var.metrics_cidrs)

  security_group_id = aws_security_group.compactor.id
  description       = "Prometheus"
  ip_protocol       = "tcp"
  from_port         = local.http_port
  to_port           = local.http_port
  cidr_ipv4         = each.key

  tags = var.tags
}
