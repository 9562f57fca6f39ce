"""The plain loop: one client after the other, nn.Module and optim.SGD, then the mean."""

import copy

import torch

from frameworks.work import Order, Turns, read_work, train


def main() -> None:
    order = Order.read()
    work, turns = read_work(order.data), Turns(order.rounds)
    server = work.net()
    turns.begin()
    for _ in range(order.rounds):
        nets = []
        for share in work.clients:
            net = copy.deepcopy(server)
            train(net, share)
            nets.append(list(net.parameters()))
        with torch.no_grad():
            for place, parameter in enumerate(server.parameters()):
                parameter.copy_(torch.stack([own[place] for own in nets]).mean(0))
        turns.end()
        turns.tell(work.accuracy(server))


if __name__ == "__main__":
    main()
