"""The shape of a ROS 2 node that runs a policy, without ROS: two arms in one process, as in a component container.

    python robot_node.py small.pte --seconds 3

`PolicyNode` is what a robot's package would hold: parameters, subscriptions, a timer, a publisher, and the life cycle
configure, activate, deactivate, cleanup. Both arms configure one program: the second takes the first one's engine, and
the last cleanup frees it. `LifecycleNode` stands in for rclpy's, with its names, and `FakeRobot` for the hardware.

Exit status: 0 done, 1 a node failed, 2 called wrongly.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import enum
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tandem


@dataclasses.dataclass(frozen=True)
class Image:
    data: np.ndarray  # float32[1, 3, height, width], 0..1


@dataclasses.dataclass(frozen=True)
class JointState:
    position: np.ndarray  # float32[1, joints], radians


@dataclasses.dataclass(frozen=True)
class JointTrajectory:
    points: np.ndarray  # float32[steps, joints], radians


class TransitionCallbackReturn(enum.Enum):
    SUCCESS = 0
    FAILURE = 1


class LifecycleNode:
    """One thread runs all callbacks of a node, one after another; nodes run at the same time."""

    topics: ClassVar[dict[str, list[Callable[[Any], None]]]] = collections.defaultdict(list)

    def __init__(self, namespace: str, parameters: dict[str, Any]) -> None:
        self.namespace, self.parameters = namespace, parameters
        self.failures: list[BaseException] = []
        self._timers: list[tuple[threading.Thread, threading.Event]] = []
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    def declare_parameter(self, name: str, default: Any) -> None:
        self.parameters.setdefault(name, default)

    def get_parameter(self, name: str) -> Any:
        return self.parameters[name]

    def create_subscription(self, kind: type, topic: str, callback: Callable[[Any], None]) -> None:
        """The newest message only, as with a queue of depth 1."""
        newest: collections.deque[Any] = collections.deque(maxlen=1)

        def deliver() -> None:
            if newest:
                callback(newest.pop())

        def receive(message: Any) -> None:
            newest.append(message)
            self._run(deliver)

        self.topics[f"{self.namespace}/{topic}"].append(receive)

    def create_publisher(self, kind: type, topic: str) -> Callable[[Any], None]:
        receivers = self.topics[f"{self.namespace}/{topic}"]

        def publish(message: Any) -> None:
            for receive in receivers:
                receive(message)

        return publish

    def create_timer(self, period: float, callback: Callable[[], None]) -> threading.Event:
        """Calls back at once and each period, until the event is set. Ticks that pass meanwhile are left out."""
        cancelled = threading.Event()

        def call() -> None:
            if not cancelled.is_set():
                callback()

        def tick() -> None:
            due = time.monotonic()
            while not cancelled.wait(max(0.0, due - time.monotonic())):
                concurrent.futures.wait([self._run(call)])
                due = max(due + period, time.monotonic())

        thread = threading.Thread(target=tick)
        self._timers.append((thread, cancelled))
        thread.start()
        return cancelled

    def trigger(self, transition: str) -> TransitionCallbackReturn:
        result: TransitionCallbackReturn = self._thread.submit(getattr(self, f"on_{transition}")).result()
        return result

    @staticmethod
    def shutdown(nodes: list[LifecycleNode]) -> None:
        """Ends all timers before any thread, so that nothing is sent to a node that is gone."""
        for node in nodes:
            for thread, cancelled in node._timers:
                cancelled.set()
                thread.join()
        for node in nodes:
            node._thread.shutdown()

    def _run(self, callback: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future = self._thread.submit(callback)
        future.add_done_callback(lambda done: self.failures.extend(filter(None, [done.exception()])))
        return future


class PolicyNode(LifecycleNode):
    """Turns the newest image and joint state into a chunk of actions, `rate` times a second."""

    method: tandem.Method | None = None
    image: Image | None = None
    state: JointState | None = None

    def on_configure(self) -> TransitionCallbackReturn:
        """Loads the policy: what takes long and what can fail comes here."""
        self.declare_parameter("rate", 50.0)
        path = self.get_parameter("program")
        try:
            self.method = tandem.Runtime.get().load_program(path).load_method("forward")
        except tandem.Error as error:
            print(f"robot_node.py: {self.namespace}: {error}", file=sys.stderr)
            return TransitionCallbackReturn.FAILURE
        self.create_subscription(Image, "image", self.on_image)
        self.create_subscription(JointState, "joint_states", self.on_state)
        self.publish = self.create_publisher(JointTrajectory, "actions")
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self) -> TransitionCallbackReturn:
        self.timer = self.create_timer(1 / self.get_parameter("rate"), self.act)
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self) -> TransitionCallbackReturn:
        self.timer.set()
        return TransitionCallbackReturn.SUCCESS

    def on_cleanup(self) -> TransitionCallbackReturn:
        """Gives the load back, whoever else has the method: here the traceback of a run that failed."""
        if self.method:
            self.method.close()
        self.method = None
        return TransitionCallbackReturn.SUCCESS

    def on_image(self, message: Image) -> None:
        self.image = message

    def on_state(self, message: JointState) -> None:
        self.state = message

    def act(self) -> None:
        if self.method and self.image and self.state:
            (actions,) = self.method.execute([self.image.data, self.state.position])
            self.publish(JointTrajectory(actions[0]))


class FakeRobot(LifecycleNode):
    """A camera of 30 Hz, joints of 100 Hz that follow the first of the actions."""

    moves = 0

    def on_activate(self) -> TransitionCallbackReturn:
        self.random = np.random.default_rng(0)
        self.position = np.zeros((1, 8), np.float32)
        self.publish_image = self.create_publisher(Image, "image")
        self.publish_state = self.create_publisher(JointState, "joint_states")
        self.create_subscription(JointTrajectory, "actions", self.on_actions)
        self.create_timer(1 / 30, self.look)
        self.create_timer(1 / 100, lambda: self.publish_state(JointState(self.position)))
        return TransitionCallbackReturn.SUCCESS

    def look(self) -> None:
        self.publish_image(Image(self.random.random((1, 3, 96, 96), np.float32)))

    def on_actions(self, message: JointTrajectory) -> None:
        self.position = self.position + 0.1 * (message.points[:1] - self.position)
        self.moves += 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("program", metavar="PROGRAM.pte", help="of examples/export.py")
    parser.add_argument("--seconds", metavar="N", type=float, default=3.0, help="(default 3)")
    parser.add_argument("--rate", metavar="HZ", type=float, default=50.0, help="of each policy (default 50)")
    arguments = parser.parse_args()
    if not (arguments.seconds > 0 and arguments.rate > 0):
        parser.error("--seconds and --rate are numbers above 0")
    parameters = {"program": arguments.program, "rate": arguments.rate}
    arms = [PolicyNode(namespace, dict(parameters)) for namespace in ("/left", "/right")]
    robots = [FakeRobot(arm.namespace, {}) for arm in arms]
    nodes: list[LifecycleNode] = [*arms, *robots]
    try:
        if any(arm.trigger("configure") is not TransitionCallbackReturn.SUCCESS for arm in arms):
            return 1
        stats = tandem.stats()
        print(f"configured: {stats.loads} loads, {stats.engines} engine(s), {stats.builds} build(s)")
        for node in nodes:
            node.trigger("activate")
        time.sleep(arguments.seconds)
        for arm in arms:
            arm.trigger("deactivate")
            arm.trigger("cleanup")
    finally:
        LifecycleNode.shutdown(nodes)
    for robot in robots:
        print(f"{robot.namespace}: {robot.moves} moves, joints at {robot.position[0].astype(float).round(2).tolist()}")
    print(f"cleaned up: {tandem.stats().loads} loads, {tandem.stats().engines} engines")
    failures = [failure for node in nodes for failure in node.failures]
    for failure in failures[:1]:
        print(f"robot_node.py: {failure} (and {len(failures) - 1} more)", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
