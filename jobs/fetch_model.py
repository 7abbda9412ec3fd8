"""One model from the hub to the volume: safetensors and tokenizer only, whole or not at all, with checksums.

    python -m jobs.fetch_model --model Qwen/Qwen3-8B --revision COMMIT --folder /data/models/qwen3-8b

A folder that is there and whole is left alone; a download that was cut off goes on. Every other pod is offline.
"""

import shutil
from pathlib import Path

import click

from jobs.stage_job import run_job
from scope_selfplay.base.errors import CheckpointError, ConfigError, OutsideError
from scope_selfplay.store.folder import is_whole, publish_model

TOKEN = Path("/etc/scope/hub/token")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")


@click.command()
@click.option("--model", required=True, help="Repository of the model, such as Qwen/Qwen3-8B.")
@click.option("--revision", default="main", show_default=True, help="Commit, so that it stays what it is.")
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="Where it goes on the volume.")
@click.option("--token-file", type=click.Path(path_type=Path), default=TOKEN, show_default=True)
def main(model: str, revision: str, folder: Path, token_file: Path) -> None:
    """Bring one model from the hub to a folder."""
    if is_whole(folder, model, revision):
        click.echo(f"{folder}: is there already", err=True)
        return
    token = token_file.read_text().strip() if token_file.is_file() else None
    part = folder.with_name(f".{folder.name}.part")
    commit = _download(model, revision, part, token)
    from scope_selfplay.inference.checkpoints import policy_path

    try:
        policy_path(str(part))
    except CheckpointError as error:
        raise CheckpointError(f"{model}: {str(error).removeprefix(f'{part}: ')}") from None
    shutil.rmtree(part / ".cache", ignore_errors=True)
    publish_model(part, folder, model=model, revision=revision, commit=commit)
    click.echo(f"{folder}: {model} at {commit}", err=True)


def _download(model: str, revision: str, part: Path, token: str | None) -> str:
    """Raises ConfigError for what the hub does not have or does not give, OutsideError for a hub that is down."""
    from huggingface_hub import HfApi, errors, snapshot_download

    try:
        commit = str(HfApi(token=token).model_info(model, revision=revision).sha)
        snapshot_download(model, revision=commit, local_dir=part, allow_patterns=list(_WANTED), token=token)
    except errors.OfflineModeIsEnabled:
        raise ConfigError(
            f"HF_HUB_OFFLINE is set: {model} cannot be fetched; set it to 0 for this job"
        ) from None
    except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ConfigError(
            f"{model} at {revision}: the hub does not give it ({type(error).__name__}); correct the name, or accept "
            "its licence and put a token into the Secret hub-token"
        ) from None
    except Exception as error:  # noqa: BLE001 - the wall to the hub's client, whose HTTP library changes
        line = " ".join(str(error).split())[:200]
        raise OutsideError(
            f"{model}: the hub did not answer well ({type(error).__name__}: {line}); run this again"
        ) from None
    return commit


if __name__ == "__main__":
    run_job(main, "fetch_model")
