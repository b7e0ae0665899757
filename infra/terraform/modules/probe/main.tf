# One small task that writes a record through the agents every few seconds and reads it back, as a client would. It tells
# of outages that no process notices by itself: a name that no longer leads anywhere, a certificate, a closed port.

module "client_files" {
  source = "../client_files"

  secret_arn        = var.secret_arn
  image             = var.task.image
  log_configuration = var.log_configuration
}

locals {
  container = merge(module.client_files.of_reader, {
    name                   = "probe"
    image                  = var.task.image
    command                = ["probe", "--bootstrap", var.bootstrap_servers, "--client-config", module.client_files.client_config]
    essential              = true
    readonlyRootFilesystem = true
    stopTimeout            = 30
    environment            = [{ name = "SILTSTONE_LOG_FORMAT", value = "json" }]
    logConfiguration       = var.log_configuration
  })
}

# without rights: it is a Kafka client and nothing else
resource "aws_iam_role" "task" {
  name                 = "${var.name}-probe"
  description          = "Probe of Siltstone ${var.name}"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = var.task.trust_policy

  tags = var.tags
}

resource "aws_ecs_task_definition" "this" {
  family                   = "${var.name}-probe"
  network_mode             = "awsvpc"
  requires_compatibilities = [var.task.launch_type]
  cpu                      = "256"
  memory                   = "512"
  execution_role_arn       = var.task.execution_role_arn
  task_role_arn            = aws_iam_role.task.arn
  container_definitions    = jsonencode([local.container, module.client_files.container])

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.task.cpu_architecture
  }

  volume {
    name = module.client_files.volume
  }

  tags = var.tags
}

resource "aws_ecs_service" "this" {
  name            = "${var.name}-probe"
  cluster         = var.task.cluster_arn
  task_definition = aws_ecs_task_definition.this.arn
  desired_count   = 1
  propagate_tags  = "SERVICE"
  force_delete    = true

  capacity_provider_strategy {
    capacity_provider = var.task.capacity_provider
    weight            = 1
  }

  network_configuration {
    subnets          = var.task.subnet_ids
    security_groups  = [var.task.security_group_id, var.admin_security_group_id]
    assign_public_ip = false
  }

  tags = var.tags
}
