# Files by which a task connects as a Kafka client: each field of a secret's JSON is a file with the field's name
# (`client.properties`, `ca.pem`, `password`). ECS gives secrets as variables, and Siltstone reads files: a container that
# ends before the other starts writes them into a volume of the task, in memory of nobody else.

locals {
  folder = "/clients"
  volume = "clients"

  write_files = <<-EOT
    import json, os, sys
    for client in sys.argv[1:]:
        os.mkdir(f"/tmp/{client}", 0o700)
        for name, content in json.loads(os.environ[client]).items():
            with open(os.open(f"/tmp/{client}/{name}", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o400), "w") as file:
                file.write(content)
  EOT

  container = {
    name                   = "clients"
    image                  = var.image
    entryPoint             = ["/opt/siltstone/bin/python", "-c", local.write_files]
    command                = sort(keys(var.secret_arns))
    essential              = false
    readonlyRootFilesystem = true
    # The image declares /tmp as a volume, so ECS gives this one the owner and rights of the image's /tmp.
    mountPoints      = [{ sourceVolume = local.volume, containerPath = "/tmp", readOnly = false }]
    secrets          = [for client in sort(keys(var.secret_arns)) : { name = client, valueFrom = var.secret_arns[client] }]
    logConfiguration = var.log_configuration
  }
}
