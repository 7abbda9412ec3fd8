"""A reward of one's own: GRPO on a policy that is paid for the letter e.

    python examples/own_reward.py POLICY FOLDER

`rollout` samples one rollout of a record, `reward` gives every rollout of a group a number (None leaves it out). POLICY
is a Hugging Face folder; FOLDER gets a line of metrics a step and the checkpoint, from which the same command goes on.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from scope_selfplay.base.sampling import Generate, Message
from scope_selfplay.base.values import Key, Role, Rollout, Turn
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.store.folder import StageFolder
from scope_selfplay.training.engines import Engine, sampler_from
from scope_selfplay.training.job import GrpoJob, TrainingStart
from scope_selfplay.training.loop import TrainingLoop, load


async def reward(rollouts: Sequence[Rollout]) -> list[float | None]:
    return [each.turns[-1].text.count("e") for each in rollouts]


def main(policy: Path, folder: Path) -> None:
    codec = ChatCodec.load(policy)
    settings = TrainConfig(steps=4, batch=4, group_size=8, max_prompt=64, max_response=16, learning_rate=4e-3)
    records = ["Name a river.", "Name a sea."] * 8
    # With `ranks=ranks()` torchrun can start it on several GPUs.
    start, stage = TrainingStart(policy, policy), StageFolder(folder)
    job = GrpoJob(start, settings, records, stage, codec, temperature=1.0, seed=1)

    async def rollout(record: str, key: Key) -> Rollout:
        prompt = codec.encode_prompt([Message("user", record)])
        sample = await engine.source.generate(Generate(prompt, max_tokens=16), key)
        turn = Turn(
            prompt_ids=prompt, ids=sample.ids, logprobs=sample.logprobs, text=codec.decode(sample.ids)
        )
        return Rollout(id=str(key), role=Role.SOLVER, checkpoint="", subject_id=record, turns=(turn,))

    with job.ranks:
        model = load(job)
        network = InProcessModel(model.network, codec, identity="", max_length=job.max_length)
        engine = Engine(network)
        TrainingLoop(job, model, engine, sampler_from(rollout, reward, settings.group_size)).run()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
