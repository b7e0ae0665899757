# Merges that are too large for a compactor run here. While there is none, nothing runs and nothing is charged.
#
# The application is in no VPC, because a job needs only S3 in its own region: no Postgres, and no agents.

resource "aws_emrserverless_application" "this" {
  name          = "${var.name}-merges"
  type          = "spark"
  release_label = var.release_label
  architecture  = var.cpu_architecture

  maximum_capacity {
    cpu    = "${var.vcpu_max} vCPU"
    memory = "${var.vcpu_max * 4} GB"
  }

  auto_start_configuration {
    enabled = true
  }

  auto_stop_configuration {
    enabled              = true
    idle_timeout_minutes = 15
  }

  dynamic "image_configuration" {
    for_each = var.image == null ? [] : [var.image]

    content {
      image_uri = image_configuration.value
    }
  }

  tags = var.tags
}
