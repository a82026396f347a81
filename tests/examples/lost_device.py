"""serve.py's deployment after a fork, where every load says DEVICE_LOST. Usage: lost_device.py PROGRAM."""

import asyncio
import importlib.util
import os
import pathlib
import sys

import numpy as np
import tandem

path = pathlib.Path(__file__).parents[2] / "examples" / "serve.py"
spec = importlib.util.spec_from_file_location("serve_example", path)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

served = example.Policy.func_or_class.__mro__[1]  # without what Serve puts around it
policy = served(sys.argv[1], 1, {})
inputs = [np.zeros((1, 3, 96, 96), np.float32), np.zeros((1, 8), np.float32)]
(output,) = asyncio.run(policy.run(inputs))
assert output.shape == (1, 16, 8)
policy.check_health()

child = os.fork()
if child == 0:
    status = 1
    try:
        asyncio.run(policy.run(inputs))
    except tandem.DeviceLostError:
        try:
            policy.check_health()
        except RuntimeError as error:
            status = 0 if "fork" in str(error) else 2
    finally:
        os._exit(status)
_, end = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(end))
