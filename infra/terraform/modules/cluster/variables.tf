variable "name" {
  description = "Name of the cluster and prefix of all names."
  type        = string
}

variable "launch_type" {
  description = "FARGATE, or EC2 to run tasks on instances of this account."
  type        = string
}

variable "instance_type" {
  description = "Type of the instances if launch_type is EC2."
  type        = string
}

variable "hosts_max" {
  description = "Largest number of instances if launch_type is EC2."
  type        = number
}

variable "cpu_architecture" {
  description = "X86_64 or ARM64."
  type        = string
}

variable "deletion_protection" {
  description = "Whether hosts that run tasks must be gone before `terraform destroy` goes on."
  type        = bool
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
  description = "Settings of the admin task."
  type        = map(string)
}

variable "secrets" {
  description = "Environment variables of the admin task that ECS fills from Secrets Manager: a map of name to valueFrom."
  type        = map(string)
}

variable "client_secret_arn" {
  description = "Secret of the Kafka client as which commands run by hand connect to agents. Null: they cannot."
  type        = string
}

variable "migrate" {
  description = "Command that updates the schema, and the roles of agents and compactors."
  type        = list(string)
}

variable "role_secret_arns" {
  description = "ARNs of the secrets in which `migrate` keeps the passwords of agents and compactors."
  type        = list(string)
}

variable "secret_arns" {
  description = "ARNs of the secrets that ECS reads for all tasks."
  type        = list(string)
}

variable "log_group_arns" {
  description = "ARNs of the log groups of all tasks."
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

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
}

variable "permissions_boundary" {
  description = "ARN of the policy that bounds the rights of every role. Null: none."
  type        = string
}
