variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "task" {
  description = "The values that all Siltstone tasks share."
  type = object({
    cluster_arn        = string
    cluster_name       = string
    execution_role_arn = string
    trust_policy       = string
    capacity_provider  = string
    launch_type        = string
    cpu_architecture   = string
    image              = string
    environment        = map(string)
    password_arn       = string
    subnet_ids         = list(string)
    security_group_id  = string
  })
}

variable "subnet_ids" {
  description = "Private subnets of the load balancer. Not those of `task`, which waits for Postgres: both take minutes."
  type        = list(string)
}

variable "bucket" {
  description = "ARNs of where the records are: the bucket, all objects below the prefix, the KMS key (or null), and the second bucket, for L0 files (or null)."
  type = object({
    arn         = string
    objects_arn = string
    kms_key_arn = string
    second = object({
      arn          = string
      objects_arn  = string
      is_directory = bool
    })
  })
}

variable "metrics_workspace_arns" {
  description = "ARNs of the managed Prometheus that the collector writes to; empty without a collector."
  type        = list(string)
}

variable "sidecars" {
  description = "Definitions of containers that run beside Siltstone's in a task."
  type        = list(any)
}

variable "log_configuration" {
  description = "logConfiguration of the container."
  type = object({
    logDriver = string
    options   = map(string)
  })
}

variable "metrics_cidrs" {
  description = "Addresses that may read /metrics."
  type        = list(string)
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "client_cidrs" {
  description = "Addresses that may connect as Kafka clients."
  type        = list(string)
}

variable "listener" {
  description = "The secret with certificate and key, how clients prove who they are (SCRAM or CERTIFICATE), and who may do everything."
  type = object({
    tls_secret_arn = string
    authentication = string
    super_users    = list(string)
  })
}

variable "size" {
  description = "Number of agents, the average processor use that autoscaling aims at, and the memory of each."
  type = object({
    count_min   = number
    count_max   = number
    cpu_percent = number
    memory_mib  = number
  })
}

variable "deletion_protection" {
  description = "Whether the load balancer refuses to be deleted."
  type        = bool
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds the rights of every role. Null: none."
  type        = string
}
