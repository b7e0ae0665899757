variable "name" {
  description = "Name of the cluster and prefix of all names."
  type        = string
}

variable "launch_type" {
  description = "FARGATE, or EC2 for hosts of our own."
  type        = string
}

variable "instance_type" {
  description = "Type of the hosts where launch_type is EC2."
  type        = string
}

variable "hosts_max" {
  description = "Most hosts where launch_type is EC2."
  type        = number
}

variable "cpu_architecture" {
  description = "X86_64 or ARM64."
  type        = string
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets."
  type        = list(string)
}

variable "image" {
  description = "Image of Siltstone."
  type        = string
}

variable "environment" {
  description = "Settings of every task."
  type        = map(string)
}

variable "secrets" {
  description = "Variables of every task that ECS fills from Secrets Manager, as name to valueFrom."
  type        = map(string)
}

variable "secret_arn" {
  description = "The secret these lie in."
  type        = string
}

variable "log_group_arns" {
  description = "Log groups of all tasks."
  type        = list(string)
}

variable "log_configuration" {
  description = "logConfiguration of the admin container."
  type = object({
    logDriver = string
    options   = map(string)
  })
}

variable "bucket" {
  description = "Where the records lie, as ARNs: the bucket, everything below the prefix, and the KMS key or null."
  type = object({
    arn         = string
    objects_arn = string
    kms_key_arn = string
  })
}
