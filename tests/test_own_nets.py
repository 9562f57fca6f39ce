"""A user's own net and data: taken as they are if they train as pure functions, and refused by name if not."""

import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import semifed
from semifed.data.sources import Dataset
from semifed.engine.assemble import prepare
from semifed.engine.notices import notices
from semifed.errors import SettingError
from semifed.experiment import Experiment

Make = Callable[..., Experiment]


class Base(nn.Module):
    """One layer; what a user may get wrong is added by others."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(144, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.layer(x.flatten(1))


class Dropping(Base):
    def forward(self, x: Tensor) -> Any:
        return F.dropout(super().forward(x), 0.001, self.training)


class Noisy(Base):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + (torch.randn(4) if self.training else 0)


class Counting(Base):
    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.count += 1
        return super().forward(x)


class Tracking(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)

    def forward(self, x: Tensor) -> Any:
        return super().forward(self.norm(x.flatten(1)[:, None]))


class Choosing(Base):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x if bool(x.mean() > 0) else -x)


class Pair(Base):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Failing(Base):
    def forward(self, x: Tensor) -> Any:
        raise ValueError("only square\nimages")


def experiment(small: Make, module: nn.Module, data: Dataset, *assignments: str) -> Experiment:
    made = small(*assignments)
    parts = {name: getattr(made, name) for name in ("scenario", "train", "client", "engine", "method")}
    return Experiment(data=data, net=module, **parts)


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (Dropping, r"net: Dropping draws random numbers of its own in training.*use nn\.Dropout"),
        (Noisy, "net: Noisy draws random numbers of its own"),
        (Counting, "net: Counting changes count itself in training"),
        (Tracking, r"net: Tracking changes norm\.running_mean itself in training"),
        (Pair, "net: Pair gives outputs tuple, but the data have 4 classes"),
        (Failing, r"net: Failing does not take images of 1x12x12 \(channels x height x width\): only square$"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), "net: Sequential does not take images of 1x12x12"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), r"outputs of shape \(3,\), but the data have 4"),
        (lambda: nn.Conv2d(3, 4, 3), r"net: Conv2d does not take images of 1x12x12 .* to have 3 channels"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 4)), "net: Sequential does not take images of 1x12x12"),
    ],
)
def test_a_net_that_would_not_train_right_is_refused_at_the_start(
    small: Make, synthetic: Dataset, module: Callable[[], nn.Module], problem: str
) -> None:
    with pytest.raises(SettingError, match=problem):
        prepare(experiment(small, module(), synthetic))


def test_a_net_that_cannot_be_mapped_trains_alone(small: Make, synthetic: Dataset) -> None:
    heard: list[list[str]] = []
    asked = experiment(small, Choosing(), synthetic, "train.rounds=1")
    record = semifed.run(asked, watch=lambda event: heard.append(notices(event.assembly)))
    assert record.summary["status"] == "finished"
    assert "Choosing cannot train several clients at once, so they train one by one" in heard[0]
    alone = semifed.run(experiment(small, Choosing(), synthetic, "train.rounds=1", "engine.mode=single"))
    assert alone.rows[0]["terms"].keys() == record.rows[0]["terms"].keys()
    with pytest.raises(SettingError, match=r'Choosing cannot train several clients at once .*engine\.mode = "single"'):
        prepare(experiment(small, Choosing(), synthetic, "engine.mode=mapped"))


def test_the_check_leaves_the_random_numbers_of_the_user_alone(small: Make, synthetic: Dataset) -> None:
    module, before = Noisy(), torch.random.get_rng_state()
    with pytest.raises(SettingError):
        prepare(experiment(small, module, synthetic))
    assert torch.equal(before, torch.random.get_rng_state())


def test_own_net_and_own_data_run_from_python(small: Make) -> None:
    pixels = torch.randint(0, 256, (120, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(120) % 2
    pixels[labels == 1, 0] = 255
    data = Dataset("mine", pixels, labels, 100, ("dark", "bright"), (0.5,) * 3, (0.25,) * 3, True)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # a test of luck otherwise: a few rounds do not suit every first draw
        module = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.1), nn.Flatten(), nn.Linear(144, 2)
        )
    first = {name: value.clone() for name, value in module.state_dict().items()}
    record = semifed.run(experiment(small, module, data, "train.rounds=6", "client.lr=0.1"))
    assert record.rows[-1]["models"]["global"]["accuracy"] >= 95
    assert record.model.keys() == first.keys()
    assert all(torch.equal(value, first[name]) for name, value in module.state_dict().items())
    module.load_state_dict(record.model)
    module.eval()
    with torch.no_grad():
        images = (pixels[100:].float() / 255 - 0.5) / 0.25
        right = (module(images).argmax(1) == labels[100:]).float().mean().item()
    assert 100 * right == pytest.approx(record.rows[-1]["models"]["global"]["accuracy"])


class Block(nn.Module):
    """Two convolutions with batch normalisation around a skip."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.down = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        changed = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(changed + self.down(x))


