"""What the model is worth as a judge, as a table."""

from pathlib import Path

from benchmarks.markdown import difference, markdown, share
from benchmarks.real_model.judge_findings import Judged, findings, share_read

_FORMS = {"token": "one token", "short": "one token, short prompts", "written": "reasoning, then a verdict"}


def judge_table(folder: Path) -> str:
    """Of `judge.json`."""
    forms = Judged.model_validate_json((folder / "judge.json").read_bytes()).forms
    heads = [f"{_FORMS[form]} ({len(asked[0].values)} questions)" for form, asked in forms.items()]
    rows = [["", *heads]]
    for of_forms in zip(*map(findings, forms.values()), strict=True):
        cells = [difference(each.found) if each.is_difference else share(each.found) for each in of_forms]
        rows.append([of_forms[0].title, *cells])
    read = [f"{share_read(asked):.2f}" for asked in forms.values()]
    return markdown([*rows, ["replies with a verdict", *read]])
