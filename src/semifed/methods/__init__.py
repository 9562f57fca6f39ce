"""The methods by name: one file a paper."""

from semifed.methods.base import Method
from semifed.methods.fedavg import FedAvg, FedAvgPlus, FedProx

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg+": FedAvgPlus,
    "fedprox": FedProx,
}
