"""serve.py on a real Ray cluster of two nodes on this machine."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tandem

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray and pydantic, about each other

LOADS = 3


@pytest.fixture(scope="module")
def cluster(example):
    """Two nodes of one logical CPU each; what is here called a node is a raylet with workers of its own."""
    os.environ.update(example.environment)  # the workers' environment is that of the nodes
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80 << 20}
    with tempfile.TemporaryDirectory(prefix="tandem-ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = (
            folder  # not temp_dir=: Cluster writes its address to /tmp/ray then, and makes no folder
        )
        made = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        try:
            made.add_node(**size)
            yield made
        finally:
            made.shutdown()


@pytest.fixture(scope="module")
def service(cluster, example, policy, tmp_path_factory):
    """The running example; what it said is in its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--address", cluster.address, "--replicas", 2, "--loads", LOADS, "--port", port]
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as errors:
        process = example.start(
            "serve.py", policy, *arguments, "--option", "num_threads=1", stdout=subprocess.PIPE, stderr=errors
        )
    try:
        wait_for_line(process, f"ready: http://127.0.0.1:{port}\n", log)
        yield Service(f"http://127.0.0.1:{port}", process, log)
    finally:
        process.kill()
        process.wait()


def wait_for_line(process, line, log, timeout=180):
    end = time.monotonic() + timeout
    while select.select([process.stdout], [], [], max(0, end - time.monotonic()))[0]:
        found = process.stdout.readline()
        if found == line:
            return
        assert found, f"serve.py ended\n{log.read_text()}"
    pytest.fail(f"serve.py was not ready after {timeout} s\n{log.read_text()}")


class Service:
    def __init__(self, address, process, log):
        self.address, self.process, self.log = address, process, log

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return json.load(answer)

    def infer(self, *arrays):
        """Status and answer."""
        inputs = [{"dtype": a.dtype.name, "shape": a.shape, "data": a.ravel().tolist()} for a in arrays]
        body = json.dumps({"inputs": inputs}).encode()
        request = urllib.request.Request(self.address + "/infer", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def observe(seed):
    random = np.random.default_rng(seed)
    return random.random((1, 3, 96, 96), np.float32), random.random((1, 8), np.float32)


@pytest.fixture(scope="module")
def answer(policy):
    """What the program gives in this process."""
    method = tandem.Runtime.get().load_program(policy).load_method("forward", num_threads=1)
    return lambda *inputs: method.execute(inputs)[0]


def test_each_node_has_a_replica_whose_loads_share_one_engine(service):
    replicas = service.get("/stats")
    assert len({replica["node"] for replica in replicas}) == len({replica["process"] for replica in replicas}) == 2
    for replica in replicas:
        assert {key: replica[key] for key in ("engines", "loads", "builds", "hits")} == {
            "engines": 1,
            "loads": LOADS,
            "builds": 1,
            "hits": LOADS - 1,
        }


def test_requests_at_once_are_answered_rightly_by_both_nodes(service, answer):
    def ask(seed):
        return seed, *service.infer(*observe(seed))

    seen = set()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for start in range(0, 160, 16):  # which replica answers is Serve's choice
            for seed, status, found in pool.map(ask, range(start, start + 16)):
                assert status == 200, found
                (output,) = found["outputs"]
                wanted = answer(*observe(seed))
                assert output["dtype"] == "float32" and tuple(output["shape"]) == wanted.shape
                assert np.array_equal(np.array(output["data"], np.float32), wanted.ravel())
                seen.add(found["replica"])
            if len(seen) == 2:
                break
    assert seen == {replica["replica"] for replica in service.get("/stats")}


def test_a_wrong_request_is_refused_with_the_reason(service):
    image, state = observe(0)
    status, found = service.infer(image)
    assert status == 422 and "1 inputs were given" in found["detail"]
    status, found = service.infer(image, state[:, :4])
    assert status == 422 and "input1" in found["detail"]
    status, found = service.infer(image, state.astype(np.float16))
    assert status == 422 and found["detail"][0]["loc"][-1] == "dtype"
    assert service.infer(image, state)[0] == 200


def test_other_deployments_call_it_with_arrays(service, cluster, answer):
    import ray
    from ray import serve

    ray.init(address=cluster.address, log_to_driver=False)
    try:
        (found,) = serve.get_app_handle("policy").run.remote(observe(7)).result(timeout_s=60)
    finally:
        ray.shutdown()
    assert np.array_equal(found, answer(*observe(7)))


def test_a_replica_that_dies_is_replaced(service):
    before = service.get("/stats")
    os.kill(before[0]["process"], signal.SIGKILL)
    end = time.monotonic() + 90
    while True:
        with contextlib.suppress(urllib.error.URLError, TimeoutError):
            now = service.get("/stats")
            processes = {replica["process"] for replica in now}
            if len(processes) == 2 and before[0]["process"] not in processes:
                break
        assert time.monotonic() < end, (before, service.log.read_text())
        time.sleep(0.2)
    assert [(replica["engines"], replica["loads"]) for replica in now] == [(1, LOADS)] * 2
    assert service.infer(*observe(1))[0] == 200


def test_it_ends_cleanly_when_asked_to(service):
    processes = [replica["process"] for replica in service.get("/stats")]
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == 0, service.log.read_text()
    assert not [process for process in processes if pathlib.Path(f"/proc/{process}").exists()]


def test_a_program_that_is_not_there_fails_the_deployment(cluster, example, tmp_path):
    done = example.run("serve.py", tmp_path / "none.pte", "--address", cluster.address, status=1)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("serve.py: ")]
    assert line.endswith(f"NotFoundError: {tmp_path}/none.pte: No such file or directory")


def test_a_replica_that_lost_its_device_is_not_healthy(policy, example):
    example.run("lost_device.py", policy)
