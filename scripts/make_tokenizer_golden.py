#!/usr/bin/env python3
"""Makes tests/golden/tokenizers.tar.xz: a small tokenizer.json of every kind in scripts/peer_tokenizers.py, and for each the ids
that the `tokenizers` package gives for some texts, and the texts that it decodes them to; and tests/golden/trained_bpe.tar.xz: a text, and the
merges that the package learns from it with several split patterns. Needs what scripts/check_tokenizers needs:

    /tmp/venv/bin/python scripts/make_tokenizer_golden.py [tokenizers] [trained_bpe]
"""
import json, os, pathlib, random, runpy, subprocess, sys, tempfile

import peer_tokenizers
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ["", " ", "a", "Hello world", "  two  spaces ", "don't we'LL I'm", "x=1;\ty = 22, z=333333", "\n\n  indented\r\n\tmore\n", "naïve café Straße ﬁne ½ ②",
         "e\u0301 \u1112\u1161\u11ab \uac00\u11a8", "你好，世界。日本語テキスト", "العربية و עברית", "🙂👩‍👩‍👧🇩🇪", "<s>begin</s> <|endoftext|>end<|im_start|>",
         "hello helloworld |||EMAIL|||@@  x", " \u00a0\u3000\u2028\u180e\u0085|", "ab\ufffdcd\x00ef", "<0x41>▁▁x Ġy ##z</w>", "3.14159 1234567 ٣٤ 五",
         "https://example.org/a_b?c=d&e=#f", "for (int i = 0; i < n; ++i) {\n    sum += v[i];\n}\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "İstanbul ǅ ſ K", "\u1ab0\u0600x\u0903"]
RULES = "41\t61\nC9\t65\n65 301\t65\n9\t20\n200B\t\n"


def pack(name, scratch):
    """All of the scratch folder's `name`, so that the same content makes the same archive."""
    out = ROOT / f"tests/golden/{name}.tar.xz"
    subprocess.run(["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-C", scratch, "-cJf", out, name],
                   check=True, env={**os.environ, "XZ_OPT": "-9e"})
    print(f"{out}: {out.stat().st_size} bytes")


def tokenizers(made_text):
    rng = random.Random(3)
    training = [t for t in TEXTS for _ in range(3)] + [(ROOT / "README.md").read_text()[:6000]]
    texts = TEXTS + [made_text(rng).decode("utf-8", "replace")[:400] for _ in range(12)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "tokenizers"
        folder.mkdir()
        (rules := pathlib.Path(scratch) / "rules.tsv").write_text(RULES)
        for name, make in peer_tokenizers.ALL.items():
            more = {"rule": str(rules)} if name == "t5" else {}
            made = make(training, 420, **more).to_str(pretty=False)
            peer = Tokenizer.from_str(made)
            cases = []
            for text in texts:
                ids = peer.encode(text, add_special_tokens=False).ids
                cases.append({"text": text, "ids": ids, "decoded": peer.decode(ids), "around": peer.encode(text).ids})
            (folder / f"{name}.json").write_text(made)
            (folder / f"{name}.cases").write_text(json.dumps(cases))
        pack("tokenizers", scratch)


def trained_bpe(made_text):
    """Words, runs of one character, lines as pieces (which make one token in two ways), and text that nobody would write."""
    rng = random.Random(4)
    words = ["".join(rng.choice("abcde") for _ in range(rng.randrange(1, 9))) for _ in range(300)]
    lines = [" ".join(rng.choice(words[:rng.choice((20, 100, 300))]) for _ in range(rng.randrange(1, 14))) for _ in range(150)]
    lines += ["=" * rng.randrange(1, 60) + " " * rng.randrange(9) + str(rng.randrange(10**6)) for _ in range(40)]
    lines += [made_text(rng).decode("utf-8", "replace")[:200] for _ in range(15)]
    text = "\n".join(lines + TEXTS[1:]).replace("\0", "")  # which is in no text file
    cases = []
    for split in ("gpt2", "gpt4", "gpt4o", "qwen2", r"[^\n]+\n?|\n"):
        made = json.loads(peer_tokenizers.trained([text], split, 900, ["<|end|>"]).to_str())
        cases.append({"split": split, "vocab": made["model"]["vocab"], "merges": made["model"]["merges"]})
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "trained_bpe"
        folder.mkdir()
        (folder / "cases.json").write_text(json.dumps({"text": text, "vocab_size": 900, "end": "<|end|>", "cases": cases}))
        pack("trained_bpe", scratch)


def main():
    made_text = runpy.run_path(str(ROOT / "scripts/check_tokenizers"))["made"]
    for make in (tokenizers, trained_bpe):
        if len(sys.argv) < 2 or make.__name__ in sys.argv[1:]:
            make(made_text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "scripts"))
    main()
