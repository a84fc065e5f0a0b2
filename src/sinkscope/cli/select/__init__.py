"""`sinkscope select`: train token selection, measure it, look at it, and control it."""

import typer

from sinkscope.cli import training
from sinkscope.cli.select import agree, control, evaluate, maps


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    select = typer.Typer(help="Send only the patches of a picture that matter, over a noisy channel.")
    training.add_to_select(select)
    for module in (evaluate, maps, control, agree):
        module.add_to(select)
    app.add_typer(select, name="select")
