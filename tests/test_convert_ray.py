"""A conversion by the machines of a Ray cluster: the bytes of one without, whatever is killed and whoever goes on."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import FIXTURES, config_of
from safetensors.torch import load_file, save_file

from layoutdsl import LayoutError, convert
from layoutdsl.checkpoints import ray as machines
from layoutdsl.checkpoints.journal import PLANS, Finished, Journal
from layoutdsl.checkpoints.load import planned
from layoutdsl.checkpoints.publishing import JOURNAL, partial_of
from layoutdsl.checkpoints.run import files_of
from layoutdsl.checkpoints.storing import FILE, Store, homes, key
from layoutdsl.checkpoints.writing import Writer

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")

LAYERS = 48
SHARD = 8
"""Layers in one file."""
SHAPE = f"model.layers.{LAYERS - 1}.self_attn.o_proj.weight_shape"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many layers, hence many units, in several files."""
    one, folder = FIXTURES / "llama_w4a16_asym", tmp_path_factory.mktemp("many") / "layers"
    folder.mkdir()
    tensors = load_file(one / FILE)
    layer = {name: tensor for name, tensor in tensors.items() if ".layers.0." in name}
    files = {FILE: {name: tensor for name, tensor in tensors.items() if name not in layer}}
    for at in range(LAYERS):
        own = {name.replace(".0.", f".{at}."): _mixed(name, tensor, at) for name, tensor in layer.items()}
        files.setdefault(f"layers-{at // SHARD}.safetensors", {}).update(own)
    for file, held in files.items():
        save_file(held, folder / file)
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config_of(one) | {"num_hidden_layers": LAYERS}))
    return folder


def _mixed(name: str, tensor: torch.Tensor, at: int) -> torch.Tensor:
    """Codes of its own for each layer, so that a unit in another's place is found out."""
    return tensor ^ at if name.endswith("weight_packed") else tensor.clone()


@pytest.fixture(scope="module")
def plain(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    dst = tmp_path_factory.mktemp("plain") / "out"
    convert(checkpoint, dst, tp=2)
    return files(dst)


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines with a processor each, and one without that the driver is on."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 << 20}
    terminated = signal.getsignal(signal.SIGTERM)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, **small)
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        signal.signal(signal.SIGTERM, terminated)


# ---------------------------------------------------------------- the same bytes


