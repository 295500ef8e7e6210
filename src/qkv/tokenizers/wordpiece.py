"""WordPiece tokenizers as in BERT (Devlin et al. 2019); pieces that continue a word start with "##"."""

from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from qkv.config import VocabSize
from qkv.registry import register
from qkv.tokenizers.library import PretrainedTokenizer

CONTINUATION = "##"
NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


@register("tokenizer", "wordpiece")
class WordPieceTokenizer(PretrainedTokenizer):
    """Tokens are WordPieces, with the special tokens of BERT, so that a BERT can be converted like a released one."""

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        lowercase: bool = False,
        *,
        vocab_size: VocabSize = 30522,  # maximum number of tokens
    ) -> "WordPieceTokenizer":
        """Train a vocabulary of the special tokens, all characters, and the most frequent pieces."""
        texts = list(texts)
        normalizer, words = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
        backend = Backend(models.WordPiece(unk_token=NAMES["unk"]))
        backend.normalizer, backend.pre_tokenizer = normalizer, words
        # The library assigns ids to word-internal characters in an order that varies between runs, and breaks ties by
        # id. Passing them as sorted special tokens makes training deterministic.
        characters = [f"{CONTINUATION}{character}" for character in _internal_characters(texts, normalizer, words)]
        special_tokens = [*NAMES.values(), *characters]
        trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=special_tokens, show_progress=False)
        backend.train_from_iterator(texts, trainer)
        backend = wordpiece_backend(backend.get_vocab(), normalizer, NAMES)
        backend.add_special_tokens(list(NAMES.values()))
        return cls(backend, NAMES)


def wordpiece_backend(
    token_ids: dict[str, int], normalizer: normalizers.Normalizer, names: Mapping[str, str]
) -> Backend:
    """Build a greedy longest-match tokenizer with the template [CLS] a [SEP] b [SEP], b in segment 1."""
    cls, sep = names["cls"], names["sep"]
    backend = Backend(models.WordPiece(token_ids, unk_token=names["unk"]))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single=[f"{cls}:0", "$A:0", f"{sep}:0"],
        pair=[f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"],
        special_tokens=[(cls, token_ids[cls]), (sep, token_ids[sep])],
    )
    return backend


def _internal_characters(
    texts: Iterable[str], normalizer: normalizers.Normalizer, words: pre_tokenizers.PreTokenizer
) -> list[str]:
    """Return the sorted characters that occur in words after the first position."""
    runs = {run for text in texts for run in normalizer.normalize_str(text).split()}  # distinct, so fewer than words
    return sorted({character for run in runs for word, _ in words.pre_tokenize_str(run) for character in word[1:]})
