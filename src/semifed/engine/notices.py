"""What a user should know of a run before it starts, though nothing is wrong with it."""

from semifed.engine.assemble import Assembly
from semifed.engine.hostile import hostile_clients


def notices(assembly: Assembly) -> list[str]:
    """Plain sentences, said once at the start and kept in the run's folder."""
    scenario, experiment = assembly.scenario, assembly.experiment
    clients = len(scenario.clients)
    found = [*assembly.dataset.notes, *assembly.notes]
    if blanks := int((assembly.dataset.labels < 0).sum()):
        found.append(f"{blanks} training samples have no label; they are dealt out evenly, whatever the partition")
    if empty := clients - len(scenario.active()):
        found.append(f"{empty} of {clients} clients hold no data and are never drawn")
    if assembly.twins:
        found.append(f"{assembly.twins} training images stand in the data more than once")
    if scenario.missing:
        found.append(f"no sample with a label of class {', '.join(scenario.missing)}")
    if len(scenario.unused):
        found.append(f"{len(scenario.unused)} samples are held by nobody under this partition")
    if experiment.scenario.labels == "client":
        bare = sum(1 for holding in scenario.clients if len(holding) and not len(holding.labelled))
        if bare:
            found.append(f"{bare} of {clients} clients hold no label: terms that need one are 0 there")
    if assembly.net.unmapped:
        found.append(f"{assembly.net.name} cannot train several clients at once, so they train one by one")
    reads = {pool.holds for pool in experiment.method.reads().values()}
    if reads == {"labelled"} and not any(len(holding.labelled) for holding in scenario.clients):
        found.append("no client holds anything that this method reads: only the server trains")
    engine, cohort = experiment.engine, experiment.train.clients_per_round
    chunks = -(-cohort // engine.chunk)
    if chunks < engine.workers:
        fitting = -(-cohort // engine.workers)
        found.append(f"{engine.workers} workers have {chunks} chunks a round: set engine.chunk={fitting} or less")
    if hostile := hostile_clients(experiment, scenario.active().tolist()):
        found.append(f"attack: {len(hostile)} clients are hostile ({experiment.attack.kind}): {_short(hostile)}")
    return found


def _short(clients: list[int]) -> str:
    return ", ".join(map(str, clients[:10])) + (" ..." if len(clients) > 10 else "")
