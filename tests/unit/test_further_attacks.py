"""Classes of attack that were thought of before the code was looked at, and what must hold (docs/security.md)."""

import json
import os
import random
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from retrieval.client import bm25_searcher
from scope_selfplay.base.errors import CheckpointError, ConfigError, UserError
from scope_selfplay.base.text import clean, clean_for_policy, clean_line
from scope_selfplay.base.values import Candidate, CandidateStatus, Document, Passage, content_id, seed_from
from scope_selfplay.cli import cli
from scope_selfplay.corpus import markdown as conversion
from scope_selfplay.corpus.markdown import NotConverted, to_markdown
from scope_selfplay.corpus.read import survey
from scope_selfplay.dialects.families import DIALECTS
from scope_selfplay.dialects.turns import ToolForm
from scope_selfplay.evaluation.rows import Row
from scope_selfplay.inference.checkpoints import stored_dtype
from scope_selfplay.judge.model import cache_key
from scope_selfplay.judge.replies import (
    parse_correctness,
    parse_preference,
    parse_rating,
    parse_score,
    parse_two_scores,
)
from scope_selfplay.net.chat import ChatRequest
from scope_selfplay.net.guard import GuardedResolver, checked_url
from scope_selfplay.net.serve import serving
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import CONTRACTS, POLICY_ROLES, UNTRUSTED
from scope_selfplay.report.health_tasks import duplicate_share
from scope_selfplay.search.mcp import local_name
from scope_selfplay.search.searcher import show_passages
from scope_selfplay.search.tools import ToolBudget, ToolSpec, schema_problem
from scope_selfplay.store.files import read_records, write_records
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.reader import RunReader
from scope_selfplay.testing.attacks import HIDDEN, as_read, control_tag_in
from tests.unit.judge.test_parsing import READERS
from tests.unit.prompts.packs import SAMPLES
from tests.unit.store.runs import finish, write_run
from tests.unit.test_attacks import of_kind
from tests.word_codec import WordCodec


@of_kind("nested")
def test_nesting_without_end_is_unreadable_and_raises_nothing(case: dict[str, Any]) -> None:
    for depth in (1_000, 20_000, 100_000):
        text = case["opening"] * depth
        for read in READERS.values():
            assert read(text) is None and read(f'<rubric>{{"score": {text}</rubric>') is None
        for family in DIALECTS:
            with_tools = family.with_tools([ToolForm("open")])
            for call in (f"<open>{text}</open>", f"<function_calls>open(a={text})</function_calls>"):
                found = with_tools.parse(call).call
                assert found is None or found.arguments is None


@of_kind("verdict")
def test_a_verdict_is_in_the_digits_that_were_asked_for(case: dict[str, Any]) -> None:
    for form in case["forms"]:
        assert parse_score(f"<score>{form}</score>") is None
        assert parse_correctness(f"\\boxed{{{form}}}") is None
        if form != "1e0":
            assert parse_rating(f'{{"score": {form}}}') is None
        if form != "01":
            assert parse_two_scores(f"<first>{form}</first><second>0</second>") is None


@of_kind("letter")
def test_a_preference_is_in_the_letters_that_were_asked_for(case: dict[str, Any]) -> None:
    assert [parse_preference(f"\\boxed{{{form}}}") for form in case["forms"]] == [None] * len(case["forms"])


@of_kind("assembled")
def test_no_tag_is_assembled_from_a_title_and_a_text(case: dict[str, Any]) -> None:
    for tag in case["tags"]:
        for place in range(1, len(tag)):
            for glue in ("", "\u200b", "\n", "\x0b"):
                head, tail = f"{tag[:place]}{glue}", tag[place:]
                found = [Passage(id="p", title=head, text=tail), Passage(id="q", title=tail, text=head)]
                shown, _ = show_passages(found, WordCodec(), 1_000)
                assert not control_tag_in(as_read(shown)), (head, tail)


