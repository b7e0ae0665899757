output "container" {
  description = "The container that writes the files."
  value       = local.container
}

output "of_reader" {
  description = "Attributes of the container that reads them."
  value = {
    dependsOn   = [{ containerName = local.container.name, condition = "SUCCESS" }]
    mountPoints = [{ sourceVolume = local.volume, containerPath = local.folder, readOnly = true }]
  }
}

output "volume" {
  description = "Name of their volume. It is empty at the start of each task, and gone with it."
  value       = local.volume
}

output "client_config" {
  description = "Path of client.properties in the container that reads it."
  value       = "${local.folder}/client.properties"
}
