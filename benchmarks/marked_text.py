"""Pages of which a benchmark writes one part, between two marks; what people wrote around it stays."""

from pathlib import Path

TABLES = ("<!-- tables -->", "<!-- /tables -->")


def replace_between(path: Path, marks: tuple[str, str], text: str) -> None:
    before, _, rest = path.read_text(encoding="utf-8").partition(marks[0])
    after = rest.partition(marks[1])[2]
    path.write_text(f"{before}{marks[0]}\n{text}\n{marks[1]}{after}", encoding="utf-8")
