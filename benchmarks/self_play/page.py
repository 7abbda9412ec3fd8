"""The tables of docs/how/evidence/real-model.md, of what is kept, by the mark around each:
`python -m benchmarks.self_play.page` writes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

from benchmarks.markdown import difference, markdown, share, write_between
from benchmarks.scope_command import ROOT
from benchmarks.self_play.results import KEPT, Asked, Kept, read_kept
from scope_selfplay.base.intervals import DIFFERENCES, SHARES, Estimate, estimate_mean

WAYS = ("sampled", "greedy")
Arms = Mapping[str, Sequence[Kept]]


def write_page() -> None:
    for mark, text in sections().items():
        write_between(ROOT / "docs/how/evidence/real-model.md", mark, text)


def sections(folder: Path = KEPT) -> dict[str, str]:
    """Of what is kept in the folder by now."""
    arms: dict[str, list[Kept]] = {}
    for each in read_kept(folder):
        arms.setdefault(each.arm, []).append(each)
    tables = {"arms": arms_table, "endpoints": endpoints, "curve": curve_table}
    tables |= {"asking": asking_table, "read": read_table}
    return {mark: table(arms) if arms else "Nothing is finished yet." for mark, table in tables.items()}


def arms_table(arms: Arms) -> str:
    """Exact match before and after, and the gain paired by question: each seed, and where there are several, all."""
    rows = [["arm", "seed", "Solver's steps", "answers", "start", "after", "gain, 95 % interval"]]
    for arm, kept in arms.items():
        for group in [*([each] for each in kept), *([kept] if len(kept) > 1 else [])]:
            steps = fmean(sum(asked.steps[1] for asked in each.asked) for each in group)
            for way in WAYS:
                pairs = [(each.exact(way, -1), each.exact(way, 0)) for each in group]
                levels = [share(_pooled([pair[moment] for pair in pairs], SHARES)) for moment in (1, 0)]
                seeds = str(group[0].seed) if len(group) == 1 else "all"
                rows.append([arm, seeds, f"{steps:.0f}", way, *levels, difference(_gain(pairs))])
    return markdown(rows)


def _gain(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Estimate | None:
    return _pooled([[a - b for a, b in zip(*pair, strict=True)] for pair in pairs], DIFFERENCES)


def _pooled(seeds: Sequence[Sequence[int]], bounds: tuple[float, float]) -> Estimate | None:
    """The mean over seeds and questions; a question's values of all seeds are drawn together."""
    return estimate_mean([fmean(each) for each in zip(*seeds, strict=True)], seed=0, bounds=bounds)


def endpoints(arms: Arms) -> str:
    """The trained Challenger's Solvers less those of each other arm, after the last iteration, over common seeds."""
    rows = [["trained less", "seeds", *WAYS]]
    own = {each.seed: each for each in arms.get("trained", ())}
    for arm, kept in arms.items():
        both = [(own[each.seed], each) for each in kept if each.seed in own and arm != "trained"]
        found = [_gain([tuple(each.exact(way, -1) for each in pair) for pair in both]) for way in WAYS]
        if both:
            rows.append([arm, ", ".join(str(each.seed) for _, each in both), *map(difference, found)])
    return markdown(rows) if len(rows) > 1 else "No seed has both a trained Challenger and another arm yet."


def curve_table(arms: Arms) -> str:
    """Exact match by iteration, the mean of the seeds."""
    count = max(len(each.greedy) for each in chain.from_iterable(arms.values()))
    rows = [["arm", "answers", *(f"S_{number}" for number in range(count))]]
    for arm, kept in arms.items():
        for way in WAYS:
            marks = ([each.exact(way, number) for each in kept] for number in range(count))
            rows.append([arm, way, *(f"{fmean(chain.from_iterable(each)):.3f}" for each in marks)])
    return markdown(rows)


def asking_table(arms: Arms) -> str:
    """What the Challengers wrote, over the seeds, and seconds of a step."""
    head = ["arm", "iteration", "candidates", "accepted", "in the window, of those tried"]
    rows = [[*head, "shapes", "right, of known ones", "seconds a Challenger's, a Solver's step"]]
    for arm, kept in arms.items():
        for number, asked in enumerate(zip(*(each.asked for each in kept), strict=True), start=1):
            made = sum(each.made for each in asked)
            if made:
                rows.append([arm, str(number), str(made), *_measures(asked)])
    return markdown(rows)


def _measures(asked: Sequence[Asked]) -> Iterator[str]:
    for part, whole in (("accepted", "made"), ("in_window", "tried")):
        yield share(_share(asked, part, whole))
    yield f"{fmean(each.shapes for each in asked):.1f}"
    yield share(_share(asked, "right", "known"))
    yield ", ".join(f"{fmean(each.seconds[role] for each in asked):.0f}" for role in (0, 1))


def _share(asked: Sequence[Asked], part: str, whole: str) -> Estimate | None:
    count, of = (sum(getattr(each, name) for each in asked) for name in (part, whole))
    return estimate_mean([1.0] * count + [0.0] * (of - count), seed=0, bounds=SHARES)


def read_table(arms: Arms) -> str:
    """What a seed of the trained Challenger, or else of the first arm, asked and answered in the end."""
    kept = arms.get("trained", next(iter(arms.values())))[0]
    rows = [[f"accepted task ({kept.arm}, seed {kept.seed})", "answer", "people's"], *kept.tasks]
    rows += [["**held-out question**", "", ""], *kept.answers]
    return markdown([[each or "" for each in row] for row in rows])


if __name__ == "__main__":
    write_page()
