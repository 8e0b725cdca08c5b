"""Grouped matmuls of torch tensors: one right, some with faults in value or gradient only."""

import torch


def _grouped(x, w, group_sizes, owner=lambda e, experts: e):
    sizes = group_sizes.tolist()
    parts = torch.split(x[: sum(sizes)], sizes)
    y = [part.float() @ w[owner(e, len(w))].float() for e, part in enumerate(parts)]
    tail = x.new_zeros((len(x) - sum(sizes), w.shape[2]))
    return torch.cat([*(part.to(x.dtype) for part in y), tail])


def right(x, w, group_sizes):
    return _grouped(x, w, group_sizes)


def next_expert(x, w, group_sizes):
    return _grouped(x, w, group_sizes, lambda e, experts: (e + 1) % experts)


def detaches_the_weight(x, w, group_sizes):
    return _grouped(x, w.detach(), group_sizes)


def twice_the_gradient_of_x(x, w, group_sizes):
    return _grouped(2 * x - x.detach(), w, group_sizes)


def takes_the_weight_for_dense(x, w, group_sizes):
    _, k, n = w.shape
    return _grouped(x, torch.as_strided(w, w.shape, (k * n, n, 1)), group_sizes)


def halves_its_input(x, w, group_sizes):
    y = _grouped(x, w, group_sizes).detach()
    with torch.no_grad():
        x.mul_(0.5)
    return y


_MEMORY = {}


def returns_the_same_tensor(x, w, group_sizes):
    y = _grouped(x, w, group_sizes).detach()
    return _MEMORY.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)


WRONG = {
    next_expert: ("GRP-02", "GRP-13"),
    detaches_the_weight: ("GRP-32",),
    twice_the_gradient_of_x: ("GRP-31",),
    takes_the_weight_for_dense: ("GRP-68", "GRP-71"),
    halves_its_input: ("GRP-67",),
    returns_the_same_tensor: ("GRP-66",),
}
