"""From what a person asks for to an evaluation that can begin: everything that can be checked is checked here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay import embedded
from scope_selfplay.benchmarking import embedded_depths
from scope_selfplay.benchmarking.contestants import Contestant, read_contestant
from scope_selfplay.benchmarking.evaluating import Evaluation
from scope_selfplay.benchmarking.records import EvaluationFolder
from scope_selfplay.benchmarking.setting import EvaluationSetting, setting_of, without_copies
from scope_selfplay.config import RunConfig, load_config
from scope_selfplay.errors import ConfigError
from scope_selfplay.evaluation.benchmark import Decoding, LoadedBenchmark
from scope_selfplay.evaluation.catalogue import load_benchmark
from scope_selfplay.progress import Progress
from scope_selfplay.prompts import PromptRole, load_pack
from scope_selfplay.run import Run, open_run
from scope_selfplay.run_directory import with_judge_prompts
from scope_selfplay.store import RunFolder

_DEFAULT = Path(embedded.__file__).parent / "run.yaml"
"""As `scope run`: the laptop's settings where none are named."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What `scope eval` is asked for; None is what the benchmark, or the run, says by itself."""

    benchmark: str
    checkpoints: tuple[str, ...]
    root: Path = Path("evaluations")
    out: Path | None = None
    data: Path | None = None
    items: int | None = None
    samples: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    thinking: bool | None = None
    pairwise: bool = False
    by_criterion: bool = False
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def folder(self) -> Path:
        """Where it is written: a folder of the benchmark's name, in which a leaderboard grows."""
        name = self.benchmark.partition("=")[0]
        return self.out or self.root / (Path(name).stem or name)


def open_evaluation(request: EvaluationRequest, progress: Progress) -> Evaluation:
    """Raises UserError, OutsideError."""
    contestants = without_copies([read_contestant(asked) for asked in request.checkpoints])
    run = _run_of(request, contestants, progress)
    setting = open_setting(request, run)
    pairwise = request.pairwise or request.by_criterion
    if pairwise and len(contestants) < 2:
        raise ConfigError("--pairwise compares answers: name another checkpoint with --against")
    if request.by_criterion:
        _check_criteria(setting)
    folder = EvaluationFolder(request.folder)
    return Evaluation(setting, contestants, folder, pairwise, request.by_criterion)


def _check_criteria(setting: EvaluationSetting) -> None:
    """Raises ConfigError where nothing could be compared by one criterion alone."""
    if not any(item.criteria for item in setting.loaded.items):
        raise ConfigError(
            f"--by-criterion: no item of {setting.loaded.name} has a rubric; use --pairwise, or another benchmark"
        )
    for prompt in setting.run.pack.prompts:
        if prompt.role is PromptRole.COMPARE_ANSWERS and "criterion" not in prompt.uses:
            raise ConfigError(
                f"--by-criterion: {prompt.role}.md of the pack {setting.run.pack.domain.name} does not show the "
                "judge {{ criterion }}; add it (see prompts/wikipedia), or use --pairwise"
            )


def open_setting(request: EvaluationRequest, run: Run) -> EvaluationSetting:
    """The benchmark where a run takes place."""
    loaded = _loaded(request, run)
    asked = loaded.benchmark.decoding
    changes = {
        name: value
        for name in ("samples", "temperature", "top_p", "thinking")
        if (value := getattr(request, name)) is not None
    }
    return setting_of(run, loaded, Decoding.model_validate(asked.model_dump() | changes))


def _loaded(request: EvaluationRequest, run: Run) -> LoadedBenchmark:
    seed = run.config.seed
    if request.benchmark == embedded_depths.NAME:
        return embedded_depths.embedded_benchmark(run.documents, seed=seed, count=request.items)
    return load_benchmark(request.benchmark, data=request.data, most=request.items, seed=seed)


def _run_of(request: EvaluationRequest, contestants: Sequence[Contestant], progress: Progress) -> Run:
    """The run whose documents, retriever and settings are used: that of the first checkpoint that has one."""
    options = {} if request.seed is None else {"seed": request.seed}
    home = next((each.run for each in contestants if each.run is not None), None)
    if home is None:
        config = load_config(request.config or _DEFAULT, request.overrides, options=options)
        return open_run(_with_base(config, contestants), request.folder / ".run", progress)
    if request.config is not None:
        raise ConfigError(f"--config: {home} has settings of its own; change them with --set")
    folder = RunFolder(home)
    config = load_config(folder.config, request.overrides, options=options)
    return Run(config, folder, with_judge_prompts(load_pack(folder.prompts), config.judge), progress)


def _with_base(config: RunConfig, contestants: Sequence[Contestant]) -> RunConfig:
    """Documents are cut by the tokenizer of the first model directory, if there is one."""
    first = next((each.policy for each in contestants if each.policy is not None), None)
    if first is None:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(first.path)})})
