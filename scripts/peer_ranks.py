"""tiktoken's own encoders of rank files, for scripts/check_tokenizers. The published ranks are not available, so these are made up: tokens
that were learnt, and as many more as the published file has, each made of two others, at ranks that training would not give them."""
import base64, functools, json
from types import SimpleNamespace

import tiktoken
from tiktoken_ext import openai_public
from tokenizers import pre_tokenizers

import peer_tokenizers

OPENAI = {"r50k_base": 50256, "p50k_base": 50280, "cl100k_base": 100256, "o200k_base": 199998}
OTHERS = {"llama3_ranks": (128000, {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}, peer_tokenizers.GPT4),
          "qwen_ranks": (151643, {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}, peer_tokenizers.QWEN2)}
ALL = [*OPENAI, *OTHERS]


def published(name):
    """How many ranks there are, the special tokens, and the pattern."""
    if name in OTHERS:
        return OTHERS[name]
    load, openai_public.load_tiktoken_bpe = openai_public.load_tiktoken_bpe, lambda *_, **__: {}
    try:
        facts = getattr(openai_public, name)()
    finally:
        openai_public.load_tiktoken_bpe = load
    return OPENAI[name], facts["special_tokens"], facts["pat_str"]


@functools.cache
def learnt(texts):
    """Tokens as bytes, the 256 bytes first."""
    model = json.loads(peer_tokenizers.gpt2(list(texts), 20000).to_str())["model"]
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = dict(zip(sorted(pre_tokenizers.ByteLevel.alphabet()), printable + others))
    return [bytes(byte_of[c] for c in text) for text in sorted(model["vocab"], key=model["vocab"].get)[1:]]


class Ranks:
    """The part of a `tokenizers.Tokenizer` that the script uses."""

    def __init__(self, name, texts, rng, path):
        count, self.specials, pattern = published(name)
        tokens = list(learnt(tuple(texts)))
        seen = set(tokens)
        while len(tokens) < count:
            token = rng.choice(tokens) + rng.choice(tokens)
            if token not in seen and len(token) < 40:
                tokens.append(token)
                seen.add(token)
        ranks = (rank for rank in range(count + 1) if rank not in self.specials.values())
        made = dict(zip(tokens, ranks))
        path.write_bytes(b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in made.items()))
        self.encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=made, special_tokens=self.specials)

    def encode(self, text, add_special_tokens=False):
        return SimpleNamespace(ids=self.encoding.encode(text, allowed_special="all"))

    def decode(self, ids):
        return self.encoding.decode([i for i in ids if i not in self.specials.values()])

    def id_to_token(self, i):
        return self.encoding.decode_single_token_bytes(i)

    def get_vocab_size(self):
        return self.encoding.n_vocab

    def get_added_tokens_decoder(self):
        return {i: SimpleNamespace(content=text) for text, i in self.specials.items()}
