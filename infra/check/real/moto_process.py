"""moto in place of AWS, as a process: `python -m infra.check.real.moto_process`.

It serves on a free port of the loopback and prints one line of JSON: its address, and the identifiers of what it holds
from the start, because a configuration may name what was made elsewhere (a network, a key). It ends with its standard
input.

moto differs from AWS where the provider minds. Each difference that is mended here says so.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from hashlib import sha256
from importlib import import_module
from threading import Thread
from typing import Any, Final

from moto.amp.exceptions import RuleGroupNamespaceNotFound
from moto.applicationautoscaling import responses as autoscaling
from moto.ec2.exceptions import InvalidRouteError
from moto.ec2.models import ec2_backends, route_tables
from moto.emrserverless import models as emr
from moto.kms.models import kms_backends
from moto.rds import models as rds
from moto.secretsmanager import models as secrets
from werkzeug.serving import WSGIRequestHandler, make_server

ACCOUNT: Final = "123456789012"  # moto's own, and the one of the examples
REGION: Final = "eu-central-1"
NETWORK: Final = "10.30.0.0/16"
ALERT_MANAGER: Final = "{0}/workspaces/(?P<workspace_id>[^/]+)/alertmanager/definition$"
ACTIVE: Final = {"status": {"statusCode": "ACTIVE"}}

moto_register_target: Callable[[Any], str] = autoscaling.ApplicationAutoScalingResponse.register_scalable_target
moto_create_database: Callable[[Any, Any], Any] = rds.RDSBackend.create_db_instance
moto_delete_route: Callable[..., object] = route_tables.RouteBackend.delete_route


class Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def create_application(backend: Any, **given: Any) -> object:
    """AWS takes a type in any case, newer release labels, and starts no application before a job asks for it."""
    application: Any = emr.Application(account_id=backend.account_id, region_name=backend.region_name, **given)
    application.state = "CREATED"
    backend.applications[application.id] = application
    return application


tags_of_targets: dict[str, dict[str, str]] = {}
"""moto keeps no tags of targets of autoscaling, and fails when asked for them: they are kept here, by ARN."""


def register_target(response: Any) -> str:
    told = moto_register_target(response)
    tags_of_targets.setdefault(json.loads(told)["ScalableTargetARN"], {}).update(
        json.loads(response.body).get("Tags", {})
    )
    return told


def list_tags_of_target(response: Any) -> str:
    return json.dumps({"Tags": tags_of_targets.get(json.loads(response.body)["ResourceARN"], {})})


def create_database(backend: Any, given: Any) -> object:
    """moto gives every database the same identifier, by which the provider asks for its own, and knows no insights."""
    database = moto_create_database(backend, given)
    database.performance_insights_enabled = given.get("enable_performance_insights", False)
    for name in ("performance_insights_kms_key_id", "performance_insights_retention_period"):
        setattr(database, name, given.get(name))
    database.dbi_resource_id = f"db-{sha256(database.db_instance_identifier.encode()).hexdigest()[:26].upper()}"
    return database


def cancel_rotation(backend: Any, secret_id: str) -> str:
    """moto knows rotation by a function of one's own alone, not the one of RDS."""
    secret = backend.secrets[secret_id]
    secret.rotation_enabled = False
    return secret.to_short_dict()


def delete_route(backend: Any, table: str, destination: str | None = None, *others: str | None, **more: Any) -> object:
    """moto gives gateway endpoints no destination, so that a table has one route for all of them."""
    with suppress(InvalidRouteError) if destination is None else nullcontext():
        return moto_delete_route(backend, table, destination, *others, **more)
    return None


alert_managers: dict[str, str] = {}
"""moto knows no alert managers of Prometheus: they are kept here, by their path."""


def put_alert_manager_definition(response: Any) -> str:
    alert_managers[response.path] = json.loads(response.body)["data"]
    return json.dumps(ACTIVE)


def describe_alert_manager_definition(response: Any) -> str:
    if response.path not in alert_managers:
        raise RuleGroupNamespaceNotFound("alert manager")
    told = {"data": alert_managers[response.path], "createdAt": 0, "modifiedAt": 0, **ACTIVE}
    return json.dumps({"alertManagerDefinition": told})


def delete_alert_manager_definition(response: Any) -> str:
    alert_managers.pop(response.path, None)
    return json.dumps({})


def mend_prometheus() -> None:
    responses: Any = import_module("moto.amp.responses").PrometheusServiceResponse
    import_module("moto.amp.urls").url_paths[ALERT_MANAGER] = responses.dispatch
    responses.create_alert_manager_definition = put_alert_manager_definition
    for each in (put_alert_manager_definition, describe_alert_manager_definition, delete_alert_manager_definition):
        setattr(responses, each.__name__, each)


def mend() -> None:
    targets = autoscaling.ApplicationAutoScalingResponse
    for owner, name, does in (
        (emr.EMRServerlessBackend, "create_application", create_application),
        (targets, "register_scalable_target", register_target),
        (targets, "list_tags_for_resource", list_tags_of_target),
        (route_tables.RouteBackend, "delete_route", delete_route),
        (rds.RDSBackend, "create_db_instance", create_database),
        (secrets.SecretsManagerBackend, "cancel_rotate_secret", cancel_rotation),
    ):
        setattr(owner, name, does)
    mend_prometheus()
    os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"  # those of AWS; without them a role can have none attached


def furnished() -> dict[str, list[str]]:
    """Identifiers of the resources that are there from the start, by their prefix."""
    network = ec2_backends[ACCOUNT][REGION]
    vpc = network.create_vpc(NETWORK)
    subnets = [
        network.create_subnet(vpc.id, f"10.30.{number}.0/24", availability_zone=f"{REGION}{zone}")
        for number, zone in enumerate("ab")
    ]
    group = network.create_security_group("elsewhere", "Made by somebody else", vpc_id=vpc.id)
    key = kms_backends[ACCOUNT][REGION].create_key(None, "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "", None)
    return {"vpc-": [vpc.id], "subnet-": [one.id for one in subnets], "sg-": [group.id], "key/": [f"key/{key.id}"]}


def main() -> None:
    mend()
    moto: Any = import_module("moto.server")  # it has no types
    application = moto.DomainDispatcherApplication(moto.create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    Thread(target=server.serve_forever, daemon=True).start()
    told = {"endpoint": f"http://127.0.0.1:{server.server_port}", "known": furnished()}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