class Residual(nn.Module):
    """In the manner of image-model libraries: a stem, blocks, pooling, and a layer `fc` with the classes."""

    def __init__(self, in_chans: int = 3, num_classes: int = 1000, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_chans, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.layer1, self.layer2 = Block(width, width, 1), Block(width, 2 * width, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.pool(self.layer2(self.layer1(F.relu(self.stem(x))))).flatten(1))


class Wanting(Base):
    def __init__(self, depth: int) -> None:
        super().__init__()


def flat(columns: int, classes: int) -> nn.Module:
    return nn.Linear(columns, classes)


def text(classes: int) -> str:
    return "no net"


HERE = __name__


def test_a_residual_net_is_named_built_for_the_data_and_trained(small: Make) -> None:
    made = small(f"net={HERE}:Residual", "train.rounds=1", "client.epochs=1")
    assembly = prepare(made)
    assert assembly.net.head == "fc"
    assert assembly.net.feature_width == 16
    backbone, head = assembly.net.split(assembly.net.init(0))
    assert set(head) == {"fc.weight", "fc.bias"}
    assert "layer2.bn1.running_var" in backbone
    record = semifed.run(made)
    assert record.summary["status"] == "finished"
    again = semifed.run(Experiment.of(made.tables()))
    assert all(torch.equal(value, again.model[name]) for name, value in record.model.items())


def test_features_are_what_goes_into_the_head(small: Make) -> None:
    net = prepare(small(f"net={HERE}:Residual")).net
    params, images, rows = net.init(3), torch.rand(5, 1, 12, 12), torch.ones(5, dtype=torch.bool)
    backbone, head = net.split(params)
    one, two = net.pass_with(torch.tensor(0)), net.pass_with(torch.tensor(0))
    features = one.features(backbone, images, rows)
    logits = F.linear(features, head["fc.weight"], head["fc.bias"])
    assert torch.allclose(logits, two(params, images, rows), atol=1e-6)
    assert set(one.statistics({"net": backbone})["net"]) == set(two.statistics({"net": params})["net"])


def test_a_method_with_a_backbone_of_its_own_takes_any_net_with_a_head(small: Make) -> None:
    place = ["method=fedcon", "scenario.labels=server", "scenario.gamma=0.2", "train.rounds=1", "client.epochs=1"]
    record = semifed.run(small(f"net={HERE}:Residual", *place))
    assert record.summary["status"] == "finished"
    headless = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (144, 1)), nn.Conv1d(144, 4, 1), nn.Flatten())
    made = small(*place)
    parts = {name: getattr(made, name) for name in ("data", "scenario", "train", "client", "engine", "method")}
    with pytest.raises(SettingError, match=r"net\.head: Sequential has no head that could be found"):
        semifed.run(Experiment(net=headless, **parts))
    with pytest.raises(SettingError, match=r"net\.head: layer2 of Residual is not the last part"):
        semifed.run(small(f"net={HERE}:Residual", *place, "net.head=layer2"))
    marked = Residual(1, 4)
    marked.semifed_head = "fc"  # type: ignore[assignment]
    assert semifed.run(Experiment(net=marked, **parts)).summary["status"] == "finished"


