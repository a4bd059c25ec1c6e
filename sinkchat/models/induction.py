"""A model that can recall and do nothing else, built by hand: an induction head (arXiv 2209.11895).

Two layers of attention, one head each, in a plain Llama. The first head looks one token back, by rotary angles alone,
and writes there what it saw; the second looks for the place whose previous token is the current one, and says what
stands there. So `a b ... a` is continued by `b`, however far back, as long as `b` is remembered. Small models that
were trained recall badly for reasons of their own; this one fails for one reason only, which is what an experiment on
memory wants.

The residual stream has four parts: who I am, who came before me, what I say, and a constant. The first token of a
stream takes itself for the one before it.
"""

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH = 64
"""dimensions of an identity, each 1 or -1"""
HEAD = 2 * WIDTH
THETA = 1e12
"""so slow that the last half of the rotary pairs hardly turns: what lies there is compared by content alone"""
FAST = 12
"""rotary pairs that tell one token back from all other distances"""
LOOKS_BACK, MATCHES, SAYS = 40.0, 1.5, 1.0
"""how sharply the first head looks one back, the second compares, the output decides"""


def induction_model(vocabulary_size: int, *, positions: int = 16_384) -> LlamaForCausalLM:
    """A float32 model on the CPU, in eval mode. Leaves torch's global generator as it was."""
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=4 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=HEAD,
        intermediate_size=8,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        weight.fill_(1.0 if "norm" in name else 0.0)
    generator = torch.Generator().manual_seed(0)
    identities = torch.randint(2, (vocabulary_size, WIDTH), generator=generator) * 2.0 - 1
    me, before, said, constant = (slice(part * WIDTH, (part + 1) * WIDTH) for part in range(4))
    model.model.embed_tokens.weight[:, me] = identities
    model.model.embed_tokens.weight[:, constant] = 1.0
    model.lm_head.weight[:, said] = SAYS * identities

    eye, value = torch.eye(WIDTH), slice(0, WIDTH)
    first, second = (layer.self_attn for layer in model.model.layers)
    first.q_proj.weight[:, constant], first.k_proj.weight[:, constant] = _one_back()
    first.v_proj.weight[value, me] = eye
    first.o_proj.weight[before, value] = eye
    slow = torch.tensor([pair for pair in range(HEAD) if pair % WIDTH >= WIDTH // 2])
    second.q_proj.weight[slow, me] = MATCHES * eye
    second.k_proj.weight[slow, before] = MATCHES * eye
    second.v_proj.weight[value, me] = eye
    second.o_proj.weight[said, value] = eye
    return model


def _one_back() -> tuple[Tensor, Tensor]:
    """Weights (D, 1) of query and key whose product is largest between neighbours, the query being the later one."""
    frequencies = THETA ** (-torch.arange(0, HEAD, 2, dtype=torch.float64)[:FAST] / HEAD)
    query, key = torch.zeros(HEAD, 1), torch.zeros(HEAD, 1)
    pairs = torch.arange(FAST)
    key[pairs, 0] = 1.0
    query[pairs, 0] = frequencies.cos().float()
    query[pairs + WIDTH, 0] = -frequencies.sin().float()
    return query * LOOKS_BACK / WIDTH, key / WIDTH
