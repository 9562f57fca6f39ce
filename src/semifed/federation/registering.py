"""What Flower's SuperLink is told once it runs: whose keys are welcome, and to start the relay."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

_APP = """[project]
name = "semifed-relay"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "semifed"
[tool.flwr.app.components]
serverapp = "semifed.federation.relay:app"
clientapp = "semifed.federation.relay:app"
"""


def register(link: str, authority: bytes, secret: str, sites: Mapping[str, bytes]) -> dict[str, int]:
    """Register the sites' keys and start the relay; the number of each site's node."""
    from flwr.cli.build import build_fab_from_files  # noqa: PLC0415
    from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest  # noqa: PLC0415
    from flwr.proto.fab_pb2 import Fab  # noqa: PLC0415
    from flwr.supercore.control import ControlHttpClient  # noqa: PLC0415
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # noqa: PLC0415

    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr-cli"), _WithSecret(secret)]
    with ControlHttpClient.from_server_address(link, False, authority, interceptors) as control:
        nodes = {
            site: int(control.RegisterNode(RegisterNodeRequest(public_key=key, name=site)).node_id)
            for site, key in sites.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Flower's own use of another library
            content = build_fab_from_files({"pyproject.toml": _APP.encode()})[0]
        control.StartRun(StartRunRequest(fab=Fab(content=content)))
    return nodes


class _WithSecret:
    """Says with every call that it comes from this process."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """One call."""
        context.request.headers["semifed-secret"] = self._secret
        return call_next(context)
