# The ECS cluster, and where its tasks run: on Fargate, or on EC2 hosts of this account (ec2.tf).

locals {
  on_ec2            = var.launch_type == "EC2"
  capacity_provider = local.on_ec2 ? aws_ecs_capacity_provider.ec2[0].name : "FARGATE"
}

data "aws_region" "current" {}

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}

resource "aws_ecs_cluster" "this" {
  name = var.name

  # Siltstone's own metrics say more, and Container Insights are charged for
  setting {
    name  = "containerInsights"
    value = "disabled"
  }

  tags = var.tags
}

resource "aws_ecs_cluster_capacity_providers" "this" {
  cluster_name       = aws_ecs_cluster.this.name
  capacity_providers = [local.capacity_provider]

  default_capacity_provider_strategy {
    capacity_provider = local.capacity_provider
    weight            = 1
  }
}