@pytest.mark.parametrize(
    ("assignments", "problem"),
    [
        (["net=nowhere:Net"], r"net\.name: cannot import 'nowhere' of 'nowhere:Net': ModuleNotFoundError"),
        ([f"net={HERE}:Nothing"], r"has no class 'Nothing' that is an nn\.Module"),
        ([f"net={HERE}:Wanting"], r"Wanting wants 'depth', which is not known here; give it a default"),
        ([f"net={HERE}:text"], r"text makes a str, wanted an nn\.Module"),
        (
            [f"net={HERE}:Residual", "net.head=classifier"],
            r"no part 'classifier'; it has stem, layer1, ",
        ),
        (["net=mlp", "net.head=fc"], r"net\.head: mlp is head\(features\(x\)\) already"),
        ([f"net={HERE}:Residual", "net.norm=group"], r"net\.norm: .* brings its normalisation"),
        (["net=residual"], r"there is no net 'residual'.*your own: module:Class"),
    ],
)
def test_a_named_net_that_cannot_be_used_says_why(small: Make, assignments: list[str], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        prepare(small(*assignments))


def test_a_function_may_make_the_net_and_vectors_reach_it_as_rows(small: Make) -> None:
    rows = torch.randn(300, 5, generator=torch.Generator().manual_seed(1))
    data = Dataset("rows", rows, (rows[:, 0] > 0).long(), 200, ("low", "high"), (0.0,) * 5, (1.0,) * 5, flips=False)
    made = small(f"net={HERE}:flat", "train.rounds=4", "client.lr=0.3")
    parts = {name: getattr(made, name) for name in ("net", "scenario", "train", "client", "engine", "method")}
    assert semifed.run(Experiment(data=data, **parts)).rows[-1]["models"]["global"]["accuracy"] > 80


class ConvNormAct(nn.Sequential):
    """A nested block with batch normalisation and an activation in place."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.SiLU(inplace=True))


class Excite(nn.Module):
    """Channels that are scaled in place by what their mean says."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_reduce, self.conv_expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.conv_expand(F.relu(self.conv_reduce(x.mean((2, 3), keepdim=True)), inplace=True))
        return x.mul_(gate.sigmoid_())


class Efficient(nn.Module):
    """As timm writes nets: forward_features, forward_head, `classifier`, and Python that looks at the numbers."""

    def __init__(self, in_chans: int = 3, num_classes: int = 1000, looks: bool = True) -> None:
        super().__init__()
        self.num_classes, self.looks = num_classes, looks
        self.conv_stem = ConvNormAct(in_chans, 8, 2)
        self.blocks = nn.Sequential(nn.Sequential(ConvNormAct(8, 16, 1), Excite(16)), ConvNormAct(16, 16, 2))
        self.global_pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(16, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        if self.looks and bool((x.abs() > 1e6).any()):  # data that decide what is run cannot be mapped
            x = x.clamp(-1e6, 1e6)
        return self.blocks(self.conv_stem(x))  # type: ignore[no-any-return]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.global_pool(x).flatten(1)
        return x if pre_logits else self.classifier(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def test_a_net_in_timms_manner_trains_one_by_one_where_it_cannot_be_mapped(small: Make) -> None:
    made = small(f"net={HERE}:Efficient", "train.rounds=1", "client.epochs=1")
    assembly = prepare(made)
    assert (assembly.net.head, assembly.net.feature_width) == ("classifier", 16)
    assert not assembly.workshop.form.mapped
    assert any("Efficient cannot train several clients at once" in one for one in notices(assembly))
    with pytest.raises(SettingError, match=r"engine\.mode: Efficient cannot train several clients at once"):
        prepare(small(f"net={HERE}:Efficient", "engine.mode=mapped"))
    record = semifed.run(made)
    assert record.summary["status"] == "finished"
    assert float(record.model["conv_stem.1.running_var"].std()) > 0, "batch statistics are trained too"
    parts = {name: getattr(made, name) for name in ("data", "scenario", "train", "client", "engine", "method")}
    plain = Experiment(net=Efficient(1, 4, looks=False), **parts)
    assert prepare(plain).workshop.form.mapped
    single = [semifed.run(one.replace("engine.mode=single")) for one in (plain, plain)]
    assert single[0].summary["model"] == single[1].summary["model"]


def without_torchvision() -> None:
    """timm imports torchvision for its image transforms, which are not used here: let it find names without content."""

    class Named(types.ModuleType):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.__path__ = []

        def __getattr__(self, name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            modes = ("NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")
            return type(name, (), {mode: number for number, mode in enumerate(modes)})

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

        def create_module(self, spec: ModuleSpec) -> types.ModuleType:
            return Named(spec.name)

        def exec_module(self, module: types.ModuleType) -> None:
            pass

    sys.meta_path.append(Finder())  # a real one comes first


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050", "test_efficientnet"])
def test_a_net_of_timm_trains(name: str, small: Make) -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed: pip install --no-deps timm")
    without_torchvision()
    timm = importlib.import_module("timm")
    made = small("train.rounds=1", "client.epochs=1", "scenario.clients=4", "train.clients_per_round=2")
    module = timm.create_model(name, in_chans=1, num_classes=4)
    parts = {name: getattr(made, name) for name in ("data", "scenario", "train", "client", "engine", "method")}
    experiment = Experiment(net=module, **parts)
    assert prepare(experiment).net.head in ("fc", "classifier")
    assert semifed.run(experiment).summary["status"] == "finished"
