"""What this site would send: which parts, how many bytes a round, and what they could reveal."""

from typing import Any

from semifed.engine.assemble import Assembly
from semifed.engine.rounds import begin
from semifed.experiment import method_name
from semifed.methods.base import Visit
from semifed.payload import nbytes


def sends(assembly: Assembly) -> dict[str, Any]:
    """Counted on what the method really makes, from a client that has just begun."""
    method, net = assembly.experiment.method, assembly.net
    down = method.download(begin(assembly).server, Visit(0, 0, 0))
    kept = method.enroll(net, down, 0)
    up = method.upload(net, method.start(down, kept), down)
    return {
        "method": method_name(type(method)),
        "net": f"{net.name}, {net.size:,} parameters",
        "parts sent": list(method.up),
        "bytes sent a round": nbytes(up),
        "bytes received a round": nbytes(down),
        "stays at the site": list(method.keeps),
        "could reveal": method.leaves,
        "never leaves": "images, labels, file names, this report",
    }
