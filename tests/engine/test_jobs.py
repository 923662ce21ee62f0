"""What clients are to do."""

import numpy as np
import pytest
import torch

from fedcore.engine import jobs
from fedcore.trees import flatten
from tests import toys

SETTINGS = {
    "epochs": {"local_epochs": 2},
    "steps": {"local_steps": 7},
    "replacement": {"local_steps": 4, "sampling": "replacement"},
}


def _made(work, clients, round=1):
    return list(work._jobs(clients, round, work.composition.phases(work.train), "batches"))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_a_job_does_not_depend_on_those_it_is_made_with(monkeypatch, method, settings):
    work = toys.training(toys.composition(method), **SETTINGS[settings])
    together = _made(work, [4, 3, 0, 1, 2])
    assert [job.client for job in together] == [4, 3, 0, 1, 2]
    monkeypatch.setattr(jobs, "_TOGETHER", 2)
    for one, other in zip(together, _made(work, (4, 3, 0, 1, 2)), strict=True):
        (alone,) = _made(work, [one.client])
        for another in (other, alone):
            assert all(
                np.array_equal(a.positions, b.positions) and np.array_equal(a.lengths, b.lengths)
                for a, b in zip(one.schedules, another.schedules, strict=True)
            )
            assert all(torch.equal(a, b) for a, b in zip(one.info, another.info, strict=True))
            assert flatten(one.params).keys() == flatten(another.params).keys()


def test_streams_of_all_phases_are_made_together(monkeypatch):
    """Nothing is left that would be seeded one by one."""
    work = toys.training(toys.composition("fedrep"), local_epochs=2)
    monkeypatch.setattr("fedcore.seeds.stream", None)
    assert len(_made(work, [0, 1])) == 2


def test_facts_of_a_client_are_those_of_its_train_split():
    work = toys.training()
    federation, dataset = work.federation, work.federation.dataset
    for job in _made(work, [3, 1]):
        labels = dataset.labels[federation.rows(job.client, "train")]
        assert job.info.num_examples == len(labels)
        assert job.info.class_counts.tolist() == np.bincount(labels, minlength=dataset.num_classes).tolist()
        assert job.info.class_counts.dtype == work.examples.dtype


def test_jobs_are_made_when_they_are_asked_for():
    work = toys.training()
    seen = []
    get = work.progress.store.get
    work.progress.store.get = lambda client: seen.append(client) or get(client)
    queue = work._jobs([2, 0, 1], 0, work.composition.phases(work.train), "batches")
    assert next(queue).client == 2
    assert seen == [2]
