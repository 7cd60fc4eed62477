"""The names of Flower that fedarena uses beyond the documented ones, in one place and for the versions they were tested with.

tests/transport/flower_link/test_flower_internals.py imports every name and reports the first that is gone.
"""

# ruff: noqa: F401
# mypy: implicit-reexport
from __future__ import annotations

import os
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import httpx

from fedarena.config.errors import BadValue, MissingDependency

KNOWN = ("1.41", "1.42")
INSTALL = "pip install 'fedarena[flower]'"

# Flower reports its use to its makers and looks for updates unless these are set.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def check_version() -> str:
    """Return the version of Flower, or raise an error if it is missing or not one that is known to work."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise MissingDependency("a federation needs the package flwr", remedy=INSTALL) from None
    if ".".join(found.split(".")[:2]) not in KNOWN:
        raise BadValue(f"fedarena works with Flower {' and '.join(KNOWN)}, not with {found}", remedy=INSTALL)
    return found


check_version()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # protobuf warns about generated code that is a major version older
    # Documented names.
    from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict

    # Names without a documented equivalent, each with the reason why it is needed. The documented ways to start a
    # SuperLink and a SuperNode are commands that run apps in processes of their own; here both ends live in processes of
    # fedarena, and call the SuperLink themselves.
    from flwr.app.message import make_message  # `Message(...)` takes run and sender from Flower's own ServerApp process
    from flwr.common.constant import (
        SUPERLINK_NODE_ID,  # the sender of messages that a ServerApp sends
        ErrorCode,  # why a message has no reply: `flwr.app.Error` documents the number, not its values
        SubStatus,  # how a run ended, for PushTaskOutput
    )
    from flwr.common.serde import (
        message_from_proto,  # requests and responses hold messages in this form
        message_to_proto,
    )
    from flwr.proto.control_pb2 import (
        RegisterNodeRequest,  # makes the public key of a client known
        StartRunRequest,  # messages belong to a run
    )
    from flwr.proto.fab_pb2 import Fab  # a run needs an app, even one that is never executed
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,  # a client appears
        DeactivateNodeRequest,  # a client leaves
        PullMessagesRequest,  # a client asks for messages
        PushMessagesRequest,  # a client announces a reply
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest  # a client that trains for long is still there
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest,  # lets the SuperLink drop the content of a message
        PullObjectRequest,  # the content of a message travels as objects, each in a call of its own
        PushObjectRequest,
    )
    from flwr.proto.node_pb2 import Node  # how requests name the caller
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,  # the server takes the place of Flower's ServerApp process
        GetNodesRequest,  # which clients are connected
        PullAppMessagesRequest,  # replies of clients
        PullTaskInputRequest,  # the number of the run
        PushAppMessagesRequest,  # messages to clients
        PushTaskOutputRequest,  # ends the run
        SendTaskHeartbeatRequest,  # Flower ends a run whose ServerApp is silent
    )
    from flwr.supercore.constant import TaskType  # AcquireTask must ask for the task of a ServerApp
    from flwr.supercore.control import ControlHttpClient  # calls of a SuperLink's owner
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,  # the objects of which a message consists
        get_object_tree,  # announces them
        no_object_id_recompute,  # else each look at an id hashes the whole content again
    )
    from flwr.supercore.runtime import RuntimeHttpClient  # calls of a ServerApp
    from flwr.supercore.runtime_version_compatibility import (
        RuntimeVersionMetadata,  # headers that the SuperLink expects
    )
    from flwr.supernode.fleet_http_client import FleetHttpClient  # calls of a SuperNode
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # signs the calls of a SuperNode

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
    """Return the app bundle that Flower needs to start a run; it is never executed."""
    from flwr.cli.build import build_fab_from_files  # the documented way is a command that writes a file

    files = {"pyproject.toml": APP.encode(), "link.py": b"nothing = None\n"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library warns about the way in which Flower calls it
        bundle: bytes = build_fab_from_files(files)[0]
    return bundle


def connect(client: type, address: str, trust: Any, interceptors: list[Any]) -> Any:
    """Return an HTTP client of Flower that connects directly and ignores the proxies of the environment."""
    made = client(f"https://{address}", interceptors=interceptors, verify=trust)
    made._client.close()
    made._client = httpx.Client(verify=trust, timeout=30.0, trust_env=False)
    return made


# Middleware of the SuperLink for licences, event logs and tracing, which are not used here and take half of each call.
IDLE = {
    "ControlSensitiveResponseMiddleware",
    "ControlLicenseMiddleware",
    "ControlEventLogMiddleware",
    "RuntimeTracingMiddleware",
    "FleetEventLogMiddleware",
}


def superlink_app() -> tuple[Any, Any]:
    """Return Flower's SuperLink application, with its state in memory and node authentication on, and that state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flwr.superlink.main import create_app  # the documented command cannot be put behind access control

    app = create_app()
    app.user_middleware = [layer for layer in app.user_middleware if getattr(layer.cls, "__name__", "") not in IDLE]
    app.state.enable_supernode_auth = True
    return app, app.state.linkstate_factory.state()
