"""Train WordPiece tokenizers as in BERT (Devlin et al. 2019).

Pieces that continue a word start with "##". The result is a PretrainedTokenizer, so that a BERT trained here can be
used, converted and fine-tuned like a released one.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from qkv.tokenizers.tokenizer import PretrainedTokenizer

CONTINUATION = "##"
NAMES = {"pad": "[PAD]", "unknown": "[UNK]", "begin": "[CLS]", "end": "[SEP]", "mask": "[MASK]"}


def learn_wordpieces(texts: Iterable[str], size: int, *, lowercase: bool = False) -> PretrainedTokenizer:
    """Train a vocabulary of `size` tokens: special tokens, all characters, and the most frequent pieces."""
    texts = list(texts)
    normalizer, words = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    learned = Tokenizer(models.WordPiece(unk_token=NAMES["unknown"]))
    learned.normalizer, learned.pre_tokenizer = normalizer, words
    # The library assigns ids to word-internal characters in an order that varies between runs, and breaks ties by id.
    # Passing them as sorted special tokens makes training deterministic.
    characters = [f"{CONTINUATION}{character}" for character in _internal_characters(texts, normalizer, words)]
    special_tokens = [*NAMES.values(), *characters]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special_tokens, show_progress=False)
    learned.train_from_iterator(texts, trainer)
    return wordpiece_tokenizer(learned.get_vocab(), normalizer)


def wordpiece_tokenizer(token_ids: dict[str, int], normalizer: normalizers.Normalizer) -> PretrainedTokenizer:
    """Build a greedy longest-match tokenizer with the template [CLS] a [SEP] b [SEP], b in segment 1."""
    begin, end = NAMES["begin"], NAMES["end"]
    tokenizer = Tokenizer(models.WordPiece(token_ids, unk_token=NAMES["unknown"]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[f"{begin}:0", "$A:0", f"{end}:0"],
        pair=[f"{begin}:0", "$A:0", f"{end}:0", "$B:1", f"{end}:1"],
        special_tokens=[(begin, token_ids[begin]), (end, token_ids[end])],
    )
    tokenizer.add_special_tokens(list(NAMES.values()))
    return PretrainedTokenizer(tokenizer, NAMES)


def _internal_characters(
    texts: Iterable[str], normalizer: normalizers.Normalizer, words: pre_tokenizers.PreTokenizer
) -> list[str]:
    """Return the sorted characters that occur in words after the first position."""
    runs = {run for text in texts for run in normalizer.normalize_str(text).split()}  # distinct, so fewer than words
    return sorted({character for run in runs for word, _ in words.pre_tokenize_str(run) for character in word[1:]})
