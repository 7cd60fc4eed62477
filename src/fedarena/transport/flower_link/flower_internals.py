"""What we use of Flower beyond its documented interface, in one place, held to the versions with which it was tried."""

from __future__ import annotations

import os
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedarena.config.errors import BadValue, DataMissing

KNOWN = ("1.41", "1.42")
INSTALL = "pip install 'fedarena[flower]'"

# Nothing of ours calls home.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def check_version() -> str:
    """The installed version, if it is one of those that we know."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise DataMissing("a federation needs the package flwr", remedy=INSTALL) from None
    if ".".join(found.split(".")[:2]) not in KNOWN:
        raise BadValue(f"fedarena works with Flower {' and '.join(KNOWN)}, not with {found}", remedy=INSTALL)
    return found


VERSION = check_version()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of protobuf's, on generated code that is a major version older
    import httpx
    from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
    from flwr.app.message import make_message, remove_content_from_message
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SubStatus
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        PullMessagesRequest,
        PushMessagesRequest,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest,
        ObjectTree,
        PullObjectRequest,
        PushObjectRequest,
    )
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        GetNodesRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushAppMessagesRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.supercore.constant import TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.date import now
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

__all__ = [
    "SUPERLINK_NODE_ID",
    "AcquireTaskRequest",
    "ActivateNodeRequest",
    "ConfigRecord",
    "ConfirmMessageReceivedRequest",
    "ControlHttpClient",
    "DeactivateNodeRequest",
    "Error",
    "ErrorCode",
    "Fab",
    "FleetHttpClient",
    "GetNodesRequest",
    "Message",
    "Metadata",
    "Node",
    "NodeAuthHttpInterceptor",
    "ObjectTree",
    "PullAppMessagesRequest",
    "PullMessagesRequest",
    "PullObjectRequest",
    "PullTaskInputRequest",
    "PushAppMessagesRequest",
    "PushMessagesRequest",
    "PushObjectRequest",
    "PushTaskOutputRequest",
    "RecordDict",
    "RegisterNodeRequest",
    "RuntimeHttpClient",
    "RuntimeVersionMetadata",
    "SendNodeHeartbeatRequest",
    "SendTaskHeartbeatRequest",
    "StartRunRequest",
    "SubStatus",
    "TaskType",
    "get_all_nested_objects",
    "get_object_tree",
    "httpx",
    "make_message",
    "message_from_proto",
    "message_to_proto",
    "no_object_id_recompute",
    "now",
    "remove_content_from_message",
]

APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedarena-link"
version = "1.0.0"
description = "Carries fedarena's messages."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedarena"

[tool.flwr.app.components]
serverapp = "link:nothing"
clientapp = "link:nothing"
"""


def smallest_app() -> bytes:
    """The bundle without which Flower starts no run. Nobody executes it: both ends are processes of ours."""
    from flwr.cli.build import build_fab_from_files

    files = {"pyproject.toml": APP.encode(), "link.py": b"nothing = None\n"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library's, on the way in which Flower calls it
        bundle: bytes = build_fab_from_files(files)[0]
    return bundle


def connect(client: type, address: str, trust: Any, interceptors: list[Any]) -> Any:
    """One of Flower's clients, which goes straight to the address whatever proxy the environment names."""
    made = client(f"https://{address}", interceptors=interceptors, verify=trust)
    made._client.close()
    made._client = httpx.Client(verify=trust, timeout=30.0, trust_env=False)
    return made


# Layers of the SuperLink that do nothing without a licence, an event log or tracing, and yet take half of each call.
IDLE = {
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "ControlEventLogMiddleware",
    "RuntimeTracingMiddleware",
    "FleetEventLogMiddleware",
}


def superlink_app() -> tuple[Any, Any]:
    """Flower's SuperLink with its state in memory and node authentication on, and that state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flwr.superlink.main import create_app

    app = create_app()
    app.user_middleware = [layer for layer in app.user_middleware if getattr(layer.cls, "__name__", "") not in IDLE]
    app.state.enable_supernode_auth = True
    return app, app.state.linkstate_factory.state()
