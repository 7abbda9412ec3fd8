"""Make the tiny policy: a Qwen3 model from scratch, warmed up on a teacher's traces.

    python benchmarks/warm_start.py [--write] [--out FOLDER]

Drills teach copying: nothing but the phrase before it tells which name or value comes next. Careful lessons teach the
protocol of both roles. A teacher who gives up makes it unreliable: what the shipped checkpoint can do only sometimes is
what a run then learns. Every sample is about a world of its own.
Without --write the shipped policy is left alone: the new one is scored beside it on held-out tasks.
"""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import embedded_teacher as teacher
from benchmarks.embedded_teacher import OpenWorld
from benchmarks.options import read_options
from scope_selfplay.base.sampling import Message, Sample
from scope_selfplay.base.values import Finish, Passage, Rollout
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.policy import episodes
from scope_selfplay.policy.episodes import ChallengerPrompts, Episode, PolicyFormat, RolloutLimits
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.search.tools import ToolResult, UseTool
from scope_selfplay.training.passes import rows_from

POLICY = Path(__file__).parent.parent / "scope_selfplay" / "embedded" / "policy"
SEED = 1
POOL = 10
RATE = 3e-3
MUON = 7.0
"""The matrices' learning rate in units of the others': by AdamW alone copying takes three times the steps, or fails."""
WARM_UP, LAST = 100, 0.1

Drill = Callable[[random.Random, OpenWorld], tuple[str, str]]


class Phase(NamedTuple):
    """`share`: of the samples that are `drills`; `solver`: of the lessons that are the Solver's; `decay`: of the steps,
    over which the rate falls to a tenth."""

    steps: int
    drills: tuple[Drill, ...]
    share: float
    habits: teacher.Habits = teacher.CAREFUL
    rate: float = RATE
    decay: float = 0.0
    batch: int = 64
    solver: float = 0.65


UNRELIABLE = teacher.unreliable(-2.9, -1.9, 1.5, misreads=(0.1, 0.3, 0.5, 0.6))
# Each phase stands on the one before: copying any word, then the word after a phrase, then the two roles.
PHASES = (
    Phase(250, (teacher.echo,), 1.0),
    Phase(150, (teacher.pairs, teacher.choice), 1.0),
    Phase(650, (teacher.choice,), 0.15, batch=48, decay=0.4, solver=0.55),
    Phase(150, (teacher.choice,), 0.1, UNRELIABLE, rate=1e-3, decay=0.4, batch=48, solver=0.6),
)
_MORE = replace(UNRELIABLE, unasked=0.25)
WORDY = (Phase(100, (teacher.choice,), 0.1, _MORE, rate=1e-3, decay=0.4, batch=48, solver=1.0),)
"""What makes the shipped policy say a fact too many in half of its answers: by itself it never does."""


