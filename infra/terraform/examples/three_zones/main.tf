# A cluster for production: three zones, agents on EC2 hosts, several compactors, large merges on EMR Serverless, metrics
# in managed Prometheus, your own KMS key, and protection against accidental deletion.

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

  name             = "silt"
  image            = var.image
  cpu_architecture = "ARM64"
  launch_type      = "EC2"
  instance_type    = "m7g.large"

  network = {
    availability_zones = [for letter in ["a", "b", "c"] : "${var.region}${letter}"]
    vpc_cidr           = "10.90.0.0/16"
  }
  client_cidrs  = ["10.90.0.0/16", "10.20.0.0/16"]
  metrics_cidrs = ["10.20.5.0/24"]

  listener = {
    tls_secret_arn   = var.listener_secret_arn
    authentication   = "CERTIFICATE"
    super_users      = ["User:CN=admin,O=Example"]
    admin_secret_arn = var.admin_secret_arn
  }

  agents     = { count_min = 6, count_max = 24, cpu_percent = 50 }
  compactors = 3
  spark      = { vcpu_max = 128 }
  settings = {
    "cache.cold.bytes" = "268435456"
    "num.partitions"   = "12"
  }

  kms_key_arn     = var.kms_key_arn
  noncurrent_days = 3
  postgres        = { instance_class = "db.m7g.xlarge", storage_gib = 400 }

  monitoring = {
    collector_image    = var.collector_image
    alarm_topic_arns   = var.alarm_topic_arns
    probe_secret_arn   = var.probe_secret_arn
    log_retention_days = 90
  }
  tags                 = { team = "platform" }
  permissions_boundary = var.permissions_boundary
}
