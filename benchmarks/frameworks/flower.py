"""Flower: FedAvg in its simulation on Ray, two processes that train one client at a time each."""

import os
import sys
import traceback
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from frameworks.work import Order, Turns, read_work, train

PROCESSES = 2


def client_app(order: Order) -> Any:
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def visit(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client, round = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        torch.manual_seed(1_000_000 * order.seed + 1000 * round + client)
        work = read_work(order.data)
        net = work.net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(net, work.clients[client])
        metrics = MetricRecord({"num-examples": len(work.clients[client].labels)})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def server_app(order: Order) -> Any:
    app, work, turns = ServerApp(), read_work(order.data), Turns(order.rounds)
    net = work.net()

    def end_of_round(round: int, arrays: ArrayRecord) -> MetricRecord:
        if round == 0:  # Flower tests the first net too
            turns.begin()
            return MetricRecord()
        turns.end()
        net.load_state_dict(arrays.to_torch_state_dict())
        turns.tell(work.accuracy(net))
        return MetricRecord()

    @app.main()  # type: ignore[untyped-decorator]
    def serve(grid: Grid, _context: Context) -> None:
        many = len(work.clients)
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=many, min_available_nodes=many)
        strategy.start(grid, ArrayRecord(net.state_dict()), order.rounds, evaluate_fn=end_of_round)

    return app


def main() -> None:
    order = Order.read()
    # A cluster of its own: Ray would join one that it finds in /tmp/ray, and fail if that is a dead one's trace.
    resources = {
        "init_args": {"num_cpus": PROCESSES, "address": "local"},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    clients = len(read_work(order.data).clients)
    try:
        run_simulation(server_app(order), client_app(order), clients, backend_config=resources)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the thread of the server app would wait for replies for ever


if __name__ == "__main__":
    main()
