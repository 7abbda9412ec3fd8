"""What the volume can do of what a run needs of it, in one line: the log's, and the message that the pod ends with.

    python -m jobs.probe_volume --folder /data

Ends with 64 where no run can work on it.
"""

from contextlib import suppress
from pathlib import Path

import click

from jobs.stage_job import run_job
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.cluster.probe import check_volume

MESSAGE = Path("/dev/termination-log")
"""Where Kubernetes reads a container's last words."""


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("/data"), show_default=True)
@click.option("--message", type=click.Path(path_type=Path), default=MESSAGE, show_default=True)
def main(folder: Path, message: Path) -> None:
    """Try out the volume."""
    try:
        line = check_volume(folder, lambda text: None)
    except ConfigError as error:
        _leave(message, str(error))
        raise
    _leave(message, line)
    click.echo(line)


def _leave(message: Path, line: str) -> None:
    if message.exists():
        with suppress(OSError):
            message.write_text(line)


if __name__ == "__main__":
    run_job(main, "probe_volume")
