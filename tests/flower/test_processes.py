"""Real processes on loopback, with TLS and keys: a server and three sites give what a simulation gives."""

from pathlib import Path

import pytest
import torch

from flower.test_seam import experiment
from flower.world import World, world
from semifed import run
from semifed.errors import SettingError
from semifed.experiment import Experiment
from semifed.federation.status import status
from semifed.results.files import read_tensors

pytest.importorskip("flwr")


def compare(exp: Experiment, between: World) -> None:
    """The same model to 1e-5 and the same bytes as in a simulation."""
    alone, rows = run(exp), between.rows()
    model, _ = read_tensors(between.out / "model.safetensors")
    for parameter, value in alone.model.items():
        torch.testing.assert_close(model[parameter], value, rtol=0, atol=1e-5)
    assert [row["bytes"] for row in rows] == [row["bytes"] for row in alone.rows]
    assert [row["clients"] for row in rows] == [row["clients"] for row in alone.rows]
    assert all(not row["stragglers"] and not row["refused"] for row in rows)


def patient(name: str, *assignments: str) -> Experiment:
    waiting = ("federation.deadline=900", "federation.patience=900")
    return experiment(name, *waiting, *assignments)


def outsider_is_refused(between: World) -> None:
    """Who has the CA certificate alone can start no run, register no node, read no run, and ask for no status."""
    import httpx
    from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.run_pb2 import GetRunRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from semifed.federation import keys

    authority = (between.keys / "ca.crt").read_bytes()
    key = keys.new_key()
    public = keys.public_bytes(key)
    fab = Fab(content=b"code of an outsider")
    with ControlHttpClient.from_server_address(between.server, False, authority, []) as control:
        for call, request in (
            (control.StartRun, StartRunRequest(fab=fab)),
            (control.RegisterNode, RegisterNodeRequest(public_key=public)),
            (control.ListRuns, ListRunsRequest()),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="404"):
                call(request)
    signed = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(between.server, False, authority, [signed]) as fleet:
        for call, request in (
            (fleet.RegisterNode, RegisterNodeFleetRequest(public_key=public)),
            (fleet.GetRun, GetRunRequest(node=Node(node_id=1), run_id=1)),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="404"):
                call(request)
        with pytest.raises(httpx.HTTPStatusError, match=r"4\d\d"):
            fleet.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=30))
    stranger = between.folder / "stranger"
    keys.write_private(stranger / "site.key", key)
    (stranger / "ca.crt").write_bytes(authority)
    with pytest.raises(SettingError, match="does not know a site stranger with this key"):
        status(between.server, stranger)


def test_a_server_and_three_sites_give_what_a_simulation_gives_and_outsiders_nothing(tmp_path: Path) -> None:
    exp = patient("fedcon")
    with world(tmp_path / "world", exp) as between:
        serve = between.serve()
        sites = [between.join(site) for site in "ab"]
        between.wait(lambda: "b has joined" in between.log("serve"), "joining")
        outsider_is_refused(between)
        told = status(between.server, between.keys / "sites" / "b")
        assert told["sites"]["b"]["joined"]
        assert not told["sites"]["c"]["connected"]
        assert told["round"] == 0
        sites.append(between.join("c"))
        for process in (serve, *sites):
            between.end(process)
        compare(exp, between)
        assert "keeps    its images, its labels, projector, target" in between.log("a")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedsiam-d", "fedmatch", "fedmix"])
def test_other_methods_too(name: str, tmp_path: Path) -> None:
    exp = patient(name)
    with world(tmp_path / "world", exp) as between:
        for process in (between.serve(), *(between.join(site) for site in "abc")):
            between.end(process)
        compare(exp, between)
