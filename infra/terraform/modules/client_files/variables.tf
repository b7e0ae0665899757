variable "secret_arn" {
  description = "Secret whose JSON has `client.properties`, and the files that it names."
  type        = string
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
