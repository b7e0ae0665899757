# One small task that writes a record through the agents every few seconds and reads it back, as a client would. It tells
# of outages that no process notices by itself: a name that no longer leads anywhere, a certificate, a closed port.

locals {
  folder     = "/probe"
  volume     = "probe"
  write_file = <<-EOT
    import os
    with open(os.open("/tmp/client.properties", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o400), "w") as file:
        file.write(os.environ["client_properties"])
  EOT

  properties = {
    name                   = "properties"
    image                  = var.task.image
    entryPoint             = ["/opt/siltstone/bin/python", "-c", local.write_file]
    command                = []
    essential              = false
    readonlyRootFilesystem = true
    # The image declares /tmp as a volume, so ECS gives this one the owner and rights of the image's /tmp.
    mountPoints      = [{ sourceVolume = local.volume, containerPath = "/tmp", readOnly = false }]
    secrets          = [{ name = "client_properties", valueFrom = "${var.secret_arn}:client_properties::" }]
    logConfiguration = var.log_configuration
  }

  container = {
    name                   = "probe"
    image                  = var.task.image
    command                = ["probe", "--bootstrap", var.bootstrap_servers, "--client-config", "${local.folder}/client.properties"]
    essential              = true
    readonlyRootFilesystem = true
    stopTimeout            = 30
    dependsOn              = [{ containerName = local.properties.name, condition = "SUCCESS" }]
    mountPoints            = [{ sourceVolume = local.volume, containerPath = local.folder, readOnly = true }]
    environment            = [{ name = "SILTSTONE_LOG_FORMAT", value = "json" }]
    logConfiguration       = var.log_configuration
  }
}

data "aws_caller_identity" "current" {}

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

# without rights: it is a Kafka client and nothing else
resource "aws_iam_role" "task" {
  name                 = "${var.name}-probe"
  description          = "Probe of Siltstone ${var.name}"
  permissions_boundary = var.permissions_boundary
  assume_role_policy   = data.aws_iam_policy_document.trust.json

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
  container_definitions    = jsonencode([local.container, local.properties])

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = var.task.cpu_architecture
  }

  # Empty at the start of each task, and gone with it
  volume {
    name = local.volume
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
