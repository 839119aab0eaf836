"""Flower's part of a round with one table of float32 from each client, without training. Runs in `flower`.

flower_round.py ROWS CLIENTS ROUNDS: the last line printed is JSON. aggregate: least processor seconds, in a process, of
what clients send as records, and their weighted mean as one. simulate: seconds a round of the
simulation with Ray, whose clients send back what they got.
"""

import json
import sys
import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from flwr.simulation import run_simulation

WIDTH = 64
ROWS, CLIENTS, ROUNDS = map(int, sys.argv[1:4])
TABLE = np.ones((ROWS, WIDTH), dtype=np.float32)


def aggregate_once() -> float:
    before = time.process_time()
    sent = [
        RecordDict({"arrays": ArrayRecord([TABLE]), "metrics": MetricRecord({"num-examples": 1})})
        for _ in range(CLIENTS)
    ]
    aggregate_arrayrecords(sent, "num-examples")
    return time.process_time() - before


client, server = ClientApp(), ServerApp()
taken: list[float] = []


@client.train()
def train(message: Message, _: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, _: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy.start(grid, ArrayRecord([TABLE]), num_rounds=1)  # the actors begin
    began = time.perf_counter()
    strategy.start(grid, ArrayRecord([TABLE]), num_rounds=ROUNDS)
    taken.append((time.perf_counter() - began) / ROUNDS)


aggregated = min(aggregate_once() for _ in range(ROUNDS))
run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
print(json.dumps({"aggregate": aggregated, "simulate": taken[0]}))