class Classroom(NamedTuple):
    pack: Pack
    codec: ChatCodec

    @property
    def policy_format(self) -> PolicyFormat:
        return PolicyFormat(self.codec, dialect("qwen2.5"), "teacher", RolloutLimits(max_response=1000))

    def drill(self, rng: random.Random, drills: Sequence[Drill]) -> dict[str, list[int]]:
        shown, said = rng.choice(drills)(rng, OpenWorld(rng))
        prompt = self.codec.encode_prompt([Message("user", shown)])
        reply = self.codec.encode_tag(f"<answer> {said}</answer>")
        return {"input_ids": [*prompt, *reply], "labels": [-100] * len(prompt) + list(reply)}

    def lesson(self, rng: random.Random, phase: Phase) -> dict[str, list[int]]:
        world = OpenWorld(rng)
        if rng.random() < phase.solver:
            lesson = teacher.solver_lesson(rng, world, phase.habits)
            rollout = play(self._solver(lesson), lesson.turns, world, self.codec)
            unlearnt = lesson.unlearnt
        else:
            task = teacher.challenger_lesson(rng, world, phase.habits)
            rollout = play(self._challenger(task, world), task.turns, world, self.codec)
            unlearnt = 0
        (row,) = rows_from(rollout)
        labels = [-100] * len(row.prompt_ids) + labels_of(row.completion_ids, row.mask, unlearnt)
        return {"input_ids": row.prompt_ids + row.completion_ids, "labels": labels}

    def _solver(self, lesson: teacher.SolverLesson) -> Episode:
        prompt = self.pack.render(PromptRole.SOLVER, question=lesson.question, max_search_turns=6)
        return episodes.solver_episode(
            self.policy_format, ("lesson",), task_id="lesson", prompt=prompt, max_search_turns=9
        )

    def _challenger(self, lesson: teacher.ChallengerLesson, world: OpenWorld) -> Episode:
        render, searches = self.pack.render, lesson.searches
        source = {"document_title": lesson.name, "document_text": world.article(lesson.name)}
        task = {"task_type": "", "task_description": lesson.verb, "search_turns": searches}
        prompts = ChallengerPrompts(
            opening=render(PromptRole.CHALLENGER, **source, **task, search_syntax=""),
            after_search=lambda left: render(PromptRole.CHALLENGER_NEXT, turns_left=left, search_syntax=""),
            after_invalid=lambda left: "",
            closing=render(PromptRole.CHALLENGER_FINAL),
        )
        turns = {"search_turns": searches, "max_invalid": 0}
        return episodes.challenger_episode(
            self.policy_format, ("lesson",), document_id="lesson", prompts=prompts, **turns
        )


def labels_of(ids: Sequence[int], mask: Sequence[int], unlearnt: int) -> list[int]:
    """The tokens that the teacher said, but for its first `unlearnt` turns; -100 elsewhere."""
    labels, turn = [], 0
    for before, said, token in zip([0, *mask], mask, ids, strict=False):
        turn += bool(said) and not before
        labels.append(token if said and turn > unlearnt else -100)
    return labels


def play(episode: Episode, turns: list[str], world: OpenWorld, codec: ChatCodec) -> Rollout:
    """Run an episode with a teacher's turns and a search that always finds the named article."""
    left = iter(turns)
    try:
        request = next(episode)
        while True:
            if isinstance(request, UseTool):
                query = request.arguments["query"]
                passage = Passage(id="p", title=query, text=world.article(query))
                request = episode.send(ToolResult(passages=(passage,)))
            else:
                request = episode.send(Sample(codec.encode_tag(next(left)), None, Finish.STOP))
    except StopIteration as stop:
        rollout: Rollout = stop.value
        return rollout


def batches(room: Classroom, rng: random.Random, phase: Phase) -> Iterator[list[dict[str, list[int]]]]:
    """Batches of similar length: padding costs as much as text."""
    for first in range(0, phase.steps, POOL):
        count = min(POOL, phase.steps - first)
        pool = [_sample(room, rng, phase) for _ in range(count * phase.batch)]
        pool.sort(key=lambda sample: len(sample["input_ids"]))
        rows = list(range(0, len(pool), phase.batch))
        rng.shuffle(rows)
        for row in rows:
            yield pool[row : row + phase.batch]


def _sample(room: Classroom, rng: random.Random, phase: Phase) -> dict[str, list[int]]:
    return room.drill(rng, phase.drills) if rng.random() < phase.share else room.lesson(rng, phase)


