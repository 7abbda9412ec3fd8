"""What users get wrong, command by command: each ends at once with one line that names it, and with exit 64.

Nothing is left behind: no run folder, no output.
"""

import gzip
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cli import main
from tests.exported_run import write_finished_run

LINE = json.dumps({"id": "a", "title": "A", "text": "Some text."})
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
PAGE = "---\ntitle: T\n---\n# T\nSome text.\n"
FILES: dict[str, str | bytes] = {
    "list.yaml": "- a\n- b\n",
    "twice.yaml": "seed: 1\nseed: 2\n",
    "nested.yaml": "a: " + "{b: " * 50_000,
    "bomb.yaml": BOMB,
    "tag.yaml": "a: !!python/object/apply:os.system [ls]\n",
    "digits.yaml": f"seed: {'9' * 5000}\n",
    "sexagesimal.yaml": f"seed: 1{':1' * 5000}\n",
    "many.yaml": "iterations: x\nseed: -1\nsolver: {steps: 0, batch: 0}\nmodel: {slots: 0, lenght: 1}\n",
    "empty.jsonl": "",
    "torn.jsonl": LINE + '\n{"id": "b", "ti',
    "no_text.jsonl": '{"id": "a", "title": "A"}\n',
    "misspelt.jsonl": '{"id": "a", "titel": "A", "text": "x"}\n',
    "blank_text.jsonl": '{"id": "a", "title": "A", "text": "  "}\n',
    "same_id.jsonl": f"{LINE}\n{LINE}\n",
    "nan.jsonl": '{"id": "a", "title": "A", "text": "x", "score": NaN}\n',
    "same_key.jsonl": '{"id": "a", "id": "b", "title": "A", "text": "x"}\n',
    "nested.jsonl": '{"id": "a", "title": "A", "text": ' + "[" * 100_000 + "}\n",
    "latin.jsonl": '{"id": "a", "title": "A", "text": "caf\xe9"}\n'.encode("latin-1"),
    "contents.jsonl": '{"id": "a", "contents": "only a title"}\n',
    "quotes.tsv": '1\t"text\ttitle\n',
    "torn.tsv.gz": gzip.compress(b"1\ttext\ttitle\n" * 999)[:30],
    "endless/a.md": "---\ntitle: T\n",
    "front_bomb/a.md": f"---\n{BOMB}---\nText.\n",
    "pages/a.md": PAGE,
    "packs/untitled/domain.yaml": "task_types: {a: {description: d}}\n",
    "packs/circle/domain.yaml": "title: T\nextends: circle\n",
    "packs/misspelt/domain.yaml": "title: T\nextends: wikipedia\n",
    "packs/misspelt/solver.md": "---\nrole: solver\n---\n{{ qustion }}\n",
    "packs/braces/domain.yaml": "title: T\nextends: wikipedia\n",
    "packs/braces/solver.md": "---\nrole: solver\n---\n" + "{{ " + "(" * 3000 + "\n",
    "packs/loop/domain.yaml": "title: T\nextends: wikipedia\n",
    "packs/loop/solver.md": "---\nrole: solver\n---\n{% for a in question %}{{ a }}{% endfor %}\n",
    "text.jsonl": '{"question": "a"}\n{"text": "b"}\n',
    "half.jsonl": '\n{"question": ',
    "corpus.jsonl": "".join(
        json.dumps({"id": str(n), "title": f"T{n}", "text": f"Text {n}."}) + "\n" for n in range(9)
    ),
    "utf16.yaml": "seed: 1\n".encode("utf-16"),
    "two\nlines.yaml": "sed: 1\n",
    "report.html": "precious",
    "a_file": "x",
}
"""What lies in the folder where the commands run; `demo` is a finished run beside it."""

DAMAGES: dict[str, tuple[str, bytes]] = {
    "yaml_torn": ("run.yaml", b"name: [\n"),
    "manifest_beyond": ("iteration-99999999999999999999/tasks/manifest.json", b"{}"),
    "ratings_empty": ("iteration-01/compare/ratings.json", b"{}"),
}
"""Copies of a finished run, each with one file overwritten by hand."""

JUDGED = "run --set judge.kind=model --set compare.promotion=always --set judge.endpoint.base_url"
ASKED = "index build corpus.jsonl index --profile flat --encoder a/e5 --questions"

