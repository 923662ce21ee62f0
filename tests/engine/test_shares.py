"""Which worker holds which clients, and the rows they need there."""

import numpy as np
import pytest

from fedcore.engine.shares import homes, share_of
from tests import toys


def test_the_largest_clients_go_first_to_the_emptiest_worker():
    """8 to a; 7 to b; 6 to b (13), which had less; 5 to a (13); 4 to a (17), the first of two equals; 1 to b."""
    assert homes(np.array([1, 8, 5, 7, 4, 6]), 2).tolist() == [1, 0, 0, 1, 0, 1]


def test_every_client_has_a_home_with_more_workers_than_clients():
    assert sorted(homes(np.array([3, 3]), 4).tolist()) == [0, 1]


def test_a_share_holds_its_clients_rows_and_no_others():
    fed = toys.federation()
    work = toys.training(fed=fed)
    share = share_of(work.examples, fed, [1, 3], with_validation=True)
    for client in (1, 3):
        train, validation = share.rows(client)
        assert np.array_equal(share.inputs[train], fed.dataset.inputs[fed.rows(client, "train")])
        assert np.array_equal(share.labels[validation], fed.dataset.labels[fed.rows(client, "val")[::2]])
        assert np.array_equal(share.protected[train], work.examples.protected.numpy()[fed.rows(client, "train")])
    assert len(share.labels) == 9 + 31 + 2 + 2
    with pytest.raises(KeyError):
        share.rows(2)


def test_joined_shares_hold_both_and_nothing_twice():
    fed = toys.federation()
    examples = toys.training(fed=fed).examples
    one, other = (share_of(examples, fed, clients, with_validation=False) for clients in ([1, 4], [0, 4]))
    both = one.joined(other)
    assert both.clients.tolist() == [0, 1, 4]
    for client in (0, 1, 4):
        train, validation = both.rows(client)
        assert np.array_equal(both.inputs[train], fed.dataset.inputs[fed.rows(client, "train")])
        assert len(validation) == 0


def test_a_worker_without_clients_has_an_empty_share():
    fed = toys.federation()
    share = share_of(toys.training(fed=fed).examples, fed, [], with_validation=True)
    assert share.inputs.shape == (0, 5)
