"""How the prompts of recorded engine runs begin: rows and block ids are ours, lengths are the log's own."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from sim.engine_prompts import told
from sim.replay import Sent

_ROOT = Path(__file__).parents[2]


def with_beginnings(sent: Sequence[Sent], tokenizer: str = "llama3_1") -> tuple[Sent, ...]:
    """The requests of one of these runs, with the keys of what their prompts begin with."""
    spec = importlib.util.spec_from_file_location("prompts_of_sharegpt", _ROOT / "bench" / "prompts_of_sharegpt.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    known = script.beginnings(_ROOT / "tests" / "recordings" / f"sharegpt_beginnings_{tokenizer}.jsonl")
    with TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(script.recording([request.prompt_tokens for request in sent], known)))
        return told(sent, prompts, 16)
