#!/usr/bin/env python3
"""Write tests/golden/attention-windows.json: results of transformers past an attention window.

For two models in tests/golden/huggingface: the logits after the last of 40 tokens, in fp32, once with
the window and once without. Mistral has its own window; Qwen2 is given one that begins at its second
layer. Set up as for make_huggingface_folders.py; run from the top of the tree.
"""

import json
import pathlib

import torch
import transformers

FOLDERS = pathlib.Path("tests/golden/huggingface")
CASES = {
    "mistral-bf16-sharded": {},
    "qwen2-f16": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
}
LENGTH = 40


def logits_of(folder, tokens, keys):
    config = transformers.AutoConfig.from_pretrained(folder)
    for name, value in keys.items():
        setattr(config, name, value)
    if hasattr(config, "layer_types"):
        slides = config.use_sliding_window and config.sliding_window is not None
        config.layer_types = [
            "sliding_attention" if slides and i >= config.max_window_layers else "full_attention"
            for i in range(config.num_hidden_layers)]
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(input_ids=tokens[None], use_cache=False).logits[0, -1].tolist()


def main():
    rows = []
    for name, keys in CASES.items():
        config = transformers.AutoConfig.from_pretrained(FOLDERS / name)
        tokens = torch.randint(0, config.vocab_size, (LENGTH,),
                               generator=torch.Generator().manual_seed(2))
        off = {"use_sliding_window": False} if keys else {"sliding_window": None}
        rows.append({"folder": name, "window": keys.get("sliding_window", config.sliding_window),
                     "first_layer": keys.get("max_window_layers", 0), "tokens": tokens.tolist(),
                     "logits": logits_of(FOLDERS / name, tokens, keys),
                     "logits_without": logits_of(FOLDERS / name, tokens, off)})
    text = json.dumps(rows).replace("{\"folder", "\n{\"folder")
    pathlib.Path("tests/golden/attention-windows.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
