"""Workers that are actors of a real cluster: the same promises, though no memory is shared."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from vanishing import assert_gone

from plangym_like.batchers.engine.backend import Backend
from plangym_like.batchers.engine.crew import Crew
from plangym_like.batchers.engine.nests import Leaf, take
from plangym_like.batchers.engine.parcels import pack, unpack
from plangym_like.batchers.engine.residents import Workplace
from plangym_like.batchers.engine.shared_nest import SharedNest
from plangym_like.errors import (
    ClosedError,
    InputError,
    MissingExtraError,
    WorkerTimeoutError,
)

ray = pytest.importorskip("ray", reason="Ray is not installed")


class Resident:
    def __init__(self, place: Workplace) -> None:
        self.place = place
        self.seen: list[Any] = []
        self.thread = threading.get_ident()

    def where(self) -> tuple[int, int, int]:
        # Some simulators belong to the thread that made them.
        assert threading.get_ident() == self.thread
        return self.place.group, os.getpid(), torch.get_num_threads()

    def read(self) -> list[float]:
        self.seen.append(self.place.memory["weights"])
        assert all(memory is self.seen[0] for memory in self.seen)
        return self.seen[0].tolist()

    def fill(self, name: str, index: int, value: float, length: int) -> None:
        at = self.place.place_of(name, index)
        take(self.place.memory[name], at)["rows"].fill_(value)
        self.place.hand_in(name, index, lambda piece: take(piece, slice(0, length)))

    def hang(self) -> None:
        while True:
            time.sleep(0.01)

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.place.beat()
            time.sleep(0.04)


def crew_of(num_groups: int, num_workers: int, make: Any = Resident, **options: Any) -> Crew:
    backend = Backend("ray", resources={"num_cpus": 0})
    return Crew(make, num_groups, num_workers=num_workers, backend=backend, **options)


@pytest.fixture(scope="module")
def crew(cluster: Any) -> Iterator[Crew]:
    """Three groups on two nodes, to which nothing happens."""
    with crew_of(3, 2) as crew:
        yield crew
        pids = crew.pids
    assert_gone(pids)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2


def test_groups_live_in_actors_all_over_the_cluster(crew: Crew) -> None:
    jobs = [crew.submit(group, "where") for group in (0, 1, 2, 1)]
    done = [crew.wait() for _ in jobs]
    assert {job.group for job in done if job} == {0, 1, 2}
    (first, second, third, again) = [job.result for job in jobs]
    assert [place[0] for place in (first, second, third, again)] == [0, 1, 2, 1]
    assert first[1] == third[1] != second[1] == again[1]
    assert {first[1], second[1]} == set(crew.pids)
    assert {place[2] for place in (first, second, third)} == {1}
    assert crew.wait() is None and crew.num_pending == 0


def test_what_is_shared_travels_once_and_when_it_has_changed(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: sent.append(value) or put(value))
    weights = SharedNest(Leaf((3,), torch.float32))
    weights.tensors.fill_(1.0)
    crew.share("weights", weights)
    for _ in range(2):
        assert [crew.run(group, "read") for group in range(3)] == [[1.0] * 3] * 3
    assert len(sent) == 1
    weights.tensors.fill_(2.0)
    crew.renew("weights")
    late = crew.submit(0, "read")
    weights.tensors.fill_(3.0)  # which nobody has been told
    assert [crew.run(group, "read") for group in range(3)] == [[2.0] * 3] * 3
    crew.wait(job=late)
    assert late.result == [2.0] * 3
    assert len(sent) == 2


def test_pieces_arrive_as_they_were_when_handed_in(crew: Crew) -> None:
    pool = crew.make_pool("board", {"rows": Leaf((4, 30_000), torch.bfloat16)}, 6)
    for index in range(6):
        crew.submit(index % 3, "fill", "board", index, float(index), 4)
    while crew.wait():
        pass
    for index in range(6):
        rows = pool[index]["rows"]
        assert rows.shape == (4, 30_000) and (rows == index).all()
    # Too large for a message, so it lies in the object store; and is its reader's to write to.
    pool[5]["rows"].add_(1)
    assert (pool[5]["rows"] == 6).all()


def test_pieces_of_one_group_are_gathered(crew: Crew) -> None:
    pool = crew.make_pool("slots", {"rows": Leaf((5, 2), torch.int64)}, 3, group=1)
    crew.run(1, "fill", "slots", 0, 7, 2)
    crew.run(1, "fill", "slots", 2, 8, 3)
    rows = pool.gather((2, 0), 3)["rows"]
    assert rows[0].tolist() == [[8, 8]] * 3
    assert rows[1, :2].tolist() == [[7, 7]] * 2


def test_a_resident_that_cannot_be_made(cluster: Any) -> None:
    def make(place: Workplace) -> Any:
        raise LookupError(f"no game for {place.group}")

    with crew_of(2, 1, make) as crew:
        crew.submit(1, "where")
        with pytest.raises(LookupError, match="no game for 0"):
            crew.wait()
        assert_gone(crew.pids)


def test_who_works_is_heard_of_and_who_hangs_is_found_out(cluster: Any) -> None:
    with crew_of(1, 1, timeout=6.0) as crew:
        pid = crew.run(0, "where")[1]
        crew.submit(0, "work", 40)
        crew.submit(0, "hang")
        heard = set()
        with pytest.raises(WorkerTimeoutError, match=rf"worker collector-0 \(pid {pid} on node"):
            while True:
                crew.wait(0.05)
                heard.add(crew._host.beats(0))
        assert 40 in heard and heard & set(range(1, 40))
        with pytest.raises(ClosedError, match="no progress"):
            crew.wait()
        assert_gone([pid])


def test_backends_that_there_are_not() -> None:
    with pytest.raises(InputError, match="'process', 'ray', got 'cloud'"):
        Backend("cloud")
    with pytest.raises(InputError, match="takes address"):
        Backend("process", address="10.0.0.1:6379")
    with pytest.raises(InputError, match="a dict such as"):
        Backend("ray", resources=["num_gpus"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1 worker"):
        Crew(Resident, 1, num_workers=0, backend=Backend("ray"))


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'plangym_like\[ray\]'"):
        Backend("ray")


def test_parcels_hold_whatever_a_nest_does() -> None:
    nest = {
        "numbers": (torch.arange(6).view(2, 3), torch.tensor(True)),
        "nothing": [torch.empty(0, 4, dtype=torch.int16), None],
        "complex": torch.tensor([1 + 2j, 3]),
    }
    parcel = pack(nest)
    for content in parcel.contents:
        content.flags.writeable = False
    copy = unpack(parcel)
    assert torch.equal(copy["numbers"][0], nest["numbers"][0])
    assert copy["numbers"][1].item() is True
    assert copy["nothing"][0].shape == (0, 4) and copy["nothing"][1] is None
    assert copy["complex"].tolist() == nest["complex"].tolist()  # type: ignore[attr-defined]
    copy["numbers"][0][0, 0] = 9
    assert nest["numbers"][0][0, 0] == 9  # nothing was copied
