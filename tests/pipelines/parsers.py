"""Small parsers with random weights."""

import torch

from qkv.datasets.dataset import TreeDataset
from qkv.datasets.examples.trees import Tree
from qkv.datasets.user_texts import UserTrees
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tasks.parsing import ParsingTask

TREES = [
    Tree.parse(text, "tree")
    for text in (
        "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))",
        "(TOP (S (NP (PRP She)) (VP (VBZ reads) (NP (NP (NNS books)) (PP (IN about) (NP (NNS cats))))) (. .)))",
        "(TOP (NP (NNS Cats) (CC and) (NNS dogs)))",
        "(TOP (FRAG (ADVP (RB Up)) (. !)))",
        "(TOP (UH Yes))",
        "(TOP (S (NP (NNS Dogs)) (VP (VBP sleep) (PP (IN on) (NP (DT the) (JJ red) (NN mat))))))",
    )
]
DATA = TreeDataset({"train": TREES, "valid": TREES[:2], "test": TREES[2:]})


def parsing_tokenizer():
    config = UserTrees(tokenizer={"name": "bpe", "vocab_size": 60})
    return ParsingTask.train_tokenizer(DATA, config, None)


def transformer_parser(pointer=True, seed=0):
    torch.manual_seed(seed)
    sizes = {"dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 16, "max_length": 64}
    return _parser(Transformer, TransformerConfig, tie_embeddings=False, pointer=pointer, **sizes)


def gru_parser(pointer=True, seed=0):
    torch.manual_seed(seed)
    return _parser(
        RNNSeq2Seq, RNNSeq2SeqConfig, embedding_dim=8, hidden_dim=8, max_length=64, pointer=pointer, dropout=0.0
    )


def _parser(network, config_class, **settings):
    tokenizer = parsing_tokenizer()
    model = network(config_class(**ParsingTask.sizes(DATA, tokenizer), **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    model.tokenizer = tokenizer
    return model.eval()
