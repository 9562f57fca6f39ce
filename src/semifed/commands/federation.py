"""semifed keys, serve, join, status: a run between real sites."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from semifed.commands import options
from semifed.engine.flower_client import SiteOptions
from semifed.errors import SettingError, StoppedError
from semifed.experiment import Experiment
from semifed.federation.joining import join as join_run
from semifed.federation.keys import make_keys
from semifed.federation.serving import need_flower
from semifed.federation.serving import serve as serve_run
from semifed.federation.status import status as ask_status
from semifed.results.folder import is_begun
from semifed.terminal import Watcher, result_table, standard_output, table

_insecure = click.option("--insecure", is_flag=True, help="Without TLS; with a loopback address only.")


def _say(text: str) -> None:
    click.echo(text, err=True)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--host", "hosts", multiple=True, help="Name or address by which sites reach the server; repeatable.")
@click.option("--site", "sites", multiple=True, help="Name of a site; may be repeated.")
@click.option("--days", type=int, default=365, show_default=True, help="For how long certificates are good.")
def keys(folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int) -> None:
    """Make a development CA, the server's certificate and a key for each site in FOLDER.

    \b
    semifed keys keys --host server.example.org --site north --site south --site west
    semifed keys keys --site east
    """
    need_flower()
    for line in make_keys(folder, hosts, sites, days):
        click.echo(line)


@click.command()
@options.experiment
@options.assignments
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@click.option(
    "--keys", "keys_folder", type=click.Path(path_type=Path), default=Path("keys/server"), show_default=True,
    help="The server's keys.",
)  # fmt: skip
@click.option("--address", default="127.0.0.1:8443", show_default=True, help="HOST:PORT to listen on.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@_insecure
@options.data_dir
@options.as_json
def serve(
    experiment: Path | None,
    assignments: Sequence[str],
    out: Path,
    keys_folder: Path,
    address: str,
    resume: bool,
    insecure: bool,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Run an experiment between sites that join over the network.

    \b
    semifed serve exp.toml --out runs/hospitals --address 0.0.0.0:8443
    semifed serve --out runs/hospitals --address 0.0.0.0:8443 --resume
    """
    there = out / "experiment.toml" if resume and is_begun(out) else None
    same = resume and not experiment and not assignments
    wanted = None if same else Experiment.read(experiment or there, assignments)
    watcher = Watcher(Console(stderr=True))
    try:
        record = serve_run(
            wanted,
            out,
            keys_folder=keys_folder,
            address=address,
            insecure=insecure,
            resume=resume,
            data_dir=data_dir,
            watch=watcher,
            say=_say,
        )
    except KeyboardInterrupt:
        again = "add --resume to the same command" if is_begun(out) else "the run had not begun"
        raise StoppedError(f"stopped; to go on, {again}") from None
    finally:
        watcher.close()
    if as_json:
        click.echo(json.dumps({**record.summary, "folder": str(out)}, indent=2))
    else:
        standard_output().print(result_table([(out.name, record)]))
        click.echo(f"everything is in {out}")


@click.command()
@click.option("--server", required=True, metavar="HOST:PORT", help="Where the server listens.")
@click.option("--site", required=True, help="The name of this site, as in its key.")
@click.option("--data", required=True, help="This site's data: a source as in `data`, or part:DATA:K/N to rehearse.")
@click.option("--keys", "keys_folder", type=click.Path(path_type=Path), help="This site's keys; else keys/sites/SITE.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where its state lies; else semifed-SITE.")
@click.option("--method", "own_method", default="", metavar="MODULE:CLASS", help="A method of your own to allow.")
@click.option("--device", default="cpu", show_default=True, help="Where it trains.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads it trains with.")
@click.option(
    "--patience", type=float, default=3600.0, show_default=True, help="Seconds without the server until it ends."
)
@click.option("--yes", is_flag=True, help="Take part without asking.")
@_insecure
@options.data_dir
def join(
    server: str,
    site: str,
    data: str,
    keys_folder: Path | None,
    folder: Path | None,
    own_method: str,
    device: str,
    threads: int,
    patience: float,
    yes: bool,
    insecure: bool,
    data_dir: Path | None,
) -> None:
    """Take part in a server's run with this site's data, which stay here.

    \b
    semifed join --server server.example.org:8443 --site north --data folder:/data/north
    semifed join --server localhost:8443 --site north --data part:mnist5k:0/3 --yes
    """

    def agree(text: str) -> bool:
        click.echo(text, err=True)
        if yes:
            return True
        if not sys.stdin.isatty():
            raise SettingError("join: nobody is here to agree; read the above and start with --yes")
        return click.confirm("take part?", err=True)

    own = SiteOptions(site, data, folder or Path(f"semifed-{site}"), data_dir, own_method, device, threads)
    try:
        join_run(
            server,
            own,
            keys_folder=keys_folder or Path("keys") / "sites" / site,
            agree=agree,
            insecure=insecure,
            patience=patience,
            say=_say,
        )
    except KeyboardInterrupt:
        raise StoppedError("stopped; the same command takes part again") from None
    click.echo("the run is over")


@click.command()
@click.option("--server", required=True, metavar="HOST:PORT", help="Where the server listens.")
@click.option(
    "--keys", "keys_folder", type=click.Path(path_type=Path), default=Path("keys/server"), show_default=True,
    help="The server's keys, or a site's.",
)  # fmt: skip
@_insecure
@options.as_json
def status(server: str, keys_folder: Path, insecure: bool, as_json: bool) -> None:
    """Show the sites of a running federation, its rounds, stragglers, refused updates and bytes.

    \b
    semifed status --server localhost:8443
    semifed status --server server.example.org:8443 --keys keys/sites/north --json
    """
    found = ask_status(server, keys_folder, insecure)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        [name, "yes" if one["connected"] else "no", "yes" if one["joined"] else "no", one["drawn"], one["straggled"],
         one["refused"]]
        for name, one in found["sites"].items()
    ]  # fmt: skip
    standard_output().print(table(["site", "connected", "joined", "rounds", "too late", "refused"], rows))
    sent = found["bytes"]
    click.echo(f"round {found['round']} of {found['rounds']}  {sent['down']:,} bytes down  {sent['up']:,} bytes up")
