# The smallest cluster that keeps acknowledged records when a zone fails: two zones, two agents on Fargate, a small
# Postgres with its standby. For trying it out: `terraform destroy` deletes everything, records included.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100, < 7.0"
    }
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { application = "siltstone" }
  }
}

module "siltstone" {
  source = "../.."

  name  = "silt-try"
  image = var.image

  network      = { availability_zones = ["${var.region}a", "${var.region}b"] }
  client_cidrs = ["10.90.0.0/16"]

  listener = {
    tls_secret_arn   = var.listener_secret_arn
    authentication   = "SCRAM"
    super_users      = ["User:admin"]
    admin_secret_arn = var.admin_secret_arn
  }

  agents   = { count_min = 2, count_max = 4 }
  postgres = { instance_class = "db.t4g.medium", storage_gib = 20 }

  monitoring = { alarm_emails = var.alarm_emails }

  deletion_protection = false
}
