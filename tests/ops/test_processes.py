"""A model step under `jax.distributed`: two processes on this host, two CPU devices each."""

import os
import pathlib
import socket
import subprocess
import sys

STEP = pathlib.Path(__file__).with_name("step_of_two_processes.py")


def test_two_processes_run_one_step():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    paths = [str(STEP.parents[1]), str(STEP.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(STEP), str(port), str(i)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        outputs = [p.communicate(timeout=300)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    for i, (process, output) in enumerate(zip(processes, outputs)):
        assert process.returncode == 0, output[-3000:]
        assert f"process {i}: 2 of 4 parts right" in output
