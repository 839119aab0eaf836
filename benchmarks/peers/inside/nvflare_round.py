"""Times a round of NVFlare's simulator, whose clients send a table without training.

nvflare_round.py ROWS CLIENTS ROUNDS, in the environment `nvflare`: the last line printed is JSON. The script is its
own client: NVFlare starts it with the name of a file, in which a client notes when a round reaches it.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

WIDTH = 64


def take_part(rows: int, times: Path) -> None:
    import nvflare.client as flare

    flare.init()
    table = np.ones((rows, WIDTH), dtype=np.float32)
    while flare.is_running():
        flare.receive()
        with times.open("a") as file:
            file.write(f"{flare.get_site_name()} {time.time()}\n")
        flare.send(flare.FLModel(params={"numpy_key": table}, metrics={"accuracy": 0.0}, params_type="FULL"))


def simulate(rows: int, clients: int, rounds: int) -> float:
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe import SimEnv

    place, times = Path.cwd(), Path.cwd() / "times"
    (place / "client.py").write_text(Path(__file__).read_text())
    recipe = NumpyFedAvgRecipe(
        name="round",
        model=[[1.0, 1.0]],  # replaced by the clients' updates
        min_clients=clients,
        num_rounds=rounds,
        train_script="client.py",
        train_args=f"{rows} {times}",
    )
    recipe.execute(SimEnv(num_clients=clients, workspace_root=str(place / "workspace")))
    noted = [line.split() for line in times.read_text().splitlines()]
    first = sorted(float(at) for name, at in noted if name == noted[0][0])
    return (first[-1] - first[0]) / (len(first) - 1)


if len(sys.argv) == 3:
    take_part(int(sys.argv[1]), Path(sys.argv[2]))
elif __name__ == "__main__":
    print(json.dumps({"simulate": simulate(*map(int, sys.argv[1:4]))}))
