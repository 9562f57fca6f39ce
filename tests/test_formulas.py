"""Every formula of the papers on numbers that fit on the back of an envelope."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from semifed.batch import Batch, Clock, Samples
from semifed.methods import averaging, neighbours
from semifed.methods.aligned import FixMatchAligned
from semifed.methods.base import Cohort, Visit
from semifed.methods.fedmatch import FedMatch
from semifed.methods.fedmix import FedMix
from semifed.methods.fedsiam import FedSiamD, FedSiamMT, FedSiamPi
from semifed.methods.losses import distance, kl, normalise_rows, vote
from semifed.methods.schedules import full_speed, growing_decay, own_epochs, own_steps, ramp_up, slow_down
from semifed.methods.selection import NEVER, boundary, divergence, linear, rectangle, remember
from semifed.methods.semifl import SemiFL, beta_quantile
from semifed.methods.sparsity import moved, thinned
from semifed.methods.ssfl import SSFL
from semifed.methods.uda import annealed
from semifed.nets.net import Net
from semifed.params import Params
from semifed.payload import Partial, nbytes


def clock(**values: int) -> Clock:
    given = {"round": 0, "rounds": 50, "visit": 1, "epoch": 0, "epochs": 5, "step": 0, "steps": 10} | values
    return Clock(**{name: torch.tensor(value) for name, value in given.items()})


def cohort(clients: tuple[int, ...], **values: Any) -> Cohort:
    ones = torch.ones(len(clients), dtype=torch.int64)
    first = Cohort(clients, examples=ones, visits=ones, round=0, rounds=50)
    return first._replace(**values)


@pytest.fixture
def two() -> Net:
    """Two inputs, two classes, no bias: the logits are W x."""
    return Net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)), (1, 1, 2))


def weights(*rows: list[float]) -> Params:
    return {"1.weight": torch.tensor(rows)}


# FedSiam


def test_beta_ramps_up_over_own_epochs() -> None:
    first_visit = [float(ramp_up(own_epochs(clock(epoch=epoch)), 10)) for epoch in range(5)]
    assert first_visit == pytest.approx([0.449, 0.638, 0.819, 0.951, 1.0], abs=1e-3)
    assert float(ramp_up(own_epochs(clock(visit=2)), 10)) == 1


@pytest.mark.parametrize(("divide", "rows"), [("all", 4), ("labelled", 1)])
def test_by_which_rows_the_cross_entropy_is_divided(divide: Literal["all", "labelled"], rows: int, two: Net) -> None:
    """One labelled row of four with logits (0, ln 3): minus the log of 3/4, over so many rows."""
    x, y = torch.tensor([[[[0.0, 1.0]]]] * 4), torch.tensor([1, -1, -1, -1])
    batch = Batch({"images": Samples((x, x), y, torch.ones(4, dtype=torch.bool))}, clock())
    parts = {"online": weights([0.0, 0.0], [0.0, math.log(3)])}
    terms = FedSiamPi(divide=divide).loss(two.pass_with(torch.tensor(0)), parts, batch)
    assert float(terms["cross_entropy"]) == pytest.approx(math.log(4 / 3) / rows)
    assert float(terms["consistency"]) == 0


def test_alpha_grows_with_own_epochs_up_to_its_cap() -> None:
    method = FedSiamMT(alpha=0.9)
    assert float(method.decay(clock())) == pytest.approx(1 - 1 / 7)
    assert float(method.decay(clock(epoch=4))) == pytest.approx(0.9)  # 1 - 1/11 would be 0.909
    assert float(growing_decay(torch.tensor(0.0), 0.999)) == 0
    assert float(method.server_decay(clock(visit=3, step=4))) == pytest.approx(min(1 - 1 / 25, 0.9))
    assert int(own_steps(clock(visit=3, step=4))) == 24


def test_divergence_takes_weight_and_bias_of_a_layer_together() -> None:
    online = {"a.weight": torch.tensor([3.0, 0.0]), "a.bias": torch.tensor([4.0]), "b.weight": torch.tensor([2.0])}
    target = {"a.weight": torch.tensor([3.0, 3.0]), "a.bias": torch.tensor([0.0]), "b.weight": torch.tensor([1.0])}
    far = divergence(online, target)
    assert float(far["a"]) == pytest.approx(5 / 5)
    assert float(far["b"]) == pytest.approx(1 / 2)


def test_linear_curve_falls_to_zero_and_is_mu_on_average() -> None:
    assert [linear(r, 50, 0.5, 3) for r in (1, 2, 3)] == [0, 0, 0]
    assert linear(4, 50, 0.5, 3) == 1  # 1.04 before it is cut
    assert linear(26, 50, 0.5, 3) == pytest.approx(50 * 24 / 47**2)
    assert linear(50, 50, 0.5, 3) == 0
    assert sum(linear(r, 50, 0.5, 3) for r in range(1, 51)) / 50 == pytest.approx(0.488, abs=1e-3)
    assert [linear(r, 3, 0.5, 3) for r in (3, 4)] == [0, 0]  # a run as short as its first phase


def test_rectangle_curve_has_one_level() -> None:
    assert [rectangle(r, 50, 0.5, 10, 40) for r in (10, 40, 50)] == [0, 0, 0]
    assert rectangle(11, 50, 0.5, 10, 40) == rectangle(39, 50, 0.5, 10, 40) == pytest.approx(25 / 30)


def test_boundary_is_the_quantile_that_lets_tau_of_the_layers_through() -> None:
    values = torch.tensor([0.4, 0.1, 0.3, 0.2])
    assert float(boundary(values, 0.5)) == pytest.approx(0.3)  # two of four are at least 0.3
    assert float(boundary(values, 1.0)) == pytest.approx(0.1)
    assert float(boundary(values, 0.0)) == pytest.approx(NEVER)
    assert float(boundary(values[:0], 0.5)) == 0


def test_window_forgets_old_rounds_and_the_first_ones() -> None:
    seen = {"values": torch.zeros(0), "rounds": torch.zeros(0, dtype=torch.int64)}
    for round in range(6):
        seen = remember(seen, torch.tensor([float(round)]), round, window=3, phi=2)
    assert seen["values"].tolist() == [3, 4, 5]
    early = remember({"values": torch.zeros(0), "rounds": torch.zeros(0, dtype=torch.int64)}, torch.ones(1), 1, 3, 2)
    assert not len(early["values"])


def test_withheld_layers_are_filled_from_the_same_clients_target(two: Net) -> None:
    online = Partial({"1.weight": torch.tensor([[[9.0]], [[2.0]]])}, {"1.weight": torch.tensor([False, True])})
    up = {
        "online": online,
        "target": {"1.weight": torch.tensor([[[1.0]], [[4.0]]])},
        "divergence": {"1": torch.tensor([0.1, 0.5])},
    }
    method = FedSiamD(phi=0)
    server = method.aggregate(two, method.init(two, 0), up, cohort((0, 1)))
    assert float(server["online"]["1.weight"]) == pytest.approx((1 + 2) / 2)
    assert float(server["target"]["1.weight"]) == pytest.approx((1 + 4) / 2)


def test_first_rounds_send_the_target_alone_and_it_equals_the_online_net(two: Net) -> None:
    method = FedSiamD(phi=3)
    server = method.init(two, 0)
    up = method.upload(two, server, method.download(server, Visit(0, 0, 0)))
    assert nbytes({"online": up["online"]}) == 0
    assert float(method.decay(clock(round=2))) == 0
    assert float(method.decay(clock(round=3))) > 0


def test_squared_distance_is_divided_by_the_classes_and_kl_is_not() -> None:
    logits, aim = torch.log(torch.tensor([[0.5, 0.5]])), torch.tensor([[0.75, 0.25]])
    assert float(distance("mse", aim, logits)) == pytest.approx((0.0625 + 0.0625) / 2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(distance("kl", aim, logits)) == pytest.approx(expected, abs=1e-6)
    assert float(kl(torch.tensor([[1.0, 0.0]]), logits)) == pytest.approx(math.log(2), abs=1e-6)


# FedMatch


def test_vote_takes_the_majority_and_a_tie_goes_to_the_lower_class() -> None:
    own, first, second = (torch.eye(3)[[place]] for place in (2, 1, 1))
    assert int(vote(own, [first, second], torch.tensor(1.0))) == 1
    assert int(vote(own, [first, second], torch.tensor(0.0))) == 2  # nobody helps: the own label
    assert int(vote(own, [first, torch.eye(3)[[0]]], torch.tensor(1.0))) == 0


def test_reliability_weighs_by_accuracy_on_the_validation_set(two: Net) -> None:
    identity, swapped = weights([1.0, 0.0], [0.0, 1.0]), weights([0.0, 1.0], [1.0, 0.0])
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).reshape(4, 1, 1, 2)
    validation = images, torch.tensor([0, 1, 0, 0])
    scores = neighbours.accuracies(two, [identity, swapped], validation)
    assert scores.tolist() == pytest.approx([0.75, 0.25])
    stacked = {"1.weight": torch.stack([identity["1.weight"], swapped["1.weight"]])}
    nothing = {"1.weight": torch.zeros(2, 2, 2)}
    everything = {"1.weight": torch.ones(2, 2, 2, dtype=torch.bool)}
    up = {"sigma": Partial(stacked, everything), "psi": Partial(nothing, everything)}
    method = FedMatch()
    merged = method.aggregate(two, method.init(two, 0), up, cohort((0, 1), validation=validation))
    assert merged["sigma"]["1.weight"].tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_sparsity_and_delta_decide_what_is_sent() -> None:
    psi = thinned({"w": torch.tensor([1e-6, 0.5, -0.25, 0.0])}, 5e-6)
    assert psi["w"].tolist() == [0, 0.5, -0.25, 0]
    sent = moved(psi, {"w": torch.tensor([0.0, 0.5, 0.0, 0.0])}, 5e-5)
    assert sent.sent["w"].tolist() == [False, False, True, False]
    assert nbytes({"psi": sent}) == 4 + 1  # one value and a bitmap of four entries


def test_helpers_are_the_best_or_the_nearest(two: Net) -> None:
    memory = neighbours.empty(weights([0.0, 0.0], [0.0, 0.0]), 1)
    psi = {"1.weight": torch.arange(3.0).reshape(3, 1, 1).expand(3, 2, 2)}
    models = [weights([float(place), 0.0], [0.0, 0.0]) for place in (0, 2, 3)]
    scores = torch.tensor([0.2, 0.9, 0.4])
    best = neighbours.remember(two, "accuracy", memory, models, psi, cohort((5, 6, 7)), scores, 1)
    assert float(neighbours.choose(best, 5, 1, wanted=True).values["1.weight"].mean()) == 1
    near = neighbours.remember(two, "embedding", memory, models, psi, cohort((5, 6, 7)), scores, 1)
    assert float(neighbours.choose(near, 7, 1, wanted=True).values["1.weight"].mean()) == 1
    unknown = neighbours.choose(near, 8, 1, wanted=True)
    assert not any(flag.any() for flag in unknown.sent.values())
    few = neighbours.remember(two, "accuracy", memory, models[:1], psi, cohort((5,)), scores[:1], 2)
    assert not any(flag.any() for flag in neighbours.choose(few, 5, 2, wanted=True).sent.values())


def test_plateau_divides_the_pace_by_three() -> None:
    plateau, paces = full_speed(), []
    for _ in range(4):
        plateau = slow_down(plateau, torch.tensor(0.7), patience=2)
        paces.append(float(plateau["pace"]))
    assert paces == pytest.approx([1, 1, 1 / 3, 1 / 3])


# FedMix and FedFreq


def test_frequency_weights() -> None:
    def share(*visits: int) -> list[float]:
        found: list[float] = averaging.frequency_weights(torch.tensor(visits)).tolist()
        return found

    assert share(1, 1, 1, 1, 1) == pytest.approx([0.2] * 5)
    assert share(1, 2, 1) == pytest.approx([0.375, 0.25, 0.375])  # (1 - 1/4) / 2, (1 - 2/4) / 2
    assert share(7) == [1]
    absent = cohort((0, 1, 2), examples=torch.tensor([5, 0, 5]), visits=torch.tensor([1, 9, 3]))
    assert averaging.weights(absent, "frequency").tolist() == pytest.approx([0.75, 0, 0.25])


def test_mix_of_three_models(two: Net) -> None:
    def flat(value: float) -> Params:
        return weights([value, value], [value, value])

    server = {"omega": flat(10.0), "sigma": flat(20.0)}
    up = {"psi": {"1.weight": torch.stack([flat(1.0)["1.weight"], flat(3.0)["1.weight"]])}}
    merged = FedMix().aggregate(two, server, up, cohort((0, 1)))
    assert float(merged["omega"]["1.weight"].mean()) == pytest.approx(0.5 * 2 + 0.3 * 20 + 0.2 * 10)
    assert torch.equal(merged["sigma"]["1.weight"], merged["omega"]["1.weight"])


# UDA, SSFL, SemiFL, FedCon


def test_training_signal_annealing() -> None:
    at = [float(annealed(torch.tensor(float(round)), torch.tensor(100.0), 10)) for round in (0, 50, 75, 100)]
    assert at == pytest.approx([0.106, 0.174, 0.358, 1.0], abs=1e-3)


def test_class_rates_are_aligned(two: Net) -> None:
    """The labeller gives class 0 three quarters of a row and finds it nine times in ten: it is labelled class 1."""
    method = FixMatchAligned(threshold=0.7)
    image = torch.tensor([[math.log(3), 0.0]]).reshape(1, 1, 1, 2)
    nobody = Samples((image,), torch.tensor([-1]), torch.tensor([False]))
    batch = Batch(
        {"unlabelled": Samples((image, image), torch.tensor([-1]), torch.tensor([True])), "labelled": nobody}, clock()
    )
    net = weights([1.0, 0.0], [0.0, 1.0])
    parts = {"net": net, "received": net, "rates": {"classes": torch.tensor([0.9, 0.1])}}
    terms = method.loss(two.pass_with(torch.tensor(0)), parts, batch)
    assert float(terms["pseudo_label"]) == pytest.approx(math.log(4))  # 3/4 : 1/4 over 9 : 1 is 1/4 : 3/4
    assert float(terms["rates"]) == pytest.approx((0.15**2 + 0.15**2) / 2)
    even = {**parts, "rates": method.init(two, 0)["rates"]}
    plain = method.loss(two.pass_with(torch.tensor(0)), even, batch)
    assert float(plain["pseudo_label"]) == pytest.approx(math.log(4 / 3))


def test_groups_are_averaged_with_the_server_and_clients_restart_from_theirs(two: Net) -> None:
    method = SSFL(groups=2)
    nets = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1).expand(4, 2, 2)
    server = {"net": weights([10.0, 10.0], [10.0, 10.0]), "groups": method.init(two, 0)["groups"]}
    merged = method.aggregate(two, server, {"net": {"1.weight": nets}}, cohort((3, 4, 5, 6), server_examples=8))
    means = [float(merged["groups"][group]["1.weight"].mean()) for group in ("0", "1")]
    assert means == pytest.approx([(10 + 1 + 3) / 3, (10 + 2 + 4) / 3])
    assert float(merged["net"]["1.weight"].mean()) == pytest.approx(sum(means) / 2)
    received = method.download(merged, Visit(client=9, slot=1, round=1))
    assert float(received["net"]["1.weight"].mean()) == pytest.approx(means[1])
    one_refused = {"net": {"1.weight": nets[1:]}}
    left = method.aggregate(two, server, one_refused, cohort((4, 5, 6), slots=(1, 2, 3)))
    assert [float(left["groups"][group]["1.weight"].mean()) for group in ("0", "1")] == pytest.approx([3, 3])
    nobody = SSFL(groups=5).aggregate(two, server | {"groups": dict.fromkeys("01234")}, one_refused, cohort((4, 5, 6)))
    assert float(nobody["groups"]["4"]["1.weight"].mean()) == pytest.approx(3)  # the mean of 2, 3 and 4
    alone = method.aggregate(two, server, {"net": {"1.weight": nets}}, cohort((3, 4, 5, 6)))
    assert float(alone["groups"]["0"]["1.weight"].mean()) == pytest.approx(2)


def test_global_step_has_momentum_and_skips_clients_that_did_not_train(two: Net) -> None:
    method = SemiFL()
    server = {"net": weights([4.0, 4.0], [4.0, 4.0]), "velocity": weights([2.0, 2.0], [2.0, 2.0])}
    nets = torch.tensor([1.0, 9.0]).reshape(2, 1, 1).expand(2, 2, 2)
    up = {"net": {"1.weight": nets}, "trained": torch.tensor([True, False])}
    merged = method.aggregate(two, server, up, cohort((0, 1)))
    assert float(merged["velocity"]["1.weight"].mean()) == 0.5 * 2 + (4 - 1)
    assert float(merged["net"]["1.weight"].mean()) == 4 - 4
    idle = {**up, "trained": torch.tensor([False, False])}
    assert method.aggregate(two, server, idle, cohort((0, 1))) is server


def test_mixing_share_follows_its_beta_distribution() -> None:
    points = torch.arange(1, 1000) / 1000
    drawn = beta_quantile(points, 0.75)
    assert float(drawn.mean()) == pytest.approx(0.5, abs=1e-3)
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * 0.75 + 1)), abs=2e-3)
    flat: Tensor = beta_quantile(points, 1.0)
    assert torch.allclose(flat, points, atol=1e-3)


def test_rows_are_normalised_over_real_rows_only() -> None:
    values = torch.tensor([[1.0], [3.0], [100.0]])
    normal = normalise_rows(values, torch.tensor([True, True, False]))
    assert normal[:2, 0].tolist() == pytest.approx([-1, 1], abs=1e-4)
