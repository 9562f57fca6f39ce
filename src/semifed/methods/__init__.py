"""The methods by name: one file a paper."""

from semifed.methods.aligned import FixMatchAligned
from semifed.methods.base import Method
from semifed.methods.fedavg import FedAvg, FedAvgPlus, FedProx
from semifed.methods.fedcon import FedCon
from semifed.methods.fedmatch import FedMatch
from semifed.methods.fedmix import FedMix
from semifed.methods.fedsem import FedSem
from semifed.methods.fedsiam import FedSiamD, FedSiamMT, FedSiamPi
from semifed.methods.fixmatch import FedProxFixMatch, FixMatch, FixMatchGlobal
from semifed.methods.local import FedAvgSL, FedProxSL, LocalFixMatch, LocalSL, LocalUDA
from semifed.methods.mean_teacher import MeanTeacher, NoSiam
from semifed.methods.semifl import SemiFL
from semifed.methods.ssfl import SSFL
from semifed.methods.uda import UDA, FedProxUDA

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg+": FedAvgPlus,
    "fedprox": FedProx,
    "fedsiam-pi": FedSiamPi,
    "fedsiam-mt": FedSiamMT,
    "fedsiam-d": FedSiamD,
    "nosiam": NoSiam,
    "fedmatch": FedMatch,
    "fedcon": FedCon,
    "fedmix": FedMix,
    "fedsem": FedSem,
    "fedavg-fixmatch": FixMatch,
    "fedprox-fixmatch": FedProxFixMatch,
    "fixmatch-global": FixMatchGlobal,
    "fixmatch-aligned": FixMatchAligned,
    "fedavg-uda": UDA,
    "fedprox-uda": FedProxUDA,
    "ssfl": SSFL,
    "semifl": SemiFL,
    "mean-teacher": MeanTeacher,
    "fedavg-sl": FedAvgSL,
    "fedprox-sl": FedProxSL,
    "local-sl": LocalSL,
    "local-uda": LocalUDA,
    "local-fixmatch": LocalFixMatch,
}
