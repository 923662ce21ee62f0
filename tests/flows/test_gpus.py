"""A run holds its share of a GPU as long as it lives, however it ends; several share one when they were measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flows import gpus
from flows.gpus import Gpu, held_bytes, lease, needed_bytes, visible_gpus
from tasks.run_writer import with_gpu_peak

ROOT = Path(__file__).parent.parent.parent
GIB = 1 << 30
ONE = [Gpu("GPU-a", 80 * GIB)]
TWO = [*ONE, Gpu("GPU-b", 80 * GIB)]
QUICK = 0.01
PATIENCE = 30.0


def is_free(folder: Path, cards: list[Gpu], wanted: int | None) -> bool:
    class NoRoomError(Exception): ...

    def full() -> None:
        raise NoRoomError

    try:
        with lease(folder, cards, wanted, on_wait=full):
            return True
    except NoRoomError:
        return False


def becomes_free(folder: Path, cards: list[Gpu], wanted: int | None) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not is_free(folder, cards, wanted):
        if time.monotonic() > deadline:
            return False
        time.sleep(QUICK)
    return True


def test_without_gpus_nothing_is_limited(tmp_path: Path) -> None:
    with lease(tmp_path / "leases", [], None) as first, lease(tmp_path / "leases", [], None) as second:
        assert first is second is None
    assert not (tmp_path / "leases").exists()


def test_an_unmeasured_run_has_a_gpu_for_itself(tmp_path: Path) -> None:
    with lease(tmp_path, TWO, None, holder="train@a-0") as first, lease(tmp_path, TWO, None) as second:
        assert first is not None
        assert second is not None
        assert first.environment != second.environment
        assert {first.gpu, second.gpu} == {"GPU-a", "GPU-b"}
        assert not is_free(tmp_path, TWO, GIB)
        assert [name.split(" [")[0] for name in held_bytes(tmp_path, first.gpu)] == ["train@a-0"]
    assert is_free(tmp_path, TWO, None)


def test_measured_runs_share_a_gpu_up_to_its_usable_memory(tmp_path: Path) -> None:
    """95 % of 80 GiB are 76: three times 25 fit, one more GiB does too, two more do not."""
    with lease(tmp_path, ONE, 25 * GIB), lease(tmp_path, ONE, 25 * GIB), lease(tmp_path, ONE, 25 * GIB):
        assert is_free(tmp_path, ONE, 1 * GIB)
        assert not is_free(tmp_path, ONE, 2 * GIB)


def test_the_gpu_with_most_room_is_taken(tmp_path: Path) -> None:
    with lease(tmp_path, TWO, 30 * GIB) as first, lease(tmp_path, TWO, 10 * GIB) as second:
        assert first is not None
        assert second is not None
        assert first.gpu != second.gpu
        with lease(tmp_path, TWO, 10 * GIB) as third:
            assert third is not None
            assert third.gpu == second.gpu


def test_a_run_larger_than_any_gpu_gets_a_whole_one(tmp_path: Path) -> None:
    with lease(tmp_path, ONE, 500 * GIB):
        assert list(held_bytes(tmp_path, "GPU-a").values()) == [76 * GIB]


def test_who_waits_goes_on_when_there_is_room(tmp_path: Path) -> None:
    waiting, got = threading.Event(), threading.Event()

    def wait() -> None:
        with lease(tmp_path, ONE, None, on_wait=waiting.set, poll_seconds=QUICK):
            got.set()

    with lease(tmp_path, ONE, None):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(PATIENCE)
        assert not got.is_set()
    assert got.wait(PATIENCE)
    thread.join()


@pytest.mark.parametrize(
    ("mode", "lock", "one"), [(0o755, 0o644, 0o644), (0o1777, 0o666, 0o644), (0o700, 0o600, 0o600)]
)
def test_files_are_as_open_as_their_folder(tmp_path: Path, mode: int, lock: int, one: int) -> None:
    tmp_path.chmod(mode)
    before = os.umask(0o077)
    try:
        with lease(tmp_path, ONE, None):
            assert {path.suffix: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"": lock, ".json": one}
    finally:
        os.umask(before)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("is_shared", [True, False])
def test_two_users_share_a_folder_that_is_open_to_both(is_shared: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777 if is_shared else 0o755)

        def of_another_user() -> str:
            """What another user, without any rights of root, gets, in a process of its own."""
            reader, writer = os.pipe()
            if os.fork() == 0:
                try:
                    os.setgroups([])
                    os.setresgid(65534, 65534, 65534)
                    os.setresuid(65534, 65534, 65534)
                    os.write(writer, f"{is_free(folder, ONE, GIB)} {is_free(folder, ONE, None)}".encode())
                except BaseException as error:
                    os.write(writer, f"{type(error).__name__}: {error}".encode())
                finally:
                    os._exit(0)
            os.close(writer)
            os.wait()
            with os.fdopen(reader) as answer:
                return answer.read()

        with lease(folder, ONE, 50 * GIB):
            found = of_another_user()
        if not is_shared:
            assert found == (
                f"PermissionError: {folder}: is another user's; to share it, its owner runs"
                f" `chmod 1777 {folder} && chmod 666 {folder}/lock`"
            )
            return
        assert found == "True False"
        # What the owner left behind is nobody's, though others may not remove it; and the other way round.
        assert of_another_user() == "True True"
        assert is_free(folder, ONE, None)


# A flow run: it takes the GPU, then runs a command that does not end by itself.
HOLDER = """
import sys
from pathlib import Path
from flows.gpus import Gpu, lease
from flows.processes import run
with lease(Path(sys.argv[1]), [Gpu("GPU-a", 80 << 30)], None, holder="killed") as held:
    sleeper = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
    run([sys.executable, "-c", sleeper], on_line=lambda line: print(line, flush=True), grace=5,
        environment=held.environment, keep_open=[held.file.fileno()])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_gives_its_gpu_back(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "GPU-a\n"
        assert not is_free(tmp_path, ONE, GIB)
        holder.send_signal(number)
        holder.wait(PATIENCE)
        assert becomes_free(tmp_path, ONE, None)


def test_the_gpu_is_taken_until_the_training_has_ended(tmp_path: Path) -> None:
    """The flow run is gone at once, its training not yet: giving the GPU back then would put two on it."""
    stubborn = HOLDER.replace("import os, time;", "import os, signal, time; signal.signal(15, signal.SIG_IGN);")
    command = [sys.executable, "-c", stubborn.replace("grace=5", "grace=1.5"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
        holder.wait(PATIENCE)
        assert not is_free(tmp_path, ONE, GIB)
        assert becomes_free(tmp_path, ONE, None)


def test_the_reserve_is_the_largest_peak_and_something_more(tmp_path: Path) -> None:
    for name, peaks in {"fedavg-0": ["", "1000"], "fedavg-1": ["", "3000"], "fedavg_ft-0": ["9000"]}.items():
        (tmp_path / name).mkdir()
        rows = "".join(f"{number},{peak}\n" for number, peak in enumerate(peaks))
        (tmp_path / name / "timing.csv").write_text(f"round,gpu_peak_bytes\n{rows}")
    assert needed_bytes(tmp_path, "fedavg") == 3600 + GIB
    assert needed_bytes(tmp_path, "fedprox") is None


@pytest.mark.parametrize("text", ["round,total_seconds\n1,2\n", "round,gpu_peak_bytes\n1,many\n", "\0\xff", ""])
def test_a_run_that_measured_nothing_is_unmeasured(tmp_path: Path, text: str) -> None:
    (tmp_path / "fedavg-0").mkdir()
    (tmp_path / "fedavg-0" / "timing.csv").write_text(text, encoding="latin-1")
    assert needed_bytes(tmp_path, "fedavg") is None


def test_training_records_what_the_reserve_is_worked_out_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 2000 + device.index)
    rows = [{"round": 1.0}, {"round": 2.0}]
    assert with_gpu_peak(rows, torch.device("cuda", 1)) == [rows[0], {"round": 2.0, gpus.PEAK_COLUMN: 2001.0}]
    assert with_gpu_peak(rows, torch.device("cpu")) == rows


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a stand-in for NVIDIA's program on the path that prints what it is given."""

    def install(output: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install


def test_gpus_are_those_of_the_driver_that_this_process_may_use(
    nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi("0, GPU-a1, 81559\n1, GPU-b2, 81559\n")
    assert visible_gpus() == [Gpu("GPU-a1", 81559 << 20), Gpu("GPU-b2", 81559 << 20)]
    for allowed, names in {
        "1": ["GPU-b2"],
        "GPU-a": ["GPU-a1"],
        "": [],
        "-1": [],
        "0, 1": ["GPU-a1", "GPU-b2"],
    }.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
        assert [gpu.name for gpu in visible_gpus()] == names
        assert gpus.is_visible() == bool(names)


def test_a_driver_without_gpus_gives_none(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("No devices were found\n")
    assert visible_gpus() == []
