"""A policy as a service: a Ray Serve deployment whose replicas each hold several loads of one policy.

    python serve.py small.pte --replicas 2 --loads 4 --address HOST:6379    on a running cluster; alone without it
    curl localhost:8000/stats                                                one entry for each replica
    curl localhost:8000/docs                                                 what /infer takes and gives

A replica is a process, and loads share within a process. So a replica spreads over a node by its loads, and the
deployment over nodes by its replicas, one on each: every node holds the weights once. A load runs one request at a
time; loads of one engine run at once, so there is nothing to batch. The program must lie at its path on every node.

Exit status: 0 ended by SIGINT or SIGTERM, 1 the deployment failed, 2 called wrongly.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
import typing
import urllib.request

import fastapi
import numpy as np
import pydantic
import ray
import tandem
from ray import serve


class Tensor(pydantic.BaseModel):
    """`data` is flat, the last dimension fastest."""

    dtype: typing.Literal["bool", "uint8", "int32", "int64", "float32", "float64"]
    shape: list[pydantic.NonNegativeInt]
    data: list[bool | int | float]

    @classmethod
    def of(cls, array: np.ndarray) -> "Tensor":
        return cls(dtype=array.dtype.name, shape=list(array.shape), data=array.ravel().tolist())

    def array(self) -> np.ndarray:
        return np.array(self.data, self.dtype).reshape(self.shape)


class Request(pydantic.BaseModel):
    inputs: list[Tensor]


class Answer(pydantic.BaseModel):
    outputs: list[Tensor]
    replica: str


api = fastapi.FastAPI(title="A policy, shared by the loads of each replica")


@serve.deployment(name="policy", max_replicas_per_node=1, health_check_period_s=5)
@serve.ingress(api)
class Policy:
    def __init__(self, path: str, loads: int, options: dict[str, str]) -> None:
        program = tandem.Runtime.get().load_program(path)
        self.idle: asyncio.Queue[tandem.Method] = asyncio.Queue()
        for _ in range(loads):
            self.idle.put_nowait(program.load_method("forward", **options))
        self.lost = ""

    async def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """One inference on the next idle load; for other deployments, as `handle.run.remote(inputs)`."""
        method = await self.idle.get()
        try:
            return await asyncio.to_thread(method.execute, inputs)
        except tandem.DeviceLostError as error:
            self.lost = str(error)
            raise
        finally:
            # When the caller gave up, the load may still be running: its next run waits for that.
            self.idle.put_nowait(method)

    @api.post("/infer")
    async def infer(self, request: Request) -> Answer:
        try:
            outputs = await self.run([tensor.array() for tensor in request.inputs])
        except (ValueError, tandem.InvalidArgumentError) as error:
            raise fastapi.HTTPException(422, str(error)) from error
        replica = serve.get_replica_context().replica_tag
        return Answer(outputs=[Tensor.of(output) for output in outputs], replica=replica)

    @api.get("/stats")
    async def stats(self) -> list[dict[str, typing.Any]]:
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        return await handle.broadcast("own_stats").results_async(timeout_s=10)

    def own_stats(self) -> dict[str, typing.Any]:
        """tandem's statistics of this replica's process."""
        replica, node = serve.get_replica_context().replica_tag, ray.get_runtime_context().get_node_id()
        return {"replica": replica, "node": node, "process": os.getpid(), **dataclasses.asdict(tandem.stats())}

    def check_health(self) -> None:
        """Serve replaces a replica for which this raises: a lost device does not come back within a process."""
        if self.lost:
            raise RuntimeError(self.lost)


def deploy(application: serve.Application) -> None:
    """Blocks until every replica answers; when one cannot start, the error ends with what its own last words were."""
    try:
        serve.run(application, name="policy")
    except RuntimeError as error:
        (status,) = serve.status().applications["policy"].deployments.values()
        raise RuntimeError(f"{error} {status.message.strip().splitlines()[-1]}") from error


def wait_for_route(address: str, timeout_s: float = 60) -> None:
    """The node's proxy learns of a deployment a moment after its replicas answer; until then it says 404."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/-/routes", timeout=5) as answer:
            if "/" in json.load(answer):
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing routes to the policy at {address} after {timeout_s:.0f} s: has this node a proxy?")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("program", metavar="PROGRAM.pte", type=os.path.abspath)
    parser.add_argument("--replicas", metavar="N", type=int, default=1, help="at most one on a node (default 1)")
    parser.add_argument("--loads", metavar="N", type=int, default=2, help="of each replica (default 2)")
    parser.add_argument("--cpus", metavar="N", type=float, default=1, help="that a replica reserves (default 1)")
    parser.add_argument("--gpus", metavar="N", type=float, default=0, help="that a replica reserves (default 0)")
    parser.add_argument("--host", default="127.0.0.1", help="where every node listens (default 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=int, default=8000, help="for HTTP, on every node (default 8000)")
    parser.add_argument("--address", metavar="HOST:PORT", help="of a cluster; without it Ray is started here")
    parser.add_argument("--option", metavar="KEY=VALUE", action="append", default=[], help="of tandem, for every load")
    arguments = parser.parse_args()
    if min(arguments.replicas, arguments.loads) < 1:
        parser.error("--replicas and --loads are whole numbers from 1")
    if not all("=" in option for option in arguments.option):
        parser.error("--option takes KEY=VALUE")
    options = dict(option.split("=", 1) for option in arguments.option)
    try:
        tandem.options(options)
    except tandem.BadOptionError as error:
        parser.error(str(error))
    ended = threading.Event()
    try:
        ray.init(address=arguments.address, log_to_driver=False)
        for number in (signal.SIGINT, signal.SIGTERM):  # here, since ray.init sets handlers of its own
            signal.signal(number, lambda *_: ended.set())
        serve.start(http_options={"host": arguments.host, "port": arguments.port})
        deployment = Policy.options(
            num_replicas=arguments.replicas,
            max_ongoing_requests=arguments.loads,
            ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        )
        deploy(deployment.bind(arguments.program, arguments.loads, options))
        address = f"http://{arguments.host}:{arguments.port}"
        wait_for_route(address)
        print(f"ready: {address}", flush=True)
        ended.wait()
    except (OSError, RuntimeError, ValueError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 1
    finally:
        serve.shutdown()
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
