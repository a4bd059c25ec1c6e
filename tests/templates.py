"""The zoo: small copies of the shapes that chat templates have, and small tokenizers that read them.

Each shape is written for these tests after what models of that family expect. Two tokenizers are trained in a moment
on Python's own manual: byte-level BPE as in GPT-2, and pieces with byte fallback as SentencePiece makes them.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pydoc_data.topics import topics

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BOOK = "\n".join(topics[name] for name in sorted(topics))
"""some 460 kB of English prose with code in it"""

_CHATML_TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A template, the tokens it writes, and what surrounds a message in it. `plain` tokens are added, not special."""

    template: str
    special: tuple[str, ...]
    bos: str | None
    eos: str
    plain: tuple[str, ...] = ()
    takes_space: tuple[str, ...] = ()  # tokens that swallow the whitespace on their right


ZOO: dict[str, Shape] = {
    "smollm2": Shape(
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are a small model<|im_end|>\n' }}"
        "{% endif %}" + _CHATML_TURNS,
        ("<|im_start|>", "<|im_end|>"),
        "<|im_start|>",
        "<|im_end|>",
    ),
    "llama2": Shape(
        "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
        "{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
        "{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}"
        "{% for m in rest %}" + _ALTERNATE + "{% if m.role == 'user' %}"
        "{{ bos_token + '[INST] ' + ((system if loop.first else '') + m.content).strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        "<s>",
        "</s>",
    ),
    "llama3": Shape(
        "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\n' }}"
        "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}"
        "{% endif %}{{ '<|eot_id|>' }}"
        "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
        "{{ m.content | trim }}{{ '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|begin_of_text|>",
        "<|end_of_text|>",
    ),
    "mistral": Shape(
        "{{ bos_token }}{% for m in messages %}" + _ALTERNATE + "{% if m.role == 'user' %}"
        "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        "<s>",
        "</s>",
    ),
    "gemma2": Shape(
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for m in messages %}" + _ALTERNATE + "{{ '<start_of_turn>' + "
        "('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "<bos>",
        "<eos>",
    ),
    "qwen3": Shape(
        "{% set ns = namespace(last=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
        "{% set answer = m.content.split('</think>')[-1].lstrip('\n') %}"
        "{{ ('<think>\n\n</think>\n\n' if loop.index0 > ns.last else '') + answer }}"
        "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        None,
        "<|im_end|>",
        plain=("<think>", "</think>", "<tool_call>"),
    ),
    "phi3": Shape(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}",
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        None,
        "<|endoftext|>",
        takes_space=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ),
    "zephyr": Shape(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        ("<s>", "</s>"),
        "<s>",
        "</s>",
    ),
    "chatml": Shape(_CHATML_TURNS, ("<|im_start|>", "<|im_end|>"), None, "<|im_end|>"),
    "mpt": Shape(
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nA talk of a user and a model.<|im_end|>' }}"
        "{% endif %}{% for m in messages %}{{ '' if loop.first and m.role == 'system' else '\n' }}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content.strip() + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        None,
        "<|endoftext|>",
    ),
    "falcon": Shape(
        "{% for m in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
        "{{ {'system': 'System', 'user': 'User', 'assistant': 'Falcon'}[m.role] + ': ' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\nFalcon:' }}{% endif %}",
        ("<|endoftext|>",),
        None,
        "<|endoftext|>",
    ),
    "vicuna": Shape(
        "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ messages[0].content + ' ' }}"
        "{% else %}{% set rest = messages %}{{ 'A chat between a curious user and an assistant. ' }}{% endif %}"
        "{% for m in rest %}{% if m.role == 'user' %}{{ 'USER: ' + m.content }}"
        "{% else %}{{ ' ASSISTANT: ' + m.content + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}",
        ("<s>", "</s>"),
        "<s>",
        "</s>",
    ),
    "glm4": Shape(
        "[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
        None,
        "<|endoftext|>",
    ),
}

MOVES_SYSTEM = Shape(
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + (system if loop.last else '') + m.content + '[/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    ("<s>", "</s>", "[INST]", "[/INST]"),
    "<s>",
    "</s>",
)
"""in the shape of Mistral 0.3"""

BEGINS_THINKING = Shape(
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{{ '<|User|>' + m.content }}"
    "{% else %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}",
    ("<s>", "</s>", "<|User|>", "<|Assistant|>"),
    "<s>",
    "</s>",
    plain=("<think>", "</think>"),
)
"""in the shape of DeepSeek R1"""


KEEPS_THINKING = Shape(
    _CHATML_TURNS, ("<|im_start|>", "<|im_end|>"), None, "<|im_end|>", plain=("<think>", "</think>")
)
"""ChatML with the tokens of Qwen 3, and nothing left out of earlier turns"""

DATED = replace(
    ZOO["llama3"],
    template=ZOO["llama3"].template.replace("26 Jul 2024", "' + strftime_now('%d %b %Y') + '"),
)
"""in the shape of Llama 3.2, which writes the day of today"""


def chatml(turns: str = _CHATML_TURNS) -> Shape:
    """Plain ChatML, or something else with its tokens."""
    return Shape(turns, ("<|im_start|>", "<|im_end|>"), None, "<|im_end|>")


TOKENIZERS = ("bytes", "split-bytes", "pieces", "first-pieces")
"""byte-level BPE with the pre-tokens of GPT-2 and of Llama 3; pieces with a space put before each text, as in
Llama 2, and before the very first, as in its later conversions"""


def tokenizer_for(shape: Shape, kind: str = "bytes") -> PreTrainedTokenizerFast:
    """A tokenizer of one of the `TOKENIZERS`, with the template of the shape and the tokens it writes."""
    backend = Tokenizer.from_str(_trained(kind))
    backend.add_special_tokens(
        [AddedToken(token, rstrip=token in shape.takes_space, normalized=False) for token in shape.special]
    )
    backend.add_tokens([AddedToken(token, normalized=False) for token in shape.plain])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=shape.bos, eos_token=shape.eos, chat_template=shape.template
    )


@cache
def _trained(kind: str) -> str:
    return (_pieces(kind) if kind.endswith("pieces") else _byte_level(kind)).to_str()


def _byte_level(kind: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(words, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([BOOK[:100_000]], trainer)
    return tokenizer


def _pieces(kind: str) -> Tokenizer:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n|[^ \n]\K(?= )"), "isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="never", split=True),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False)
    learner.train_from_iterator([BOOK[:100_000].replace("\n", " ")], trainer)
    learnt = json.loads(learner.to_str())["model"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"]]
    merges = [tuple(pair) for pair in learnt["merges"]]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if kind == "pieces":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer
