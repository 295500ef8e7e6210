"""WordPieces as BERT reads them, learned from texts: frequent words whole, the others in pieces (Devlin et al. 2019).

A piece that goes on with a word begins with "##". What comes of it is a tokenizer like a released one, so that a BERT
which was trained here is used, converted and fine-tuned as any other.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from qkv.data.tokenizer import PretrainedTokenizer

INSIDE = "##"
NAMES = {"pad": "[PAD]", "unknown": "[UNK]", "begin": "[CLS]", "end": "[SEP]", "mask": "[MASK]"}


def learn_wordpieces(texts: Iterable[str], size: int, *, lowercase: bool = False) -> PretrainedTokenizer:
    """The special tokens, every character that was seen, and the most frequent pieces, `size` in all."""
    texts = list(texts)
    normalizer, words = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    learned = Tokenizer(models.WordPiece(unk_token=NAMES["unknown"]))
    learned.normalizer, learned.pre_tokenizer = normalizer, words
    # The library numbers the characters inside of words as it meets them, in an order that changes from run to run, and
    # decides ties by these numbers. Told of them beforehand, in order, it learns the same again.
    inside = [f"{INSIDE}{character}" for character in _inside(texts, normalizer, words)]
    known = [*NAMES.values(), *inside]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=known, show_progress=False)
    learned.train_from_iterator(texts, trainer)
    return wordpiece_tokenizer(learned.get_vocab(), normalizer)


def wordpiece_tokenizer(numbers: dict[str, int], normalizer: normalizers.Normalizer) -> PretrainedTokenizer:
    """[CLS] a [SEP] b [SEP], the second text in segment 1, each token the longest piece of the vocabulary that fits."""
    begin, end = NAMES["begin"], NAMES["end"]
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token=NAMES["unknown"]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[f"{begin}:0", "$A:0", f"{end}:0"],
        pair=[f"{begin}:0", "$A:0", f"{end}:0", "$B:1", f"{end}:1"],
        special_tokens=[(begin, numbers[begin]), (end, numbers[end])],
    )
    tokenizer.add_special_tokens(list(NAMES.values()))
    return PretrainedTokenizer(tokenizer, NAMES)


def _inside(texts: Iterable[str], normalizer: normalizers.Normalizer, words: pre_tokenizers.PreTokenizer) -> list[str]:
    """The characters that stand in words, but not at their beginning, in order."""
    runs = {run for text in texts for run in normalizer.normalize_str(text).split()}  # few, and words do not cross them
    return sorted({character for run in runs for word, _ in words.pre_tokenize_str(run) for character in word[1:]})