CASES: list[tuple[str, str]] = [
    # The settings of a run.
    ("config --config none.yaml", "no such file"),
    ("config --config list.yaml", "found a list"),
    ("config --config twice.yaml", "twice.yaml:2: the key 'seed' appears a second time; keep one of the two"),
    ("config --config nested.yaml", "nested more than 100 deep"),
    ("config --config bomb.yaml", "aliases unfold to more than"),
    ("config --config tag.yaml", "not valid YAML"),
    ("config --config digits.yaml", "digits"),
    ("config --config sexagesimal.yaml", "digits"),
    ("config --config many.yaml", "6 mistakes: (1)"),
    ("config --set seed", "expected key=value"),
    ("config --set solver.lenght_soft=1", "did you mean solver.length_soft?"),
    ("config --set seed+=[1]", "is not a list of settings"),
    ("config --set cluster.prepare.index+={key:b}", "expected a list to add"),
    ('config --set tools+=[{"opne":"b"}]', "tools.0.opne"),
    ('config --set solver.reward={"design":"arena","topolgy":"swiss"}', "did you mean topology?"),
    ("config --set model.engine=vllm_server", "engine vllm_server needs vllm_url"),
    (
        "config --set solver.overlap=1 --set model.processes=1 --set model.engine=vllm_colocated",
        "overlap (1) samples beside the update, in which model.engine vllm",
    ),
    ("config --set solver.updates=4", "updates (4) must divide the groups of a step, batch (5)"),
    ("config --set solver.sampling_cap=0.5", "sampling_cap (0.5) would weigh tokens less"),
    (
        'config --set solver.resample=2 --set solver.reward=live --set solver.routing={"by":"rubric","budget":40}',
        "resample (2) would spend routing.budget (40)",
    ),
    ("config --set model.processes=2 --set model.engine=vllm_colocated", "processes (2) sample from whole"),
    ("config --set model.processes=2 --set model.lora_rank=4", "lora_rank 4; use processes 1"),
    ("config --set solver.length_soft=5000", "length_hard (32) must exceed length_soft (5000)"),
    ("config --set tasks.search_turns={1:0}", "search_turns"),
    ("config --set model.attention=flash_attention_2", "model: engine in_process samples from the model"),
    ('config --set cluster.pod.metadata.labels={"scope/run":"x"}', "found the label scope/run"),
    ('config --set cluster.train_solver.pod={"containers":[]}', "found containers; a pod's"),
    ('config --set cluster.judge.pod.spec.containers=[{"image":"x"}]', "containers without a name"),
    ('config --set cluster.solver={"gpus":4,"tensor_parallel":3}', "tensor_parallel 3 and 4 gpus"),
    ('config --set search.engine={"name":"elasticsearch","index":"wiki"}', "engine elasticsearch needs url"),
    ('config --set search={"url":"http://a","engine":{"name":"qdrant","index":"w"}}', "name the encoder"),
    (
        'config --set search={"url":"http://a","engine":{"name":"opensearch","index":"w","encoder":"minilm"}}',
        "asked for words",
    ),
    ('config --set tools=[{"open":{},"mcp":{"command":["x"]}}]', "expected one of open"),
    ('config --set tools=[{"mcp":{"command":["x"],"url":"http://a"}}]', "one of them alone"),
    ('config --set tools=[{"mcp":{"command":["x"],"api_key_env":"K"}}]', "api_key_env is for a url"),
    ('config --set tools=[{"mcp":{"url":"http://a","env":{"A":"B"}}}]', "env is for a command"),
    ("config --set model.path={", "not a YAML value"),
    ("config --set solver.reward=rubrik", "expected one of"),
    # A run that cannot begin.
    ("run --root a_file/runs", "a_file is a file"),
    ("run --set domain=wikipdia", "did you mean wikipedia?"),
    ("run --set corpus.path=corpus.jsonl --set corpus.held_out_path=corpus.jsonl", "is also in"),
    ("run --set search.url=ftp://host", "expected http(s)"),
    ("run --set search.url=http://169.254.169.254", "link-local"),
    (f"{JUDGED}=nonsense", "nonsense"),
    (f"{JUDGED}=http://127.0.0.1:9 --set judge.endpoint.api_key_env=NOT_SET_AT_ALL", "AT_ALL is not set"),
    ("run --set corpus.path=corpus.jsonl", "documents: 9; iteration 1 train the Challenger needs"),
    ("run --set corpus.sample=64", "documents or more, or lower"),
    ("preflight --set corpus.path=corpus.jsonl", "kind lexical, which reads"),
    ("preflight --set domain=wikipedia --set corpus.path=corpus.jsonl", "raise challenger.max_prompt"),
    ("run --set solver.tasks=none.jsonl", "none.jsonl"),
    ("run --set corpus.path=none", "leaves nothing"),
    # Documents.
    ("documents empty.jsonl", "holds no documents"),
    ("documents torn.jsonl", "torn.jsonl, line 2: damaged at character"),
    ("documents no_text.jsonl", '"text" is missing'),
    ("documents misspelt.jsonl", 'did you mean to rename "titel"?'),
    ("documents blank_text.jsonl", "must not be blank"),
    ("documents same_id.jsonl", "ids must be unique"),
    ("documents nan.jsonl", "NaN is not JSON"),
    ("documents same_key.jsonl", "given twice"),
    ("documents nested.jsonl", "nested too deeply"),
    ("documents latin.jsonl", "not UTF-8"),
    ("documents contents.jsonl", "needs the title on its first line"),
    ("documents quotes.tsv", "quotes.tsv, line 1"),
    ("documents torn.tsv.gz", "cannot be read"),
    ("documents endless --reader markdown_sections", "front matter that never ends"),
    ("documents front_bomb --reader markdown_sections", "aliases unfold"),
    ("documents pages --reader jsonl", "is a folder"),
    # Prompt packs.
    ("prompts check ./none", "no such folder"),
    ("prompts check packs/untitled", "has no title"),
    ("prompts check packs/circle", "extends in a circle"),
    ("prompts check packs/misspelt", "qustion"),
    ("prompts check packs/braces", "not valid Jinja"),
    ("prompts check packs/loop", "{% for %}"),
    ("prompts check --tokenizer a_file wikipedia", "no tokenizer.json"),
    ("prompts diff wikipedia none", "no such prompt pack"),
    ("prompts new ../up", "../up"),
    # The judge, servers, indexes.
    ("judge try gate_entity --dry --task x --document @none", "none"),
    ("models smollm", "no model 'smollm' (did you mean smollm2?)"),
    ("serve-retriever pages --token-env NOT_SET_AT_ALL", "NOT_SET_AT_ALL"),
    ("serve-retriever pages --deadline 0", "--deadline 0: expected seconds above 0"),
    ("index build corpus.jsonl index --chunk-words -1", "--chunk-words"),
    ("index build corpus.jsonl index --profile flat --encoder models/mine", "give --family e5"),
    (f"{ASKED} text.jsonl", "line 2: expected a"),
    (f"{ASKED} half.jsonl", "line 2: not JSON"),
    # What a run has made.
    ("tasks ls pages", "run.yaml"),
    ("tasks show demo zzz", "zzz"),
    ("tasks diff demo S_0 S_9", "S_9"),
    ("report demo -o report.html", "--force"),
    ("export demo --format trl -o packs", "packs"),
    ("export demo --format trl -o out --iteration 9", "have some: 1"),
    ("fork demo --after 9 --name other", "9"),
    ("plan --assume flat_share=1.5", "flat_share: Input should be less than or equal to 1, found 1.5"),
    # What stands in the place of a file, a folder or a setting and is none.
    ("documents pipe", "a pipe or a device"),
    ("documents /dev/zero", "a pipe or a device"),
    ("documents loop", "Too many levels of symbolic links"),
    ("index build pipe index", "pipe"),
    ("config --config /dev/zero", "has more than 1,000,000 characters"),
    ("config --config two~lines.yaml", "two lines.yaml: unknown setting sed"),
    ("config --config utf16.yaml", "UTF-8 text, from byte 1 on"),
    ("tasks ls yaml_torn", "not a run config"),
    ("report manifest_beyond", "manifest.json: damaged"),
    ("report ratings_empty -o new.html", "ratings.json: damaged"),
    # The command line itself.
    ("rum", "No such command"),
    ("tasks", "Usage"),
]
"""`~` is a line end."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    # What is measured below is what a command does, not how long the first one of a process imports.
    assert importlib.import_module("transformers").AutoTokenizer
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    write_finished_run(folder / "demo")
    for name, (path, damage) in DAMAGES.items():
        shutil.copytree(folder / "demo", folder / name)
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_bytes(damage)
    return folder


@pytest.mark.parametrize(("command", "said"), CASES, ids=[command for command, _ in CASES])
def test_a_bad_input_is_one_line_and_exit_64(
    place: Path, command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("NOT_SET_AT_ALL", raising=False)
    arguments = [word.replace("~", "\n") if word != "''" else "" for word in command.split()]
    monkeypatch.setattr(sys, "argv", ["scope", *arguments])
    before = sorted(place.rglob("*"))
    began = time.process_time()
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == ExitCode.USER, err
    assert said in out + err
    assert "Traceback" not in err
    if said != "Usage":
        lines = (out + err).strip().splitlines()
        # Checks list what they find; everything else is one line.
        assert len(lines) == 1 or command.startswith(("preflight", "prompts check")), lines
        assert all(len(line) < 3000 for line in lines)
    assert time.process_time() - began < 5.0
    assert sorted(place.rglob("*")) == before