def train(folder: Path, phases: Sequence[Phase] = PHASES, start: Path | None = None) -> None:
    """Write `folder`/policy: a new model, or the policy `start`, after these phases."""
    import torch
    from transformers import Qwen3ForCausalLM

    from benchmarks.tiny_tokenizer import build_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer, rng = build_tokenizer(), random.Random(SEED)
    room = Classroom(load_pack(Path(__file__).parent.parent / "prompts" / "embedded"), ChatCodec(tokenizer))
    model = new_model(tokenizer) if start is None else Qwen3ForCausalLM.from_pretrained(str(start))
    matrices = [each for name, each in model.named_parameters() if each.ndim == 2 and "embed" not in name]
    others = [each for name, each in model.named_parameters() if each.ndim != 2 or "embed" in name]
    adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01)
    muon = torch.optim.Muon(matrices, weight_decay=0.01)
    done, total = 0, sum(phase.steps for phase in phases)
    for phase in phases:
        for step, batch in enumerate(batches(room, rng, phase)):
            rate = rate_of(phase, step) * min(1.0, (done + 1) / WARM_UP)
            for optimizer, factor in ((adam, 1.0), (muon, MUON)):
                for group in optimizer.param_groups:
                    group["lr"] = rate * factor
            loss, right = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in (adam, muon):
                optimizer.step()
            model.zero_grad()
            done += 1
            if done % 25 == 0:
                told = f"step {done} of {total}: loss {loss.item():.3f}, {right:.3f} of the tokens right"
                print(told, flush=True)
    model.save_pretrained(str(folder / "policy"))
    tokenizer.save_pretrained(str(folder / "policy"))


def new_model(tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def rate_of(phase: Phase, step: int) -> float:
    """Constant, then falling linearly to a tenth over the phase's last share."""
    left = 1 - step / phase.steps
    return phase.rate * (1.0 if left > phase.decay else max(LAST, left / phase.decay))


def loss_of(model: Any, batch: Sequence[dict[str, list[int]]]) -> tuple[Any, float]:
    """The mean loss over what the teacher said, and the share of its tokens that the model would have said."""
    import torch

    width = max(len(sample["input_ids"]) for sample in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    labels = torch.full((len(batch), width), -100)
    for row, sample in enumerate(batch):
        length = len(sample["input_ids"])
        ids[row, :length] = torch.tensor(sample["input_ids"])
        labels[row, :length] = torch.tensor(sample["labels"])
    # Padding stands behind the text, where a causal model does not see it.
    hidden = model.model(ids).last_hidden_state
    said = labels[:, 1:] != -100
    logits, wanted = model.lm_head(hidden[:, :-1][said]), labels[:, 1:][said]
    right = (logits.argmax(-1) == wanted).float().mean().item()
    return torch.nn.functional.cross_entropy(logits, wanted), right


def score(policy: Path, root: Path) -> dict[str, Any]:
    """The held-out score of a policy as S_0: a fixed mix of depths in an unseen world."""
    import json

    from scope_selfplay import DEFAULT_CONFIG
    from scope_selfplay.base.terminal import Progress
    from scope_selfplay.config.load import load_config
    from scope_selfplay.run.begin import open_run
    from scope_selfplay.stages.compare import compare
    from scope_selfplay.stages.tasks import make_tasks

    config = load_config(DEFAULT_CONFIG, [f"model.path={policy}", "compare.tasks=150"])
    run = open_run(config, root, Progress())
    make_tasks(run, 0)
    compare(run, 0)
    ratings = json.loads((root / config.name / "iteration-00" / "compare" / "ratings.json").read_text())
    found: dict[str, Any] = ratings["held_out"]["S_0"]
    return found


def main() -> None:
    options = read_options(__doc__, write=False, out=None)
    folder = options.out or Path(tempfile.mkdtemp(prefix="warm-start-"))
    train(folder)
    for name, policy in (("rebuilt", folder / "policy"), ("shipped", POLICY)):
        if policy.exists():
            found = score(policy, folder / f"score-{name}")["all"]
            interval = f"[{found['low']:.3f}, {found['high']:.3f}]"
            print(f"{name}: {found['mean_score']:.3f} {interval} on {found['tasks']} tasks")
    if options.write:
        shutil.copytree(folder / "policy", POLICY, dirs_exist_ok=True)
        print(f"written to {POLICY}")


if __name__ == "__main__":
    main()
