"""The aggregator's process has one thread of linear algebra, whatever the machine has."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import json
from threadpoolctl import threadpool_info
from shared.method import anchor
from aggregator_service.process import multiply_alone

def threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

before = threads()
multiply_alone()
print(json.dumps([before, threads()]))
"""


def test_linear_algebra_has_one_thread() -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    before, after = json.loads(done.stdout)
    assert before and max(before) == 2 and set(after) == {1}
