"""semifed new."""

import json
from pathlib import Path

import click

from semifed.commands import options
from semifed.skeletons import names_of, new_method
from semifed.skeletons.images import new_images


@click.group()
def new() -> None:
    """Write files to start from.

    \b
    semifed new method my-method
    semifed new images digits
    """


@new.command("method")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Folder to write to (else this one).")
@options.as_json
def new_method_command(name: str, out: Path, as_json: bool) -> None:
    """Write a method that trains already, and its test: NAME.py and test_NAME.py.

    \b
    semifed new method my-method
    semifed check my_method:MyMethod
    semifed run --set method=my_method:MyMethod
    """
    files = new_method(name, out)
    module, kind = names_of(name)
    if as_json:
        click.echo(json.dumps({"method": f"{module}:{kind}", "files": [str(path) for path in files]}, indent=2))
        return
    for path in files:
        click.echo(f"wrote {path}")
    click.echo(f"next: edit {files[0].name}, then semifed check {module}:{kind}")


@new.command("images")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--labelled", default=10, show_default=True, help="Images with a label, of each class.")
@click.option("--unlabelled", default=1000, show_default=True, help="Images without one.")
@options.as_json
def new_images_command(folder: Path, labelled: int, unlabelled: int, as_json: bool) -> None:
    """Write an example of a folder to train on: digits in train/CLASS, unlabelled and test/CLASS.

    \b
    semifed new images digits
    semifed run --set data=folder:digits --set scenario.clients=5
    """
    counts = new_images(folder, labelled, unlabelled)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), **counts}, indent=2))
    else:
        click.echo(f"wrote {', '.join(f'{count} images in {folder / part}' for part, count in counts.items())}")
        click.echo(f"next: semifed run --set data=folder:{folder.as_posix()}")
