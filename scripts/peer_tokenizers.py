"""Tokenizers of every kind of tokenizer.json in use, made with the `tokenizers` package: the split
patterns, normalizers, decoders and switches are those that were published, the vocabularies are trained on the text given.
For scripts/check_tokenizers and scripts/make_tokenizer_golden.py."""
import io, json

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
QWEN2 = GPT4.replace("{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
# tiktoken's own form of GPT-4's, with quantifiers that give nothing back.
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
              r"\s+(?!\S)|\s")
MARK = "\u2581"


def special(*texts, **how):
    return [AddedToken(text, special=True, normalized=False, **how) for text in texts]


def byte_level(texts, pre_tokenizer, size, normalizer=None, specials=("<|endoftext|>",), least=0, **how):
    tokenizer = Tokenizer(models.BPE(**how))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, min_frequency=least, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special(*specials), show_progress=False))
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def splits(*steps, byte_level=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)):
    return pre_tokenizers.Sequence([*steps, byte_level])


def trained(texts, split_name, size, specials):
    """The tokenizer that `dstrain prepare-data --train-tokenizer bpe --split-pattern split_name` learns."""
    pattern = {"gpt4": GPT4, "gpt4o": GPT4O, "qwen2": QWEN2}.get(split_name, split_name)
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if pattern == "gpt2" else splits(split(Regex(pattern)))
    return byte_level(texts, pre_tokenizer, size, specials=specials, least=2)


def gpt2(texts, size):
    return byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), size)


def roberta(texts, size):
    tokenizer = byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=True), size,
                           specials=("<s>", "</s>", "<unk>", "<mask>"), unk_token="<unk>")
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    tokenizer.add_special_tokens(special("<mask>", lstrip=True))
    return tokenizer


def llama3(texts, size):
    tokenizer = byte_level(texts, splits(split(Regex(GPT4))), size, ignore_merges=True,
                           specials=("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
                                      special_tokens=[("<|begin_of_text|>", 0)])])
    # Tokens that the merges alone do not reach.
    made = json.loads(tokenizer.to_str())
    for word in ("\u0120unreachable", "Zqxj", "\u0120\u0120zz"):
        made["model"]["vocab"].setdefault(word, max(made["model"]["vocab"].values()) + 1)
    return Tokenizer.from_str(json.dumps(made))


def qwen2(texts, size):
    return byte_level(texts, splits(split(Regex(QWEN2))), size, normalizer=normalizers.NFC(),
                      specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))


def o200k(texts, size):
    return byte_level(texts, splits(split(Regex(GPT4O))), size, specials=("<|endoftext|>", "<|endofprompt|>"))


def olmo2(texts, size):
    tokenizer = byte_level(texts, splits(split(Regex(GPT4))), size, specials=("<|endoftext|>", "<|pad|>"))
    tokenizer.add_tokens([AddedToken("|||EMAIL|||", normalized=False), AddedToken("hello", single_word=True),
                          AddedToken("  stripped ", lstrip=True, rstrip=True), AddedToken("@@", rstrip=True, normalized=False),
                          AddedToken("Straße"), AddedToken("   ", normalized=False)])
    return tokenizer


def smollm(texts, size):
    return byte_level(texts, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), size)


def falcon(texts, size):
    return byte_level(texts, pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), split(Regex("[0-9][0-9][0-9]"))]), size)


def deepseek(texts, size):
    return byte_level(texts, splits(split(Regex(r"\p{N}{1,3}")), split(Regex("[一-龥぀-ゟ゠-ヿ]+")), split(Regex(DEEPSEEK))), size)


def bloom(texts, size):
    return byte_level(texts, splits(split(Regex(BLOOM))), size, specials=("<unk>", "<s>", "</s>", "<pad>"))


def possessive(texts, size):
    return byte_level(texts, splits(split(Regex(POSSESSIVE), "removed", True)), size)


def byte_normalizer(texts, size):
    return byte_level(texts, split(Regex(r"Ġ?[^Ġ]+|Ġ+")), size, normalizer=normalizers.ByteLevel())


