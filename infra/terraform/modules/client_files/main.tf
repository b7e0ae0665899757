# Files by which a task connects as a Kafka client: each field of the secret's JSON is a file with the field's name
# (`client.properties`, `ca.pem`, `password`). ECS gives secrets as variables, and Siltstone reads files: a container that
# ends before the other starts writes them into a volume of the task, in memory of nobody else.

locals {
  folder = "/client"
  volume = "client"

  write_files = <<-EOT
    import json, os, sys
    files = json.loads(os.environ["files"])
    if "client.properties" not in files:
        sys.exit("the secret has no client.properties")
    for name, content in files.items():
        if "/" in name or not isinstance(content, str):
            sys.exit("each field of the secret must be the name of a file, with its text")
        with open(os.open(f"/tmp/{name}", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o400), "w") as file:
            file.write(content)
  EOT

  container = {
    name                   = "client-files"
    image                  = var.image
    entryPoint             = ["/opt/siltstone/bin/python", "-c", local.write_files]
    command                = []
    essential              = false
    readonlyRootFilesystem = true
    # The image declares /tmp as a volume, so ECS gives this one the owner and rights of the image's /tmp.
    mountPoints      = [{ sourceVolume = local.volume, containerPath = "/tmp", readOnly = false }]
    secrets          = [{ name = "files", valueFrom = var.secret_arn }]
    logConfiguration = var.log_configuration
  }
}
