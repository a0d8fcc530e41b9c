"""``hcl learn``: go on learning from a model file with new labelled data."""

from __future__ import annotations

from pathlib import Path

import click

from stages import options


@click.command(cls=options.Command, short_help="Go on learning from a model file.")
@click.option("--model", type=options.PATH, required=True, help="Model file to go on from.")
@click.option(
    "--data",
    type=options.PATH,
    required=True,
    multiple=True,
    help="Labelled data: a folder of class folders, or embeddings (.h5, .npz). May be repeated.",
)
@click.option("--out", type=options.PATH, required=True, help="Model file to write.")
@click.option("--force", is_flag=True, help="Replace the file of --out if it is there.")
@click.option(
    "--as",
    "places",
    metavar="NEW=KNOWN",
    multiple=True,
    help="A class of a new name takes the place of a known one, in a task of its own.",
)
@click.option("--task", type=int, help="Number of the task, for a model that is told its tasks.")
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Passes over each data set.",
)
@click.option("--in-order", is_flag=True, help="Take samples as they lie there: a stream.")
@options.weights
@options.device
def command(
    model: Path,
    data: tuple[Path, ...],
    out: Path,
    force: bool,
    places: tuple[str, ...],
    task: int | None,
    epochs: int,
    in_order: bool,
    weights: str,
    device: str,
) -> None:
    """Go on learning from a model file with new labelled data, never told the task.

    Says which changes of task were noticed, and writes a new model file; the old one stays as it
    is. Samples that do not fill a batch wait in the new file: learning in one go or in several
    leaves the same bytes.
    """
    from hcl.errors import HCLError
    from hcl.files import check_file_to_write
    from hcl.settings import did_you_mean

    options.check_there(model, "model file")
    check_file_to_write(out, "--out")
    if out.exists() and out.samefile(model):
        raise HCLError(f"{out}: is the model that is gone on from; name another file with --out.")
    options.check_new(out, force)
    taken = dict(_pair(each) for each in places)

    from hcl.use import learning
    from hcl.use.trained import load

    trained = load(model, weights, device)
    trained.check_task(task)
    before = trained.about
    sets = [learning.read_data(trained, path, epochs > 1) for path in data]
    learning.check(trained, sets, taken)
    for path, each in zip(data, sets, strict=True):
        tasks = learning.tasks_in(trained, each)
        if len(tasks) > 1 and not in_order:
            listed = ", ".join(map(str, tasks))
            what = "they are shown one after the other; one of few batches may not be noticed"
            if trained.is_told:
                what = f"all of it is learned as task {task}"
            click.echo(f"Note: {path}: has classes of the tasks {listed}; {what}.", err=True)
    new = [name for each in sets for name in sorted(set(each.names)) if trained.is_new(name)]
    known = trained.known_names
    changes = learning.learn(
        trained, sets, task=task, places=taken, epochs=epochs, in_order=in_order
    )
    trained.save(out)
    for name in dict.fromkeys(new):
        if name not in taken:
            click.echo(f"a class that was never seen: {name}{did_you_mean(name, known)}")
    for change in changes:
        what = "a new task" if change.verdict == "new" else "a task came back"
        click.echo(f"batch {change.batch - before.batches + 1}: {what}, number {change.task + 1}")
    if not changes and not trained.is_told:
        click.echo(f"no change of task was noticed: it goes on as task {trained.task}")
    click.echo(
        f"{out}: {trained.about.samples - before.samples} samples learned, {trained.waiting} wait "
        f"for a whole batch; {trained.num_tasks} tasks"
    )


def _pair(text: str) -> tuple[str, str]:
    new, sign, known = text.partition("=")
    if not (new and sign and known):
        raise click.UsageError(f"--as {text}: expected NEW=KNOWN, two names of classes.")
    return new, known
