"""Where the cells of a study run: processes of this machine, or an engine that people have already (Slurm, Ray)."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from headway.errors import HeadwayError, unknown


@dataclass(frozen=True)
class Job:
    """A command, and the file that takes all it prints."""

    name: str
    command: tuple[str, ...]
    log: Path


Ended = Iterator[tuple[Job, int]]
Launcher = Callable[[list[Job], int, int], Ended]


def cell_command(study: Path, out: Path, arm: str, seed: int, processes: int) -> tuple[str, ...]:
    """What runs one cell; over several processes (GPUs) by torchrun."""
    module = ("-m", "headway.compare", str(study), str(out), arm, str(seed))
    if processes == 1:
        return (sys.executable, *module)
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}")
    return (sys.executable, *torchrun, *module)


def execute(command: tuple[str, ...], log: str) -> int:
    """Run one command to its end on whatever machine this is; its exit code. What it prints is added to the log."""
    with Path(log).open("a", encoding="utf-8") as stream:
        return subprocess.run(command, stdout=stream, stderr=stream, check=False).returncode


def local(jobs: list[Job], at_once: int, processes: int) -> Ended:
    """On this machine: ``at_once`` jobs, each on its own GPUs where there are any, else on its share of the cores."""
    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise HeadwayError(f"Each cell asks for {processes} GPUs, and this machine has {gpus}.")
    free: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()
    threads = max(1, (os.cpu_count() or 1) // (at_once * processes))
    for slot in range(at_once):
        # More jobs than cards share them: small networks leave most of a card idle.
        cards = [str((slot * processes + i) % gpus) for i in range(processes)] if gpus else []
        free.put({"OMP_NUM_THREADS": str(threads)} | ({"CUDA_VISIBLE_DEVICES": ",".join(cards)} if gpus else {}))
    running: list[subprocess.Popen[bytes]] = []

    def run(job: Job) -> int:
        environment = free.get()
        try:
            with job.log.open("a", encoding="utf-8") as stream:
                process = subprocess.Popen(job.command, stdout=stream, stderr=stream, env=os.environ | environment)
                running.append(process)
                return process.wait()
        finally:
            free.put(environment)

    pool = ThreadPoolExecutor(at_once)
    futures = {pool.submit(run, job): job for job in jobs}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        # Ctrl-C here, or an error: what waits is dropped, what runs writes a checkpoint and ends.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            if process.poll() is None:
                process.terminate()
        pool.shutdown()


def slurm(jobs: list[Job], at_once: int, processes: int) -> Ended:
    """As jobs of a Slurm cluster by submitit, or of its local executor where there is no Slurm; ``at_once`` at a time."""
    submitit = _extra("submitit", "slurm")
    executor = submitit.AutoExecutor(folder=jobs[0].log.parent / "slurm")
    gpus = {"gpus_per_node": processes} if torch.cuda.is_available() or executor.cluster == "slurm" else {}
    array = {"slurm_array_parallelism": at_once} if executor.cluster == "slurm" else {}
    # Four days: a cell that a time limit kills goes on when the study is started again.
    executor.update_parameters(name="headway", timeout_min=4 * 24 * 60, **gpus, **array)
    waiting = list(jobs)
    submitted: list[tuple[Job, Any]] = []
    whole = len(jobs) if executor.cluster == "slurm" else at_once
    while waiting or submitted:
        batch, waiting = waiting[: whole - len(submitted)], waiting[whole - len(submitted) :]
        if batch:
            with executor.batch():
                fresh = [executor.submit(execute, job.command, str(job.log.resolve())) for job in batch]
            submitted += list(zip(batch, fresh, strict=True))
        job, handle = _first_done(submitted)
        submitted.remove((job, handle))
        yield job, _code(handle, job)


def _first_done(submitted: list[tuple[Job, Any]]) -> tuple[Job, Any]:
    while True:
        for job, handle in submitted:
            if handle.done():
                return job, handle
        time.sleep(0.5)


def _code(handle: Any, job: Job) -> int:
    try:
        return int(handle.result())
    except Exception as error:  # whatever the engine raises for a job that it lost
        with job.log.open("a", encoding="utf-8") as stream:
            stream.write(f"The engine lost this job: {error}\n")
        return 1


def on_ray(jobs: list[Job], at_once: int, processes: int) -> Ended:
    """As tasks of a Ray cluster (of a fresh local one where RAY_ADDRESS names none); a GPU a process where it has GPUs."""
    ray = _extra("ray", "ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, **({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": at_once}))
    gpus = processes if ray.cluster_resources().get("GPU") else 0
    remote = ray.remote(num_cpus=1, num_gpus=gpus)(execute)
    waiting = list(jobs)
    running: dict[Any, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[remote.remote(job.command, str(job.log.resolve()))] = job
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(done)
            try:
                yield job, int(ray.get(done))
            except ray.exceptions.RayError as error:
                with job.log.open("a", encoding="utf-8") as stream:
                    stream.write(f"The engine lost this job: {error}\n")
                yield job, 1
    finally:
        ray.shutdown()


LAUNCHERS: dict[str, Launcher] = {"local": local, "slurm": slurm, "ray": on_ray}


def find_launcher(name: str) -> Launcher:
    """The launcher of that name."""
    if name not in LAUNCHERS:
        raise unknown("launcher", name, LAUNCHERS)
    return LAUNCHERS[name]


def _extra(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise HeadwayError(f"--launcher {extra} needs the package {package}: pip install 'headway[{extra}]'.") from None