def byte_fallback(texts, size, normalizer, pre_tokenizer, decoder, behaves=None, added=("<unk>", "<s>", "</s>")):
    """BPE of characters, trained on words that begin with the mark, with rare characters left to the bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, limit_alphabet=min(200, size // 4), show_progress=False))
    learnt = json.loads(trained.to_str())["model"]
    vocabulary = {text: i for i, text in enumerate(added)}
    for text in [f"<0x{byte:02X}>" for byte in range(256)] + [MARK * i for i in range(1, 5)] + sorted(
            learnt["vocab"], key=learnt["vocab"].get):
        vocabulary.setdefault(text, len(vocabulary))
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in learnt["merges"]]
    merges += [(MARK, MARK), (MARK * 2, MARK * 2), (MARK * 2, MARK)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(special(*added))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


def marks_to_spaces(*more):
    return decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *more])


def llama2_legacy(texts, size):
    return byte_fallback(texts, size, normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None,
                         marks_to_spaces(decoders.Strip(" ", 1, 0)))


def mistral(texts, size):
    return byte_fallback(texts, size, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
                         marks_to_spaces(decoders.Strip(" ", 1, 0)))


def gemma(texts, size):
    tokenizer = byte_fallback(texts, size, normalizers.Replace(" ", MARK), split(" ", "merged_with_previous"), marks_to_spaces(),
                              added=("<pad>", "<s>", "<eos>", "<unk>"))
    tokenizer.add_tokens([AddedToken("\n" * i, normalized=False) for i in range(1, 6)] +
                         [AddedToken(MARK * i, normalized=False) for i in range(2, 6)])
    return tokenizer


def charsmap(rule):
    """SentencePiece's table of a rule that it knows, or of a TSV file of code points."""
    model = io.BytesIO()
    lines = (f"line {i} of some words that say {i * 7919 % 1000} things" for i in range(2000))
    how = {"normalization_rule_tsv": rule} if rule.endswith(".tsv") else {"normalization_rule_name": rule}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, vocab_size=100, hard_vocab_limit=False,
                                             minloglevel=3, **how)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def unigram(texts, size, normalizer, pre_tokenizer, decoder, specials, **how):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoder
    # Every character is a token, so there must not be too many.
    few = ("".join(c for c in text if c < "\u0250" or "\u4e00" <= c < "\u4e40") for text in texts)
    tokenizer.train_from_iterator(few, trainers.UnigramTrainer(vocab_size=size, special_tokens=special(*specials),
                                                               unk_token="<unk>", show_progress=False))
    made = json.loads(tokenizer.to_str())
    made["model"].update(how)
    if how.get("byte_fallback"):
        made["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    return Tokenizer.from_str(json.dumps(made))


def t5(texts, size, rule="nmt_nfkc"):
    tokenizer = unigram(texts, size, normalizers.Precompiled(charsmap(rule)),
                        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
                        decoders.Metaspace(), ("<pad>", "</s>", "<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def xlnet(texts, size):
    return unigram(texts, size, normalizers.Sequence([
        normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(), normalizers.Lowercase(),
        normalizers.NFKD(), normalizers.StripAccents()]), pre_tokenizers.Metaspace(prepend_scheme="always"),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), ("<s>", "</s>", "<unk>"), byte_fallback=True)


def gpt1(texts, size):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, limit_alphabet=min(150, size // 4), special_tokens=["<unk>"],
                                                             end_of_word_suffix="</w>", show_progress=False))
    return tokenizer


def pieces(texts, size):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.CharDelimiterSplit("\t"), split("=", "merged_with_next"), split(Regex(r"[;,]\s*"), "merged_with_previous"),
        split(Regex(r"\w+"), "contiguous", True), pre_tokenizers.FixedLength(7), pre_tokenizers.WhitespaceSplit()])
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, limit_alphabet=min(120, size // 4), special_tokens=["[UNK]"],
                                                             continuing_subword_prefix="##", show_progress=False))
    return tokenizer


ALL = {f.__name__: f for f in (gpt2, roberta, llama3, qwen2, o200k, olmo2, smollm, falcon, deepseek, bloom, possessive, byte_normalizer,
                               llama2_legacy, mistral, gemma, t5, xlnet, gpt1, pieces)}
