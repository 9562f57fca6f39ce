"""Rows of a step that a large net need not take apart, or need not take at all, where no row of it meets another."""

from collections.abc import Callable

import torch
from torch import Tensor

from semifed.params import lay_out

Forward = Callable[[Tensor], Tensor]


def together(forward: Forward, *batches: tuple[Tensor, ...]) -> list[Tensor]:
    """The outputs of several batches by one pass; each is given as for `Pass.each`."""
    # A batch without rows lies in memory in no order, and would lose that of the others.
    images = torch.cat([x for x, *_ in batches if len(x)] or [x for x, *_ in batches])
    counts = [masks[1] if len(masks) > 1 else torch.ones_like(masks[0]) for _, *masks in batches]
    return list(torch.split(chosen(forward, images, torch.cat(counts), others=True), [len(x) for x, *_ in batches]))


def chosen(forward: Forward, x: Tensor, counts: Tensor, others: bool) -> Tensor:
    """The outputs of all rows, with a gradient of those that count; of the others, where nobody asks for them, 0."""
    counted, rest = counts.nonzero()[:, 0], (~counts).nonzero()[:, 0]
    if len(counted) and not len(rest):
        return forward(x)
    with torch.no_grad():
        made = forward(_rows(x, rest if others else rest[:0]))
        outputs = made.new_zeros(len(x), *made.shape[1:])
        if others:
            outputs[rest] = made
    return outputs.index_copy(0, counted, forward(_rows(x, counted))) if len(counted) else outputs


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Some rows, in the order in memory that all have."""
    innermost = x.dim() == 4 and x.stride(1) == 1
    rows: Tensor = lay_out(x[index], torch.channels_last if innermost else torch.contiguous_format)
    return rows
