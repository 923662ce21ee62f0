"""fastText: a text is the mean of its words' embeddings."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedcore.config import FastText
from fedcore.models.net import Model

PADDING = 0


def fast_text(config: FastText, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """The mean of the embeddings of token ids [B, L], one hidden linear layer, and one more as head.

    DBE's AG News model: 3,157,508 parameters with 98,635 ids and 4 classes. Place: ``mean`` [D], before the hidden
    layer. Token ids are integers in [0, vocabulary), stored as integers or as floats; 0 is padding.

    Source: Joulin et al., EACL 2017, https://arxiv.org/abs/1607.01759, without the hashed word pairs. As there, the
    mean is over the words of a text; DBE's published code averages over the padding too, and ends in a log-softmax,
    which the cross-entropy makes redundant.

    Raises
    ------
    ValueError
        If inputs are no rows of token ids.
    """
    if len(input_shape) != 1:
        raise ValueError(
            f"model.name 'fast_text' needs rows of token ids, got inputs of shape {input_shape};"
            " valid here: mlp, softmax_regression"
        )
    body = nn.Sequential(MeanEmbedding(config.vocabulary, config.width), nn.Linear(config.width, config.width))
    return Model(body, nn.Linear(config.width, num_classes), config.width, {"mean": 1}, input_shape)


class MeanEmbedding(nn.Module):
    """The mean [B, D] of the embeddings of the token ids [B, L] that are no padding; 0 for a text without words."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of each row."""
        # Ids may come as floats: a model's inputs take the run's number type.
        tokens = x.long()
        words = (tokens != PADDING).unsqueeze(-1)
        vectors = F.embedding(tokens, self.embedding.weight)
        return (vectors * words).sum(1) / words.sum(1).clamp(min=1)
