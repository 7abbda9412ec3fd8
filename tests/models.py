"""A model directory as a run looks at it before it begins: whole files, a real tokenizer, one weight."""

import json
import shutil
from pathlib import Path

POLICY = Path(__file__).parents[1] / "scope_selfplay" / "embedded" / "policy"


def write_model(folder: Path) -> Path:
    """`folder`, made anew with all that a run may be begun with; no stage could train it."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(POLICY / name, folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return folder