@needs_ray
def test_the_command_on_a_cluster(cluster: Any, checkpoint: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    """Killed midway, and called again; in a folder where the machines are not."""
    shutil.copytree(checkpoint, tmp_path / "in")
    command = [sys.executable, "-m", "layoutdsl", "convert", "in", "out", "--tp", "2", "--ray", cluster.address]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as driver:
        while driver.poll() is None and units(tmp_path / "out") < LAYERS:
            time.sleep(0.01)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL and not (tmp_path / "out").exists()
    assert units(tmp_path / "out") >= LAYERS
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "MB of memory at most in each worker process beside the interpreter and torch" in done.stdout
    assert files(tmp_path / "out") == plain
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@needs_ray
def test_a_refusal_is_that_of_a_run_without_and_either_goes_on(
    cluster: Any, checkpoint: Path, plain: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, last = tmp_path / "in", f"layers-{(LAYERS - 1) // SHARD}.safetensors"
    shutil.copytree(checkpoint, src)
    save_file(load_file(src / last) | {SHAPE: torch.tensor([1, 2])}, src / last)
    said = {}
    for how, ray in (("with", ""), ("without", None)):
        with pytest.raises(LayoutError) as told:
            convert(src, tmp_path / how, tp=2, ray=ray)
        said[how] = str(told.value).replace(str(tmp_path / f".{how}."), "")
        assert not (tmp_path / how).exists()
    assert said["with"] == said["without"]
    assert f"`model.layers.{LAYERS - 1}.self_attn.o_proj`" in said["with"]

    save_file(load_file(checkpoint / last), src / last)  # the source is mended
    recorded: list[str] = []
    record = Store.record
    monkeypatch.setattr(
        Store, "record", lambda self, work, wrote: recorded.append(key(work)) or record(self, work, wrote)
    )
    for how, ray in (("without", ""), ("with", None)):  # the other way goes on
        before = units(tmp_path / how)
        assert before > 4 * (LAYERS - 2 * SHARD)
        recorded.clear()
        convert(src, tmp_path / how, tp=2, ray=ray)
        assert files(tmp_path / how) == plain
        assert 0 < len(recorded) <= 6 * LAYERS + 3 - before + 6 * SHARD, "what was finished is not done again"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux says which processes a machine runs")
@needs_ray
def test_machines_killed_midway(cluster: Any, checkpoint: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    """First a process at its task, then the other machine's raylet with all that it runs."""
    dst, killed = tmp_path / "out", list[tuple[int, int]]()
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.worker_nodes]

    def kill() -> None:
        await_units(1)
        killed.append((units(dst), busy(raylets[0], threading.Event())))
        os.kill(killed[-1][1], signal.SIGKILL)
        await_units(killed[-1][0] + 4 * LAYERS // 3)
        killed.append((units(dst), raylets[1]))
        for process in (raylets[1], *children(raylets[1])):
            os.kill(process, signal.SIGKILL)

    def await_units(count: int) -> None:
        while units(dst) < count:
            time.sleep(0.002)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    convert(checkpoint, dst, tp=2, ray="")
    killer.join(timeout=10)
    assert len(killed) == 2, killed
    assert 0 < killed[0][0] < killed[1][0] < 5 * LAYERS, f"nothing was killed midway: {killed}"
    assert not Path(f"/proc/{killed[0][1]}").exists()
    assert files(dst) == plain


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux says which processes a machine runs")
@needs_ray
def test_a_unit_that_ends_its_process_again_and_again_is_given_up(
    cluster: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "RETRIES", 0)
    raylets, ended = [node.all_processes["raylet"][0].process.pid for node in cluster.worker_nodes], threading.Event()

    def kill() -> None:
        while not ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(busy(raylets[0], ended), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        with pytest.raises(LayoutError, match=r"LP227 cluster: `.*` is given up after 0 retries") as told:
            convert(checkpoint, tmp_path / "out", tp=2, ray="")
    finally:
        ended.set()
        killer.join()
    assert not (tmp_path / "out").exists() and str(told.value).count("\n") == 1


# A conversion by a cluster of this machine alone, with two worker processes.
ALONE = """
import sys, ray
from layoutdsl import LayoutError, convert
ray.init("local", num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
try:
    convert(*sys.argv[1:], tp=2, ray="")
except LayoutError as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux says which processes a machine runs")
@needs_ray
def test_the_drivers_own_raylet_is_killed_midway(checkpoint: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    """It says so, and the same again goes on."""
    dst, environment = tmp_path / "out", os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", ALONE, str(checkpoint), str(dst)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as driver:
        while driver.poll() is None and units(dst) < LAYERS:
            time.sleep(0.01)
        (raylet,) = (one for one in children(driver.pid) if named(one, "raylet"))
        os.kill(raylet, signal.SIGKILL)
        _, said = driver.communicate(timeout=50)
    assert driver.returncode == 1 and not dst.exists()
    assert "LP227 cluster: this process has lost the Ray cluster: " in said
    assert f"what is finished is kept in `{partial_of(dst)}`: the same command goes on" in said
    assert LAYERS <= units(dst) < 5 * LAYERS
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert files(dst) == plain


@needs_ray
def test_what_ray_says_of_itself_is_said_in_our_words(
    cluster: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def raises(error: Exception) -> Callable[..., Any]:
        def function(*_: Any, **__: Any) -> Any:
            raise error

        return function

    with monkeypatch.context() as patch, pytest.raises(LayoutError, match=r"LP227 .* has lost the Ray cluster: .*gone"):
        patch.setattr(ray, "wait", raises(ray.exceptions.RaySystemError("gone")))
        convert(checkpoint, tmp_path / "out", tp=2, ray="")
    with monkeypatch.context() as patch, pytest.raises(LayoutError, match=r"LP227 .* cannot be reached: gone"):
        patch.setattr(ray, "is_initialized", lambda: False)
        patch.setattr(ray, "init", raises(Exception("gone")))
        convert(checkpoint, tmp_path / "out", tp=2, ray="")


def units(dst: Path) -> int:
    """How many are finished, as long as a conversion has not ended."""
    journal = partial_of(dst) / JOURNAL
    return journal.read_bytes().count(b'"unit"') if journal.exists() else 0


def busy(raylet: int, ended: threading.Event) -> int:
    """The process of a machine that is at a task of ours."""
    while not ended.is_set():
        for process in children(raylet):
            with suppress(OSError):
                if b"carried_out" in Path(f"/proc/{process}/cmdline").read_bytes():
                    return process
        time.sleep(0.001)
    raise ProcessLookupError


def named(process: int, name: str) -> bool:
    """Whether a process runs the program of that name."""
    with suppress(OSError):
        return Path(Path(f"/proc/{process}/cmdline").read_text().split("\0")[0]).name == name
    return False


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


# ---------------------------------------------------------------- what a machine sees


@pytest.fixture
def asking(checkpoint: Path, tmp_path: Path) -> Iterator[tuple[machines.Asked, str]]:
    """What a driver tells a worker process, and what its first unit is called."""
    arguments = {"model_dir": checkpoint, "target": (), "tp": 2, "specs": ()}
    conversion = planned(**arguments)
    writers, of = files_of(conversion, homes(conversion.planner, tmp_path / "out", alone=False))
    for writer in writers:
        writer.path.parent.mkdir(parents=True)
        writer.open()
    yield (
        machines.asked_of(arguments, conversion, Store(writers, Journal(tmp_path / JOURNAL, of, conversion.files))),
        key(conversion.units[0]),
    )
    for writer in writers:
        writer.abandon()


def test_a_task_writes_its_unit(asking: tuple[machines.Asked, str], plain: dict[str, bytes]) -> None:
    asked, name = asking
    assert isinstance(machines.carried_out(asked, 0, name), Finished)
    wrote, whole = (asked.homes[0] / FILE).read_bytes(), plain[f"rank-0/{FILE}"]
    assert len(wrote) == len(whole) and 0 < sum(wrote) < sum(whole)


ELSEWHERE: dict[str, Callable[[machines.Asked], dict[str, Any]]] = {
    "cannot open `nowhere": lambda asked: {"homes": tuple(Path("nowhere", home.name) for home in asked.homes)},
    "has no `": lambda asked: {"arguments": {**asked.arguments, "model_dir": asked.homes[0]}},
    "has another `": lambda asked: {"files": asked.files | {"config.json": (1, 2)}},
    "makes other plans": lambda asked: {"of": asked.of | {PLANS: "other"}},
}


@pytest.mark.parametrize("message", ELSEWHERE)
def test_a_machine_that_sees_something_else_says_so(asking: tuple[machines.Asked, str], message: str) -> None:
    asked, name = asking
    found = machines.carried_out(replace(asked, **ELSEWHERE[message](asked)), 0, name)
    assert isinstance(found, LayoutError) and found.diagnostics[0].code == "LP227"
    assert found.message.startswith(f"machine `{socket.gethostname()}` {message}"), found.message


def test_a_machine_with_other_units_says_so(asking: tuple[machines.Asked, str]) -> None:
    found = machines.carried_out(asking[0], 1, asking[1])
    assert isinstance(found, LayoutError) and "divides the conversion into other units" in found.message


@pytest.mark.skipif(not hasattr(os, "O_DSYNC"), reason="no O_DSYNC")
def test_what_a_task_writes_is_on_disk_and_no_more_than_that(tmp_path: Path) -> None:
    import fcntl

    writer = Writer(tmp_path / FILE, {"a": ("int8", (3,))}, {})
    with pytest.raises(FileNotFoundError):
        writer.join()  # nothing is made where the file system is another
    (tmp_path / FILE).touch()
    writer.join()
    flags = fcntl.fcntl(writer.file, fcntl.F_GETFL)
    assert flags & os.O_DSYNC and flags & os.O_ACCMODE == os.O_WRONLY
    writer.abandon()


# ---------------------------------------------------------------- without a cluster


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LayoutError, match=r"LP151 not-installed: .* ray, which is not installed"):
        convert(FIXTURES / "llama_w4a16", tmp_path / "out", ray="auto")
    assert not list(tmp_path.iterdir())


def large(folder: Path, hidden: int = 2048, inner: int = 24576) -> Path:
    """One layer, with units of 80 MB."""
    config = config_of(FIXTURES / "llama_w4a16") | {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1, "head_dim": 128,
        "num_attention_heads": hidden // 128, "num_key_value_heads": hidden // 128,
    }  # fmt: skip
    rows = {f"self_attn.{part}_proj": (hidden, hidden) for part in "qkvo"}
    rows |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    wide = ("model.embed_tokens", "lm_head")
    tensors = {f"{name}.weight": torch.zeros(64, hidden, dtype=torch.bfloat16) for name in wide}
    norms = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
    tensors |= {f"{name}.weight": torch.zeros(hidden, dtype=torch.bfloat16) for name in norms}
    for name, (n, k) in rows.items():
        name = f"model.layers.0.{name}"
        tensors[f"{name}.weight_packed"] = torch.randint(-(2**31), 2**31 - 1, (n, k // 8), dtype=torch.int32)
        tensors[f"{name}.weight_scale"] = torch.rand(n, k // 128).to(torch.bfloat16)
        tensors[f"{name}.weight_shape"] = torch.tensor([n, k])
    folder.mkdir()
    save_file(tensors, folder / FILE)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# The tasks of a conversion one after the other, as a worker process has them: what it takes above torch, in bytes.
TASKS = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
torch.randn(64, 64) @ torch.randn(64, 64)
import layoutdsl.checkpoints.ray as machines
from layoutdsl import convert
from layoutdsl.checkpoints.journal import Finished, Journal
from layoutdsl.checkpoints.load import planned
from layoutdsl.checkpoints.run import files_of
from layoutdsl.checkpoints.storing import Store, homes, key

def kilobytes(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

src, folder = map(Path, sys.argv[1:])
before = kilobytes("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark begins anew
arguments = {"model_dir": src, "target": (), "tp": 2, "specs": ()}
conversion = planned(**arguments)
writers, of = files_of(conversion, homes(conversion.planner, folder, alone=False))
for writer in writers:
    writer.path.parent.mkdir(parents=True)
    writer.open()
asked = machines.asked_of(arguments, conversion, Store(writers, Journal(folder / "journal", of, conversion.files)))
for at, work in enumerate(conversion.units):
    assert isinstance(machines.carried_out(asked, at, key(work)), Finished)
print((kilobytes("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a high-water mark anew")
def test_the_peak_of_a_worker_process_is_what_a_dry_run_says(tmp_path: Path) -> None:
    src = large(tmp_path / "in")
    report = convert(src, tmp_path / "out", tp=2, ray="auto", dry_run=True)
    assert " of memory at most in each worker process beside the interpreter and torch" in str(report)
    done = subprocess.run([sys.executable, "-c", TASKS, src, tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert abs(int(done.stdout) - report.peak) <= 0.1 * report.peak, (done.stdout, report.peak)
