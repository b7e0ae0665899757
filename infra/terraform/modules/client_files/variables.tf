variable "secret_arns" {
  description = "Secrets of Kafka clients, by the names of the folders that their files get."
  type        = map(string)
}

variable "image" {
  description = "Image of Siltstone."
  type        = string
}

variable "log_configuration" {
  description = "logConfiguration of the container."
  type = object({
    logDriver = string
    options   = map(string)
  })
}
