"""One judgement for a person who writes prompts: the question as data, then the answer and what led to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_selfplay.config import JudgeConfig, load_config
from scope_selfplay.judge.endpoint_pool import endpoint_of, with_models
from scope_selfplay.judge.fences import Fencer, fence_key
from scope_selfplay.judge.parsing import (
    parse_correctness,
    parse_rating,
    parse_rubric,
    parse_two_scores,
    parse_winners,
)
from scope_selfplay.judge.prompts import Asked, JudgeRole, Questions
from scope_selfplay.judge.protocol import Scale, Style
from scope_selfplay.prompts import load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.schemas import Criterion, Document, Gate, Role, Rollout, Task

Reader = Callable[[str], Any]


@dataclass(frozen=True)
class Trial:
    """What will be asked, of whom, and how the completion is read."""

    config: JudgeConfig
    asked: Asked
    read: Reader
    seed: int


def make_trial(role: str, options: Mapping[str, Any]) -> Trial:
    """Raises ValueError for an option that the role needs and has not, ScopeError for pack or config."""
    overrides = list(options["overrides"])
    if options["base_url"]:
        overrides += ["judge.kind=model", f"judge.endpoint.base_url={options['base_url']}"]
    config = load_config(options["config"], overrides).judge
    if config.kind != "model" and not options["dry"]:
        raise ValueError("no endpoint to ask: give --base-url, or --config with judge.kind: model, or --dry")
    questions = Questions(
        load_pack(pack_path(options["domain"])),
        Fencer(fence_key(options["seed"]), limit=config.max_chars),
        budget=config.max_chars,
        token=config.verdict == "token",
        native=frozenset(seat for seat in JudgeRole if endpoint_of(config, seat).native_thinking),
    )
    asked, read = _question(role, questions, options)
    return Trial(config, asked, read, options["seed"])


async def run_trial(trial: Trial) -> dict[str, Any]:
    """Completion, parsed value, fault, attempts and tokens; retried and faulted as in a run, never cached."""
    from scope_selfplay.judge.cache import JudgementCache
    from scope_selfplay.judge.calls import Asker
    from scope_selfplay.judge.endpoint_pool import Lines
    from scope_selfplay.judge.metrics import JudgeMetrics
    from scope_selfplay.judge.model import call_of
    from scope_selfplay.judge.prompts import ROLE_OF_PROMPT

    config = await with_models(trial.config)
    metrics = JudgeMetrics()
    asker = Asker(config, Lines(config, metrics), JudgementCache(None), metrics, seed=trial.seed)
    answer = await asker.ask(trial.asked, call_of(config, ROLE_OF_PROMPT[trial.asked.role]), trial.read)
    return {
        "completion": answer.completion,
        "reasoning": answer.reasoning,
        "value": _plain(answer.value),
        "odds": answer.odds,
        "fault": answer.fault,
        "attempts": answer.attempts,
        "tokens_in": answer.tokens_in,
        "tokens_out": answer.tokens_out,
    }


def _question(role: str, questions: Questions, options: Mapping[str, Any]) -> tuple[Asked, Reader]:
    from scope_selfplay.judge.model import preference_reader, score_reader
    from scope_selfplay.judge.protocol import DIMENSIONS

    task = Task(id="try", text=options["task"], type=options["task_type"], document_id="")
    documents = [Document(id=str(n), title="", text=text) for n, text in enumerate(options["document"])]
    match role:
        case "entity" | "source" | "safety":
            asked = questions.gate(Gate(role), task, documents[0] if documents else None)
            return asked, score_reader(asked)
        case "rubric":
            if not documents:
                raise ValueError("rubric needs --document; `dimensions` writes from the task alone")
            return questions.rubric(task, documents), parse_rubric
        case "dimensions":
            least, most = DIMENSIONS
            return questions.dimensions(task), lambda text: parse_rubric(text, least=least, most=most)
        case "grade":
            asked = questions.grade(task, _criterion(options), _answers(options, 1)[0])
            return asked, score_reader(asked)
        case "scores" | "preference":
            first, second = map(_rollout, range(2), _answers(options, 2))
            style = Style(role)
            asked = questions.compare(
                task, (first, second), style, rubric=None, reference=options["reference"]
            )
            return asked, parse_two_scores if style is Style.SCORES else preference_reader(asked)
        case "select":
            answers = _answers(options, None)
            candidates = [_rollout(n, text) for n, text in enumerate(answers)]
            asked = questions.select(task, None, candidates, options["winners"])
            return asked, lambda text: _chosen(text, asked, options["winners"])
        case _:
            return _score_question(Scale(role), questions, task, options)


def _score_question(
    scale: Scale, questions: Questions, task: Task, options: Mapping[str, Any]
) -> tuple[Asked, Reader]:
    criterion = _criterion(options) if scale is Scale.EXPLICIT else None
    answer = _answers(options, 1)[0]
    asked = questions.score(task, answer, criterion, scale=scale, reference=options["reference"])
    return asked, parse_correctness if scale is Scale.CORRECTNESS else parse_rating


def _answers(options: Mapping[str, Any], count: int | None) -> Sequence[str]:
    answers: Sequence[str] = options["answer"]
    if count is None and len(answers) < 2:
        raise ValueError(f"--answer: found {len(answers)}, expected two or more to select from")
    if count is not None and len(answers) != count:
        raise ValueError(f"--answer: found {len(answers)}, expected {count}")
    return answers


def _criterion(options: Mapping[str, Any]) -> Criterion:
    if not options["criterion"]:
        raise ValueError("--criterion is missing")
    return Criterion(text=options["criterion"])


def _rollout(number: int, answer: str) -> Rollout:
    return Rollout(id=str(number), role=Role.SOLVER, checkpoint="", subject_id="try", turns=(), answer=answer)


def _chosen(text: str, asked: Asked, winners: int) -> list[int] | None:
    """Answers are counted from 1 at a terminal."""
    places = parse_winners(text, asked.labels, winners)
    return None if places is None else [asked.order[place] + 1 for place in places]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [each.model_dump(mode="json") if isinstance(each, Criterion) else each for each in value]
    return value
