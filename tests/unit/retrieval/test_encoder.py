import json
from pathlib import Path

import numpy as np
import pytest

from retrieval.bert_onnx import read_pooling, write_bert
from retrieval.dense import check_encoder
from retrieval.encoder import FAMILIES, Backend, Encoder, encoder_hash, open_encoder, prepare_encoder
from retrieval.folder import ENCODER, IndexKind, IndexManifest
from scope_selfplay.base.errors import CheckpointError, RecordError
from scope_selfplay.testing.random_encoder import write_random_encoder

TEXTS = ["a", "who founded the town of Aldmoor?", "x" * 300, "salt and wool", "A!"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e5")
    return write_random_encoder(folder, np.random.default_rng(1), layers=2, hidden=32, heads=4)


@pytest.fixture(scope="module")
def encoder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tmp_path_factory.mktemp("encoder")
    prepare_encoder(str(model), FAMILIES["e5"], Backend.ONNX, folder)
    return open_encoder(folder)


def test_a_text_has_the_same_vector_alone_and_in_a_batch(encoder: Encoder) -> None:
    alone = np.concatenate([encoder.queries([text]) for text in TEXTS])
    assert encoder.queries(TEXTS) == pytest.approx(alone, abs=1e-6)


def test_queries_and_passages_differ_by_their_prefix(encoder: Encoder) -> None:
    assert abs(encoder.queries(["salt"]) - encoder.passages(["salt"])).max() > 1e-3
    plain = encoder.queries(["passage: salt"]), encoder.passages(["query: salt"])
    assert abs(plain[0] - plain[1]).max() > 1e-3


def test_texts_beyond_the_token_limit_are_cut_and_not_refused(encoder: Encoder) -> None:
    long, longer = "x" * 600, "x" * 900
    assert encoder.passages([long]) == pytest.approx(encoder.passages([longer]), abs=1e-6)


def test_the_hash_follows_the_weights_and_the_family(model: Path, tmp_path: Path) -> None:
    other = write_random_encoder(tmp_path / "other", np.random.default_rng(2), layers=2, hidden=32, heads=4)
    hashes = set()
    for number, (source, family) in enumerate(
        [(model, "e5"), (model, "plain"), (other, "e5"), (model, "e5")]
    ):
        folder = tmp_path / str(number)
        prepare_encoder(str(source), FAMILIES[family], Backend.ONNX, folder)
        hashes.add(encoder_hash(folder))
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "config.json").write_text('{"model_type": "xlm-roberta"}'),
            "sentence-transformers",
        ),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be read"),
    ],
)
def test_models_that_do_not_fit_are_refused(tmp_path: Path, change: object, message: str) -> None:
    folder = write_random_encoder(tmp_path / "m", np.random.default_rng(1), layers=1, hidden=16, heads=2)
    assert callable(change)
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        write_bert(folder, tmp_path)


def with_pooling(folder: Path, config: object, *modules: str) -> Path:
    """A random model that says how it pools, as sentence-transformers writes it."""
    model = write_random_encoder(folder, np.random.default_rng(1), layers=1, hidden=16, heads=2)
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps(config))
    kinds = ("Transformer", "Pooling", *modules)
    paths = ("", "1_Pooling", *("2_More" for _ in modules))
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in zip(kinds, paths, strict=True)
    ]
    (model / "modules.json").write_text(json.dumps(listed))
    return model


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({}, "mean"),
    ],
)
def test_the_models_own_pooling_is_read(tmp_path: Path, config: object, expected: str) -> None:
    assert read_pooling(with_pooling(tmp_path / "m", config, "Normalize")) == expected


def test_a_model_that_pools_by_its_first_token_gets_other_vectors_than_the_mean(tmp_path: Path) -> None:
    """Every model was pooled by the mean."""
    vectors = []
    for name, config in (("mean", {}), ("cls", {"pooling_mode": "cls"})):
        folder = tmp_path / name
        prepare_encoder(
            str(with_pooling(tmp_path / f"of {name}", config)), FAMILIES["plain"], Backend.ONNX, folder
        )
        vectors.append(open_encoder(folder).queries(TEXTS))
    assert np.linalg.norm(vectors, axis=2) == pytest.approx(1.0, abs=1e-5)
    assert abs(vectors[0] - vectors[1]).max() > 1e-2


@pytest.mark.parametrize(
    ("config", "modules", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (), "names max_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, (), r"names cls\+mean"),
        ({"pooling_mode_mean_tokens": False}, (), "names no pooling"),
        ({"pooling_mode": "mean", "include_prompt": False}, (), "without the prompt's tokens"),
        ({"pooling_mode": "mean"}, ("Dense",), "names 'Dense'"),
        ([], (), "expected a dict"),
    ],
)
def test_a_pooling_that_the_graph_cannot_do_is_refused(
    tmp_path: Path, config: object, modules: tuple[str, ...], message: str
) -> None:
    model = with_pooling(tmp_path / "m", config, *modules)
    with pytest.raises(CheckpointError, match=message):
        write_bert(model, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "1_Pooling/config.json", "tokenizer.json"])
def test_a_model_replaced_outside_the_index_folder_is_noticed(tmp_path: Path, name: str) -> None:
    """sentence-transformers loads it from where it lies; only its path was kept."""
    model = with_pooling(tmp_path / "m", {"pooling_mode": "mean"})
    prepare_encoder(str(model), FAMILIES["e5"], Backend.SENTENCE_TRANSFORMERS, tmp_path / ENCODER)
    manifest = IndexManifest(
        kind=IndexKind.DENSE,
        profile="flat",
        rows=1,
        corpus_hash="c",
        encoder=str(model),
        encoder_hash=encoder_hash(tmp_path / ENCODER),
    )
    check_encoder(tmp_path, manifest)
    (model / name).write_bytes((model / name).read_bytes() + b" ")
    with pytest.raises(RecordError, match="has changed since the build"):
        check_encoder(tmp_path, manifest)


def test_an_encoder_of_8_bit_queries_is_refused_and_says_what_to_do(model: Path, tmp_path: Path) -> None:
    prepare_encoder(str(model), FAMILIES["e5"], Backend.ONNX, tmp_path)
    settings = tmp_path / "encoder.json"
    settings.write_text(settings.read_text().replace("float32", "int8"))
    with pytest.raises(
        CheckpointError, match="int8 queries, which are no longer encoded: build the index again"
    ):
        open_encoder(tmp_path)
