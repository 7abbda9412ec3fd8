import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retrieval.dense import check_encoder
from retrieval.encoder import FAMILIES, Backend, Encoder, encoder_hash, open_encoder, prepare_encoder
from retrieval.folder import ENCODER, IndexKind, IndexManifest
from scope_selfplay.base.errors import CheckpointError, RecordError
from scope_selfplay.testing.random_encoder import write_random_encoder

TEXTS = ["a", "who founded the town of Aldmoor?", "x" * 300, "salt and wool", "A!"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e5")
    return write_random_encoder(folder, layers=2, hidden=32, heads=4)


def prepared(model: Path, folder: Path) -> Encoder:
    prepare_encoder(str(model), FAMILIES["e5"], Backend.ONNX, folder)
    return open_encoder(folder)


@pytest.fixture(scope="module")
def encoder(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return prepared(shared, tmp_path_factory.mktemp("encoder"))


def test_a_text_has_the_same_vector_alone_and_in_a_batch(encoder: Encoder) -> None:
    alone = np.concatenate([encoder.queries([text]) for text in TEXTS])
    assert encoder.queries(TEXTS) == pytest.approx(alone, abs=1e-6)


def test_queries_and_passages_differ_by_their_prefix_and_long_texts_are_cut(encoder: Encoder) -> None:
    assert abs(encoder.queries(["salt"]) - encoder.passages(["salt"])).max() > 1e-3
    plain = encoder.queries(["passage: salt"]), encoder.passages(["query: salt"])
    assert abs(plain[0] - plain[1]).max() > 1e-3
    assert encoder.passages(["x" * 600]) == pytest.approx(encoder.passages(["x" * 900]), abs=1e-6)


Change = Callable[[Path], object]


def changed(**fields: object) -> Change:
    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def pooled(config: object, *modules: str) -> Change:
    """The model says how it pools, as sentence-transformers writes it."""

    def change(model: Path) -> None:
        (model / "1_Pooling").mkdir()
        (model / "1_Pooling" / "config.json").write_text(json.dumps(config))
        kinds = {"Transformer": "", "Pooling": "1_Pooling", **dict.fromkeys(modules, "2_More")}
        listed = [{"type": f"sentence_transformers.models.{kind}", "path": kinds[kind]} for kind in kinds]
        (model / "modules.json").write_text(json.dumps(listed))

    return change


def small(folder: Path, change: Change) -> Path:
    model = write_random_encoder(folder, layers=1, hidden=16, heads=2)
    change(model)
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(model_type="xlm-roberta"), "sentence-transformers"),
        (changed(num_hidden_layers=None), "has num_hidden_layers None"),
        (changed(hidden_size="64"), "has hidden_size '64'"),
        (lambda model: (model / "config.json").write_text("[]"), "config.json: a list, expected a dict"),
        (lambda model: (model / "config.json").unlink(), "config.json"),
        (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer.json in"),
        (lambda model: (model / "modules.json").write_text("[1]"), "modules.json lists a int"),
        (lambda model: (model / "model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
        (pooled({"pooling_mode_max_tokens": True}), "names max_tokens"),
        (pooled({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}), r"names cls\+mean"),
        (pooled({"pooling_mode_mean_tokens": False}), "names no pooling"),
        (pooled({"pooling_mode": "mean", "include_prompt": False}), "without the prompt's tokens"),
        (pooled({"pooling_mode": "mean"}, "Dense"), "names 'Dense'"),
        (pooled([]), "expected a dict"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, change: Change, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        prepared(small(tmp_path / "model", change), tmp_path / "encoder")
    assert "\n" not in str(raised.value)


def test_a_model_that_pools_by_its_first_token_gets_other_vectors_than_the_mean(tmp_path: Path) -> None:
    mean, cls = (
        prepared(small(tmp_path / mode, pooled({"pooling_mode": mode})), tmp_path / f"of {mode}").queries(
            TEXTS
        )
        for mode in ("mean", "cls")
    )
    assert np.linalg.norm([mean, cls], axis=2) == pytest.approx(1.0, abs=1e-5)
    assert abs(mean - cls).max() > 1e-2


@pytest.mark.parametrize("name", ["model.safetensors", "1_Pooling/config.json", "tokenizer.json"])
def test_a_model_replaced_outside_the_index_folder_is_noticed(tmp_path: Path, name: str) -> None:
    model = small(tmp_path / "model", pooled({"pooling_mode": "mean"}))
    prepare_encoder(str(model), FAMILIES["e5"], Backend.SENTENCE_TRANSFORMERS, tmp_path / ENCODER)
    manifest = IndexManifest(
        kind=IndexKind.DENSE,
        profile="flat",
        rows=1,
        encoder=str(model),
        encoder_hash=encoder_hash(tmp_path / ENCODER),
    )
    check_encoder(tmp_path, manifest)
    (model / name).write_bytes((model / name).read_bytes() + b" ")
    with pytest.raises(RecordError, match="has changed since the build"):
        check_encoder(tmp_path, manifest)


def test_an_encoder_of_8_bit_queries_is_refused_and_says_what_to_do(shared: Path, tmp_path: Path) -> None:
    prepared(shared, tmp_path)
    settings = tmp_path / "encoder.json"
    settings.write_text(settings.read_text().replace("float32", "int8"))
    with pytest.raises(CheckpointError, match=r"int8 queries, which are no longer encoded: build .* again"):
        open_encoder(tmp_path)
