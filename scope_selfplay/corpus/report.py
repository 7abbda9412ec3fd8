"""What became of a corpus, as tables of numbers and examples: read, left out, merged, suspect, and what is left."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from scope_selfplay.base.suspicions import suspicions
from scope_selfplay.base.terminal import Table
from scope_selfplay.base.values import Document
from scope_selfplay.corpus.sample import language_of
from scope_selfplay.corpus.screen import Screened, source_of

# Below so many characters a document hardly gives a task; to find a language takes a tenth of a millisecond.
_SHORT, _EXAMPLES, _LOOKED_AT = 200, 3, 2_000


def describe_corpus(
    path: Path, documents: Sequence[Document], skipped: Mapping[Path, str], screened: Screened
) -> list[Table]:
    """`documents` are all that were read, `skipped` the files that were not."""
    kept, sizes = screened.kept, Counter[str]()
    for document in kept:
        sizes[source_of(document)] += len(document.text)
    files = {document.id.partition("#")[0] for document in documents} if path.is_dir() else {path.name}
    source, largest = next(iter(sizes.most_common(1)), ("", 0))
    short = sum(len(document.text) < _SHORT for document in kept)
    rows = [
        ("documents", f"{len(kept)} of {len(documents)}", ""),
        ("characters", str(sizes.total()), ""),
        (f"under {_SHORT} characters", f"{short / max(len(kept), 1):.1%}", "of the documents"),
        ("largest source", f"{largest / max(sizes.total(), 1):.1%}", f"of the characters: {source}"),
    ]
    left_out = [(each.reason, f"{each.document.id} = {each.kept}".rstrip(" =")) for each in screened.left_out]
    values = Counter(item for document in kept for item in document.metadata.items())
    return [
        _table("Files", [(PurePosixPath(name).suffix.lower(), name) for name in sorted(files)]),
        _table("Files left out", [(reason, file.name) for file, reason in skipped.items()]),
        _table("Left out", left_out),
        _table(
            "Suspect of injection", [(sign.value, each.id) for each in kept for sign in suspicions(each.text)]
        ),
        _table("Languages", [(language_of(each) or "not known", each.id) for each in kept[:_LOOKED_AT]]),
        _table("Metadata", [item for item, _ in values.most_common()]),
        Table("Kept", ("what", "how many", "for example"), tuple(rows)),
    ]


def _table(title: str, pairs: Iterable[tuple[str, str]]) -> Table:
    """How many there are of a kind, the commonest first, and some of them."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, example in pairs:
        groups[name].append(example)
    found = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = ((name, str(len(each)), ", ".join(each[:_EXAMPLES])) for name, each in found)
    return Table(title, ("what", "how many", "for example"), tuple(rows))
