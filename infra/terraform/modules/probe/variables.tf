variable "name" {
  description = "Prefix of all names."
  type        = string
}

variable "task" {
  description = "The values that all Siltstone tasks share."
  type = object({
    cluster_arn        = string
    execution_role_arn = string
    trust_policy       = string
    capacity_provider  = string
    launch_type        = string
    cpu_architecture   = string
    image              = string
    subnet_ids         = list(string)
    security_group_id  = string
  })
}

variable "secret_arn" {
  description = "Secret whose JSON has `client.properties`, and the files that it names."
  type        = string
}

variable "bootstrap_servers" {
  description = "Bootstrap servers of the agents."
  type        = string
}

variable "admin_security_group_id" {
  description = "Security group that may reach agents."
  type        = string
}

variable "log_configuration" {
  description = "logConfiguration of the containers."
  type = object({
    logDriver = string
    options   = map(string)
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