@of_kind("template")
def test_a_text_is_never_read_as_a_template_and_appears_once_and_as_it_is(
    pack: Pack, case: dict[str, Any]
) -> None:
    for role, contract in CONTRACTS.items():
        values = {name: SAMPLES[name] for name in contract.inputs}
        for name in (name for name, value in values.items() if isinstance(value, str)):
            for form in case["forms"]:
                marked = f"[[{form}]]"
                is_cleaned = role in POLICY_ROLES and name in UNTRUSTED
                shown = clean_for_policy(marked) if is_cleaned else marked
                assert pack.render(role, **values | {name: marked}).count(shown) == 1, (role, name, form)


@of_kind("schema")
def test_no_schema_of_a_tool_raises_or_takes_for_ever(case: dict[str, Any]) -> None:
    assert schema_problem(case["schema"]) is None
    tool = ToolSpec(name="t", description="", schema=case["schema"], budget=ToolBudget(1, 1))
    assert tool.form.name == "t"
    name = "a" * 40 + "!"
    for number in range(10):
        rng = random.Random(number)
        value = rng.choice(
            (1, None, 10**400, name, [[row] for row in range(3000)], {name: 1}, 1e308, [[]] * 3000)
        )
        problem = tool.problem({"x": value, name: 1})
        assert problem is None or len(problem) <= 220


def test_a_schema_without_end_is_none() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(3_000):
        schema = {"type": "object", "allOf": [schema]}
    assert schema_problem(schema) == "nested too deeply"


@of_kind("host")
async def test_a_web_page_gets_nothing_from_a_server_of_this_machine(case: dict[str, Any]) -> None:
    app = Starlette(routes=[Route("/v1/x", lambda request: PlainTextResponse("ok"), methods=["GET", "POST"])])
    async with serving(app) as url, aiohttp.ClientSession() as session:

        async def status(method: str, **headers: str) -> int:
            async with session.request(method, f"{url}/x", headers=headers) as response:
                return response.status

        host = case["host"].encode("ascii", "replace").decode()
        assert [await status(method, Host=host) for method in ("GET", "POST")] == [421, 421]
        for origin in (f"http://{host}", "null", "http://127.0.0.1"):
            assert await status("POST", Origin=origin) == 403
        for own in ("localhost", "127.0.0.1:8000", "[::1]:8000", "LocalHost:1"):
            assert await status("GET", Host=own) == 200


@pytest.mark.parametrize("suffix", ["docx", "xlsx", "pptx", "epub"])
def test_a_file_that_unpacks_to_more_than_it_should_is_not_opened(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "MOST_UNPACKED", 1 << 20)
    file = tmp_path / f"bomb.{suffix}"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in range(3):
            archive.writestr(f"{part}.xml", bytes(600_000))
    assert file.stat().st_size < 10_000
    with pytest.raises(NotConverted, match="unpacks to more than 1 MiB"):
        to_markdown(file)


