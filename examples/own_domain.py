"""A domain of one's own: a prompt pack over a folder of pages, and a rehearsal of its run at random.

    scope serve-judge --rehearsal --port 8001 &
    python examples/own_domain.py PAGES http://127.0.0.1:8001/v1

PAGES is a folder of Markdown. Policy and judge say anything in the right form: pack, documents and settings are tried
before a model is paid for.
"""

import sys
from contextlib import closing
from pathlib import Path

from scope_selfplay.base.terminal import Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.read import read_documents
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import open_run
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.reader import RunReader
from scope_selfplay.testing.random_policy import write_random_policy

DOMAIN = """\
title: Help desk
extends: support
task_types:
  return_a_device:
    description: A customer wants to send a named product back. Asks what to do before.
"""


def main(pages: str, judge: str) -> None:
    folder = Path("prompts", "helpdesk")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "domain.yaml").write_text(DOMAIN, encoding="utf-8")
    pack = load_pack(folder)
    documents = read_documents(Path(pages), pack.domain.corpus_reader)
    policy = write_random_policy(Path("random-policy"), documents, [prompt.body for prompt in pack.prompts])
    settings = {
        "name": "helpdesk",
        "domain": folder,
        "model": f"{{path: {policy}, max_length: 4096}}",
        "corpus.path": pages,
        "judge.kind": "model",
        "judge.endpoint.base_url": judge,
        "compare.tasks": 4,
    }
    config = load_config(None, [f"{key}={value}" for key, value in settings.items()])
    with closing(open_run(config, Path("runs"), Progress())) as run:
        make_tasks(run, iteration=0)
    with RunReader(run.folder.path) as reader:
        for found in reader.sql(
            "SELECT status, reason, count(*) AS times FROM candidates GROUP BY ALL ORDER BY ALL"
        ):
            print(f"{found['times']:3} {found['status']} {found['reason']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
