"""Train the small tokenizer that ships with the router: byte-level BPE over text written for the purpose.

    python bench/train_tiny_tokenizer.py router/data/tiny

It serves the emulator, the demo and the tests, where a real model's vocabulary would be a download. Deterministic.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY_OF_THE_TEXT = """
a about above after again all also always an and another answer any are around as ask at away back be because been
before begin below between block both build but by cache call can change check choose city code come company compute
could count country create data day decide decode describe did different do does done down each early easy either
engine enough even ever every example explain fact far fast feel few find first follow for found four from full
function further general get give go good great group grow had hand happen hard has have he head help her here high
him his hold home hour house how however if important in increase index information inside into is it item its just
keep key kind know language large last late later learn least leave left less let letter level life light like line
list little live load long look lose made main make many may mean measure memory message might mind minute model
moment month more most move much must name near need never new next night no not nothing now number of off often old
on once one only open or order other our out over own part path people perhaps place plan play point policy possible
prefill prefix present problem program prompt question quick read ready real reason remember replica reply report
request result return right room route router run said same say second see seem send sentence serve session set
several shall she short should show side simple since small so some something soon speak stand start state step still
stop story stream strong such summary sure system table take talk tell tenant text than thank that the their them then
there these they thing think this those though three through time to today together token tool top toward true try
turn two under understand unit until up upon us use user value very view wait walk want was water way we weather week
well were what when where whether which while who whole why will wish with within without word work world would write
year yes yesterday yet you young your
"""
WORDS = VOCABULARY_OF_THE_TEXT.split()
ENDINGS = ["", "", "", "s", "ed", "ing", "er", "ly", "'s", "ness", "able"]
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}"
    "{{- 'Tools:' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (loop.first and tools and message.role == 'system') %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- endif %}"
    "{%- if message.tool_calls %}{%- for call in message.tool_calls %}"
    "{{- '\\n' + call.function.name + ' ' + (call.function.arguments | tojson) }}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def corpus() -> list[str]:
    draw = random.Random(7)
    lines = []
    for _ in range(6_000):
        words = [draw.choice(WORDS) + draw.choice(ENDINGS) for _ in range(draw.randrange(6, 18))]
        words[0] = words[0].capitalize()
        lines.append(" ".join(words) + draw.choice([".", "?", "!", ":", ", and"]))
        if draw.random() < 0.2:
            lines.append(f'{{"{draw.choice(WORDS)}": {draw.randrange(10_000)}, "{draw.choice(WORDS)}": [true, null]}}')
        if draw.random() < 0.1:
            lines.append(f"def {draw.choice(WORDS)}_{draw.choice(WORDS)}(self):\n    return {draw.choice(WORDS)} + 1\n")
    return lines


def main(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(content, special=True, normalized=False) for content in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n")
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
