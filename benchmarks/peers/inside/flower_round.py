"""Runs Flower's part of a round with one float32 table per client, without training.

flower_round.py ROWS CLIENTS ROUNDS, in the environment `flower`: the last line printed is JSON. aggregate: smallest
processor seconds in one process of the clients' records, and their weighted mean. simulate: seconds per round of the
simulation with Ray, whose clients return their input.
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
