"""semifed predict, export and next: what a trained model is for."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import click

from semifed.commands import options
from semifed.errors import RunError
from semifed.trained.choice import choose
from semifed.trained.export import FORMATS, export
from semifed.trained.model import Model
from semifed.trained.predict import as_csv, as_json_text, predict
from semifed.writing import write_whole

run = click.argument("run", type=click.Path(path_type=Path))
images = click.argument("images", metavar="FOLDER", type=click.Path(path_type=Path))
out_file = click.option("-o", "--out", type=click.Path(path_type=Path), help="Write to this file, not to the screen.")
resize = click.option("--resize", is_flag=True, help="Resize images of another size than the model was trained on.")
skip_corrupt = click.option("--skip-corrupt", is_flag=True, help="Leave out files that are no readable image.")


@click.command("predict")
@run
@images
@out_file
@click.option("--all", "every", is_flag=True, help="A column for the probability of every class.")
@resize
@skip_corrupt
@options.data_dir
@options.as_json
def predict_command(
    run: Path,
    images: Path,
    out: Path | None,
    every: bool,
    resize: bool,
    skip_corrupt: bool,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Say of every image in FOLDER (or an npz) its likeliest class, as a CSV of file, class, probability.

    \b
    semifed predict runs/mine photos -o predictions.csv
    semifed predict runs/mine photos --all --resize
    """
    model = Model.load(run, data_dir=data_dir)
    found = predict(model, images, resize=resize, skip_corrupt=skip_corrupt)
    classes = model.taken.classes if every else ()
    _give(as_json_text(found, classes) if as_json else as_csv(found, classes), out)


@click.command("next")
@run
@images
@click.option("-n", "--number", "count", default=50, show_default=True, help="How many images.")
@out_file
@resize
@skip_corrupt
@options.data_dir
@options.as_json
def next_command(
    run: Path,
    images: Path,
    count: int,
    out: Path | None,
    resize: bool,
    skip_corrupt: bool,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """List the images in FOLDER (or an npz) that are most worth a label: unsure, and unlike each other.

    \b
    semifed next runs/mine unlabelled -n 50
    semifed next runs/mine unlabelled -n 20 -o label-these.csv
    """
    chosen = choose(Model.load(run, data_dir=data_dir), images, count, resize=resize, skip_corrupt=skip_corrupt)
    if as_json:
        _give(json.dumps([one._asdict() for one in chosen], indent=2) + "\n", out)
        return
    made = io.StringIO()
    table = csv.writer(made, lineterminator="\n")
    table.writerow(["rank", "file", "guess", "unsure"])
    table.writerows([rank, one.file, one.guess, f"{one.unsure:.6f}"] for rank, one in enumerate(chosen, 1))
    _give(made.getvalue(), out)


@click.command("export")
@run
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(FORMATS),
    default=("safetensors",),
    show_default=True,
    help="Also several times.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder to write to (else RUN/export).")
@options.data_dir
@options.as_json
def export_command(run: Path, formats: Sequence[str], out: Path | None, data_dir: Path | None, as_json: bool) -> None:
    """Write the model of a run for use elsewhere, with a card that says what it is.

    onnx and torch make a program with the normalisation inside: uint8 images in, logits and probabilities out. Each
    is compared with our own model on real images before it is kept. onnx needs: pip install 'semifed[export]'

    \b
    semifed export runs/mine
    semifed export runs/mine --format onnx --format torch -o delivery
    """
    files = export(Model.load(run, data_dir=data_dir), out, formats, data_dir)
    if as_json:
        click.echo(json.dumps({name: str(path) for name, path in files.items()}, indent=2))
    else:
        for name, path in files.items():
            click.echo(f"{name:12} {path}")


def _give(text: str, out: Path | None) -> None:
    """To the file, or to standard output."""
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror}; give another -o") from None
