"""What only a simulation knows: how many of the labels that methods give are right.

Methods never see a hidden label. They hand out the labels they gave, row by row, and these are compared here, after a
visit's last step. The result goes into the rows of a run and nowhere else.
"""

from collections.abc import Sequence

import torch

from semifed.data.batches import Stream
from semifed.params import Params


def hidden_score(guesses: Sequence[Params], stream: Stream, labels: torch.Tensor) -> Params:
    """By trainee the share of rows that got the right label, the mean over its own steps, as coverage is."""
    pool = next(iter(guesses[0]), None) if guesses else None
    rows = None if pool is None else stream.rows(pool)
    if pool is None or rows is None:
        return {}
    given = torch.stack([one[pool] for one in guesses], -2).cpu().reshape(len(stream.lengths), len(guesses), -1)
    truth = labels[rows.place]
    if given.shape != truth.shape or bool((truth[rows.real] < 0).any()):
        return {}  # of other rows than the pool's, or of data that nobody has labelled
    right = ((given == truth) & rows.real).sum(-1) / rows.real.sum(-1).clamp(min=1)
    return {"correct": right.sum(-1) / stream.lengths.cpu().clamp(min=1)}
