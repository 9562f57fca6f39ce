"""Steps run wherever their tensors are: shown on the "meta" device, which takes no tensor of the CPU beside its own.

There is no GPU where the tests run. A 0-d tensor of the CPU may stand beside tensors of another device, as with CUDA.
"""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from semifed.data.batches import Stream, When
from semifed.engine.assemble import prepare
from semifed.engine.local import Role
from semifed.engine.step import State, Stepper
from semifed.experiment import Experiment
from semifed.methods import METHODS
from semifed.methods.base import Visit
from semifed.params import leaves, stack, tree_map


def elsewhere(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


class Yes:
    """An answer that can be asked without numbers."""

    def all(self) -> bool:
        return True

    def any(self) -> bool:
        return True


@pytest.mark.parametrize("net", ["mnist-cnn", "mlp"])
@pytest.mark.parametrize("name", METHODS)
def test_no_tensor_of_a_step_is_made_on_a_fixed_device(name: str, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = METHODS[name].labels[0]
    words = [f"net={net}", f"method={name}", f"scenario.labels={labels}", "scenario.validation=50", "client.clip=1"]
    assembly = prepare(Experiment.read(None, words))
    method, workshop = assembly.experiment.method, assembly.workshop
    role = Role(method.client(), method.reads(), workshop.training)
    server = method.init(assembly.net, 0)
    downs = [method.download(server, Visit(client, client, 0)) for client in range(2)]
    starts = [method.start(down, method.enroll(assembly.net, down, 0)) for down in downs]
    plans = [workshop._plan(role, 0, client) for client in range(2)]
    stream = Stream(plans, role.pools, workshop.images, workshop.views, When(0, 3, [1, 1]))
    monkeypatch.setattr(Stepper, "_pulled", lambda *_: Yes())
    monkeypatch.setattr("semifed.engine.step.Recorded", lambda function: function)  # there is nothing to compare
    stepper = Stepper(assembly.net, role.moves, workshop.training, True, workshop._pace())
    state = State(tree_map(elsewhere, stack(starts)), {})
    active = torch.ones(2, dtype=torch.bool, device="meta")
    for step in range(2):
        batch, keys = tree_map(elsewhere, stream.batch(step)), torch.empty(2, dtype=torch.int64, device="meta")
        state, seen = stepper(state, batch, keys, active)
        assert {tensor.device.type for tensor in leaves(tuple(seen))} == {"meta"}
    up = vmap(partial(method.upload, assembly.net))(state.parts, tree_map(elsewhere, stack(downs)))
    assert {tensor.device.type for tensor in (*leaves(state.parts), *leaves(up))} == {"meta"}
