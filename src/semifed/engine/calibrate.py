"""engine.mode = "fastest": a few steps in each form a run can take, and the fastest is what the experiment then says.

The choice is written into the experiment of the run, so that going on with it, or running it again, repeats it.
"""

import dataclasses
import time
from collections.abc import Mapping
from contextlib import suppress

from semifed import keys
from semifed.engine.assemble import Assembly, assemble
from semifed.engine.local import Task
from semifed.errors import SettingError
from semifed.experiment import EngineSettings
from semifed.methods.base import Visit

STEPS, TURNS = 2, 3

FORMS: Mapping[str, EngineSettings] = {
    "all at once": EngineSettings(mode="mapped"),
    "one by one": EngineSettings(mode="single", layout="channels-first"),
    "one by one, channels last": EngineSettings(mode="single", layout="channels-last"),
}


def calibrated(assembly: Assembly) -> tuple[Assembly, dict[str, float]]:
    """The assembly in its fastest form, and the seconds that each form took; unchanged if nobody asked."""
    if assembly.experiment.engine.mode != "fastest":
        return assembly, {}
    found = {}
    for name, settings in FORMS.items():
        with suppress(SettingError):  # a net that cannot be mapped is left with the other forms
            found[name] = _in_form(assembly, settings)
    seconds = dict.fromkeys(found, float("inf"))
    for _ in range(TURNS):  # by turns, so that a busy moment does not fall on one of them alone
        for name, one in found.items():
            seconds[name] = min(seconds[name], _seconds(one))
    fastest = min(seconds, key=lambda name: seconds[name])
    return found[fastest], {name: round(one, 4) for name, one in seconds.items()}


def _in_form(assembly: Assembly, form: EngineSettings) -> Assembly:
    engine = dataclasses.replace(assembly.experiment.engine, mode=form.mode, layout=form.layout)
    experiment = dataclasses.replace(assembly.experiment, engine=engine)
    made = assemble(experiment, assembly.dataset, assembly.scenario)
    return dataclasses.replace(made, twins=assembly.twins, notes=assembly.notes)


def _seconds(assembly: Assembly) -> float:
    """The time of a few steps of one chunk."""
    experiment, method, workshop = assembly.experiment, assembly.experiment.method, assembly.workshop
    training = dataclasses.replace(workshop.training, steps=STEPS)
    server = method.init(assembly.net, keys.key(experiment.seed, "init"))
    chunk = assembly.scenario.active()[: min(experiment.engine.chunk, experiment.train.clients_per_round)]
    tasks = []
    for slot, client in enumerate(chunk):
        down = method.download(server, Visit(int(client), slot, 0))
        tasks.append(Task(int(client), down, method.enroll(assembly.net, down, slot), 1))
    started = time.perf_counter()
    dataclasses.replace(workshop, training=training).train(0, tasks)
    return time.perf_counter() - started
