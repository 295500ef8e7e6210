import torch
from torch import nn

import qkv
from qkv.config import Config, Size
from qkv.nn.interfaces import LanguageModel


class NPLMConfig(Config):
    vocab_size: Size = 10000  # number of tokens; set by the data
    context: Size = 8  # n, the number of tokens that predict the next one
    embedding_dim: Size = 64  # size of C(x)
    hidden_dim: Size = 256  # size of h


@qkv.register("model", "nplm")
class NPLM(LanguageModel):
    """Neural probabilistic language model (Bengio et al. 2003).

    h = tanh(H [C(x_{t-n+1}) ; ... ; C(x_t)]),   p(x_{t+1}) = softmax(U h)
    """

    config_class = NPLMConfig

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.embedding_dim)  # C
        self.hidden = nn.Linear(config.context * config.embedding_dim, config.hidden_dim)  # H
        self.readout = nn.Linear(config.hidden_dim, config.vocab_size)  # U

    def init_state(self, batch):
        return torch.zeros(batch, self.config.context - 1, dtype=torch.long, device=self.device)

    def hidden_from(self, tokens, state):
        tokens = torch.cat((state, tokens), dim=1)  # the state is the last n - 1 tokens
        windows = self.embed(tokens).unfold(1, self.config.context, 1)  # [batch, length, embedding_dim, n]
        h = self.hidden(windows.flatten(2)).tanh()
        return h, tokens[:, h.shape[1] :]
