"""`scope play judge`: a person in the judge's place; `scope judge audit` and `scope judge exam`."""

import getpass
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scope_selfplay.base.errors import ConfigError, ExitCode, UserError
from scope_selfplay.base.terminal import PATH, Progress, quiet_libraries, shown_progress
from scope_selfplay.base.text import one_line
from scope_selfplay.judge.commands import judge

if TYPE_CHECKING:
    from scope_selfplay.judge.checks import Exam

SAMPLE = 600


@judge.command("audit")
@click.argument("run")
@click.option("--sample", default=SAMPLE, type=click.IntRange(min=1), help="Most calls to make.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def audit_command(run: str, sample: int, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Ask again what RUN has paid its judge for: with other draws, in the other order, with longer answers. Stopped
    and started again, it goes on.

    \b
    scope judge audit runs/demo --sample 2000
    """
    from scope_selfplay.play.audit import audit_judge
    from scope_selfplay.report.health import audit_values
    from scope_selfplay.report.judge import judge_checks, judge_table
    from scope_selfplay.report.sections import Section, text_of
    from scope_selfplay.report.signals import signal_of
    from scope_selfplay.store.reader import RunReader, find_run

    quiet_libraries()
    path = find_run(run)
    with shown_progress() as progress:
        report = audit_judge(path, overrides, progress, sample=sample)
    with RunReader(path) as reader:
        checks = judge_checks(reader)
    signals = (signal_of(name, value) for name, value in audit_values(report).items())
    warnings = [signal.warning for signal in signals if signal.warning]
    if as_json:
        shown = report.model_copy(update={"checks": checks}).model_dump(mode="json")
        click.echo(json.dumps({**shown, "warnings": warnings}, ensure_ascii=False))
        return
    click.echo(f"{one_line(report.judge)}: {report.calls} calls in {path / 'audit'}")
    click.echo("\n".join(text_of([Section("The judge", [judge_table(checks)])])))
    lines = (f"  {one_line(warning)}" for warning in warnings)
    click.echo("\n".join(["\n== Warnings" if warnings else "\nnothing to warn of", *lines]))


def _exams(
    packs: Sequence[str],
    *,
    config: Path | None,
    base_url: str | None,
    documents: Path | None,
    judgements: int,
    out: Path,
    overrides: Sequence[str],
    progress: Progress,
) -> dict[str, "Exam"]:
    """One exam for each pack, by its name. Raises ConfigError, CorpusError, JudgeError."""
    from scope_selfplay.config.load import load_config
    from scope_selfplay.corpus.read import read_documents
    from scope_selfplay.prompts.folder import load_pack, pack_path
    from scope_selfplay.run.begin import run_documents, with_judge_prompts
    from scope_selfplay.run.exam import RunExam, questions_of
    from scope_selfplay.store.folder import RunFolder

    given = ["judge.kind=model", f"judge.endpoint.base_url={base_url}"] if base_url else []
    settings, found = load_config(config, [*overrides, *given]), {}
    if settings.judge.kind != "model":
        raise ConfigError("no judge to examine: give --base-url, or --config with judge.kind: model")
    for name in packs or (settings.domain,):
        pack = with_judge_prompts(load_pack(pack_path(name)), settings.judge)
        if documents:
            read = read_documents(documents, pack.domain.corpus_reader)
        else:
            read = run_documents(settings, pack) if config else []
        sample = judgements // len(questions_of(settings, pack))
        folder = RunFolder(out / pack.domain.name)
        exam = RunExam(settings, pack, read, folder, progress.say, sample).before_a_run()
        if exam is None:
            raise ConfigError(
                "the judge answers at random, for a rehearsal; examine the one that is to judge"
            )
        found[name] = exam
    return found


@judge.command("exam")
@click.argument("run", required=False)
@click.option(
    "--config", type=click.Path(exists=True, path_type=Path), help="Config of a run that is to begin."
)
@click.option("--base-url", help="Endpoint of the judge; short for judge.endpoint.base_url.")
@click.option("--pack", "packs", multiple=True, help="Prompt pack that asks; several are compared.")
@click.option("--documents", type=click.Path(exists=True, path_type=Path), help="What cases are made from.")
@click.option("--judgements", default=200, type=click.IntRange(min=40), help="Most to ask.")
@click.option("--out", type=PATH, default="judge-exam", help="Keeps what was asked, to go on.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def exam_command(run: str | None, packs: tuple[str, ...], *, as_json: bool, **options: Any) -> None:
    """Examine a judge in every question of a run, in cases whose verdict is known; or show the exam of RUN.

    Ends with exit code 64 where a question is beyond it with every pack.

    \b
    scope judge exam --base-url http://127.0.0.1:8000/v1 --documents corpus.jsonl --pack wikipedia --pack small
    """
    from scope_selfplay.judge.checks import read_exam
    from scope_selfplay.report.judge import exam_tables
    from scope_selfplay.report.sections import Section, text_of
    from scope_selfplay.run.exam import waiting_folder, what_fails, what_is_in_doubt
    from scope_selfplay.store.folder import RunFolder
    from scope_selfplay.store.reader import find_run

    quiet_libraries()
    if run:
        # A run that is not begun may have been examined already.
        waiting = waiting_folder(Path(run).parent, Path(run).name)
        kept = read_exam(waiting) or read_exam(RunFolder(path := find_run(run)))
        if kept is None:
            raise ConfigError(f"{path}: its judge has held no exam; give --base-url or --config to hold one")
        found = {run: kept}
    else:
        with shown_progress() as progress:
            found = _exams(packs, progress=progress, **options)
    if as_json:
        click.echo(json.dumps({name: exam.model_dump(mode="json") for name, exam in found.items()}))
    else:
        sections = [Section(f"{name}, {exam.judge}", exam_tables(exam)) for name, exam in found.items()]
        click.echo("\n".join(text_of(sections)))
    failed = {name: what_fails(exam) for name, exam in found.items()}
    for name, fault in failed.items():
        known = "; ".join(filter(None, (fault, what_is_in_doubt(found[name]))))
        click.echo(f"{name}: {known or 'the judge can judge'}", err=True)
    if all(failed.values()):
        click.get_current_context().exit(int(ExitCode.USER))


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "person"


@click.group()
def play() -> None:
    """Be the Judge yourself."""


@play.command("judge")
@click.argument("run")
@click.argument("checkpoints", nargs=-1, metavar="[ONE OTHER]")
@click.option(
    "--person", default=user_name, show_default="your user name", help="Who it is; kept with verdicts."
)
@click.option("--task", metavar="ID", help="All questions of one task; without it a random sample.")
@click.option("--n", "count", type=click.IntRange(1), default=20, help="Questions of the session.")
def play_judge(run: str, checkpoints: tuple[str, ...], task: str | None, count: int, person: str) -> None:
    """Answer what the judge was asked, without seeing what it said. With two checkpoints (S_0 S_1) compare their
    answers to held-out tasks, blind and shuffled. The agreement is in `scope report RUN`.

    RUN is a run folder, or a name under runs/. The same command goes on with what you have not answered. Replies are
    lines of stdin, so a file of them can be piped in.
    """
    from scope_selfplay.config.load import load_config
    from scope_selfplay.judge.fences import fence_key
    from scope_selfplay.judge.questions import JudgePrompts
    from scope_selfplay.play.person import Console, asked_on, pairs_left, put_to_person, sampled
    from scope_selfplay.prompts.folder import load_pack, pack_path
    from scope_selfplay.run.begin import with_judge_prompts
    from scope_selfplay.store.query import HumanFolder
    from scope_selfplay.store.reader import RunReader, find_run

    if len(checkpoints) not in (0, 2):
        raise click.UsageError(f"found {len(checkpoints)} checkpoint, expected two to compare, or none")
    with RunReader(find_run(run)) as reader:
        human, kept = HumanFolder(reader.folder), reader.folder.prompts
        prompts = None
        if checkpoints:
            asked = pairs_left(reader, *checkpoints, person=person)[:count]
        else:
            config = load_config(reader.folder.config)
            pack = load_pack(kept if kept.is_dir() else pack_path(config.domain))
            # A person is shown what a model would be, where a rule judges, too.
            pack = with_judge_prompts(pack, config.judge.model_copy(update={"kind": "model"}))
            prompts = JudgePrompts(pack, config.judge, key=fence_key(config.seed))
            asked = (
                list(asked_on(reader, task, person))
                if task
                else sampled(reader, count, person, human.verdicts())
            )
        if not asked:
            what = "no two different answers of theirs" if checkpoints else "nothing that the judge was asked"
            raise UserError(f"{reader.folder.path}: has {what} that {person} has not judged")
        given = put_to_person(asked, human, Console(), prompts)
        click.echo(f"{given} of {len(asked)} questions answered; scope report {run}", err=True)
