# Merges that outgrow a compactor run here. Nothing runs, and nothing is paid for, while there is none.
#
# The application is in no VPC: jobs need S3 of their own region and nothing else, neither Postgres nor agents.

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
}