@of_kind("userinfo")
def test_a_password_in_a_url_is_refused_and_not_repeated(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_url(case["url"])
    assert "pw7" not in str(refused.value)


def test_a_copy_of_a_task_in_other_letters_is_a_copy() -> None:
    for number in range(10):
        rng = random.Random(number)
        words = [f"word{rng.random()}" for _ in range(30)]
        hidden = " ".join(word[:2] + rng.choice(HIDDEN) + word[2:] for word in words)
        fullwidth = "".join(chr(ord(each) + 0xFEE0) if each.isalpha() else each for each in " ".join(words))
        assert duplicate_share([" ".join(words), hidden, fullwidth]) == pytest.approx(2 / 3)


def test_no_two_names_of_draws_records_or_calls_run_together() -> None:
    for number in range(10):
        parts = [f"{number}", "b", "sc"]
        joined = [parts, ["\x1f".join(parts[:2]), parts[2]], ["\x1fs".join(parts)]]
        for names in (content_id, seed_from):
            assert len({names("t", *each) for each in joined}) == 3
    prompts = ["a", "a\x00", "a\ud800", "a\\ud800", "a?", "a ", "A", "a\u0301", "\u00e1", 'a", 1', "["]
    assert (
        len({cache_key(model, ChatRequest(text, 1)) for model in ("m", 'm", "a') for text in prompts}) == 22
    )


def test_files_that_lead_elsewhere_or_never_end_are_left_out(tmp_path: Path) -> None:
    folder, outside = tmp_path / "corpus", tmp_path / "key.txt"
    (folder / "..data").mkdir(parents=True)
    outside.write_text("secret")
    (folder / "a.md").write_text("text")
    (folder / "..data" / "b.md").write_text("mounted")
    (folder / "b.md").symlink_to("..data/b.md")
    os.mkfifo(folder / "fifo.md")
    links = {"key.md": outside, "zero.md": "/dev/zero", "loop.md": "loop.md", "up.md": ".."}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    found = survey(folder, None)
    assert [path.name for path in found.read] == ["a.md", "b.md"]
    assert {path.name: reason for path, reason in found.skipped.items()} == {
        "key.md": "are links that lead out of the folder"
    }


@of_kind("weights")
def test_a_header_of_weights_that_is_none_is_a_damaged_file(case: dict[str, Any], tmp_path: Path) -> None:
    header = case["header"].encode()
    for length in (len(header), 1 << 62):
        (tmp_path / "model.safetensors").write_bytes(length.to_bytes(8, "little") + header)
        with pytest.raises(CheckpointError, match="not a safetensors file"):
            stored_dtype(tmp_path)


@of_kind("grows")
def test_letters_that_grow_move_no_place_of_a_tag(case: dict[str, Any]) -> None:
    for number in range(40):
        rng = random.Random(number)
        text = "".join(
            rng.choice(case["letters"] + "<score>/|im_end answer\n#* Question:") for _ in range(200)
        )
        once = clean(text)
        assert clean(once) == once and not control_tag_in(as_read(once))
        assert clean(clean_line(text)) == clean_line(text)
        for family in DIALECTS:
            family.parse(f"{text}<answer>{text}</answer>")


@of_kind("resolved")
async def test_an_address_in_another_notation_does_not_lead_to_a_metadata_service(
    case: dict[str, Any],
) -> None:
    with pytest.raises(OSError, match=r"link-local|not known|[Nn]ame or service"):
        await GuardedResolver().resolve(case["host"], 80)


@of_kind("folder")
def test_a_run_is_read_whatever_its_folder_is_called(case: dict[str, Any], tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    for form in case["forms"]:
        folder = (tmp_path / "run").rename(tmp_path / form)
        with RunReader(folder) as reader:
            assert reader.tasks().total == 90 and reader.funnel()
        folder.rename(tmp_path / "run")


@of_kind("export")
def test_an_exported_text_is_what_it_was(case: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    stage = run.stage(1, Stage.TASKS)
    made = read_records(stage.candidates, Candidate)
    accepted = [row for row, each in enumerate(made) if each.status is CandidateStatus.ACCEPTED]
    for row, form in zip(accepted, case["forms"], strict=False):
        task = made[row].task
        assert task is not None
        made[row] = made[row].model_copy(update={"task": task.model_copy(update={"text": form})})
    write_records(stage.candidates, made)
    for iteration in range(3):
        finish(run, iteration, Stage.TASKS)
    done = CliRunner().invoke(cli, ["export", str(run.path), "--format", "trl", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    (train,) = (tmp_path / "out").rglob("*train*.parquet")
    prompts = json.dumps(pq.read_table(train).column("prompt").to_pylist())
    assert [form for form in case["forms"][: len(accepted)] if json.dumps(form)[1:-1] not in prompts] == []


@of_kind("query")
async def test_a_query_finds_something_or_nothing(case: dict[str, Any]) -> None:
    searcher = bm25_searcher(
        [Document(id=f"d{row}", title="T", text=f"dam {row} against floods") for row in range(20)]
    )
    for form in case["forms"]:
        for times in (1, 2_000):
            assert len(await searcher.search(form * times, 3)) <= 3


@of_kind("literal")
def test_a_field_of_a_benchmark_is_a_list_or_a_text(case: dict[str, Any]) -> None:
    for form in case["forms"]:
        for times in (1, 5_000):
            with suppress(UserError):
                assert all(isinstance(each, str) for each in Row({"x": form * times}, "row 1").texts("x"))


@of_kind("tool")
def test_a_tools_name_cannot_be_a_tag_or_a_line(case: dict[str, Any]) -> None:
    for form in case["forms"]:
        assert re.fullmatch(r"[A-Za-z0-9_-]*", local_name(form))
