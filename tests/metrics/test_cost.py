"""Communication and processed samples against the papers' tables."""

from functools import partial
from itertools import pairwise

import pytest

from fedcore.metrics.cost import communicated, processed_samples


def dense(*widths):
    """Parameters of each layer of a network of fully connected layers."""
    return [(inputs + 1) * outputs for inputs, outputs in pairwise(widths)]


# LG-FedAvg's networks: LeNet takes 3 x 32 x 32 to 16 x 5 x 5 by two 5 x 5 convolutions.
MLP = dense(784, 512, 256, 256, 128, 10)
CONVOLUTIONS = [(3 * 25 + 1) * 6, (6 * 25 + 1) * 16]
LENET = [*CONVOLUTIONS, *dense(16 * 5 * 5, 120, 100, 10)]

lg_table = partial(communicated, "down_all_up_selected", clients=100, cohort=10)


def three_digits(value):
    return f"{value:.2e}"


def test_the_networks_have_the_papers_sizes():
    assert sum(MLP) == 633_226
    assert LENET == [456, 2_416, 48_120, 12_100, 1_010]
    assert sum(LENET) == 64_102


@pytest.mark.parametrize(
    ("stages", "table"),
    [
        ([(725, sum(MLP))], "5.05e+10"),
        ([(1850, sum(LENET))], "1.30e+10"),  # printed as 13.04e9, see below
        ([(1200, sum(LENET)), (60, sum(CONVOLUTIONS))], "8.48e+09"),
        ([(400, sum(MLP)), (50, sum(MLP[-2:]))], "2.80e+10"),
    ],
)
def test_lg_fedavg_table_1(stages, table):
    """FedAvg rounds of the whole network, then rounds of the shared part: last two dense layers, or convolutions."""
    total = sum(lg_table(parameters=parameters, rounds=rounds) for rounds, parameters in stages)
    assert three_digits(total) == table


def test_lg_fedavg_table_1_where_it_prints_four_digits_and_where_the_released_script_disagrees():
    assert f"{lg_table(parameters=sum(LENET), rounds=1850):.3e}" == "1.304e+10"
    three_layers = lg_table(parameters=sum(MLP), rounds=400) + lg_table(parameters=sum(MLP[-3:]), rounds=50)
    assert three_digits(three_layers) == "2.84e+10"


def test_fedbr_table_7_counts_one_way_of_one_client():
    """VGG11's eight 3 x 3 convolutions and its linear layer; FedBR adds a projection of two layers of 512."""
    widths = (3, 64, 128, 256, 256, 512, 512, 512, 512)
    convolutions = [(9 * inputs + 1) * outputs for inputs, outputs in pairwise(widths)]
    vgg = sum(convolutions) + sum(dense(512, 10))
    one_way = partial(communicated, "one_way_per_client", rounds=1, clients=10, cohort=10)
    assert f"{one_way(parameters=vgg) / 1e6:.1f}" == "9.2"
    # 9.75 M, printed as 9.7
    assert one_way(parameters=vgg + sum(dense(512, 512, 512))) == pytest.approx(9.75e6, abs=5e3)


def test_the_three_accountings_by_hand():
    """7 parameters, 3 rounds, 5 clients of which 2 train, and 4 parameters that each client exchanges once."""
    facts = {"parameters": 7, "rounds": 3, "clients": 5, "cohort": 2, "one_off": 4}
    assert communicated("one_way_per_client", **facts) == 3 * 7 + 4
    assert communicated("down_all_up_selected", **facts) == 3 * (5 * 7 + 2 * 7) + 5 * 4
    assert communicated("down_selected_up_selected", **facts) == 3 * (2 * 7 + 2 * 7) + 5 * 4


def test_training_alone_communicates_nothing():
    for accounting in ("one_way_per_client", "down_all_up_selected", "down_selected_up_selected"):
        assert communicated(accounting, parameters=0, rounds=200, clients=100, cohort=10) == 0


@pytest.mark.parametrize(
    ("rounds", "share", "epochs", "virtual_ratio", "samples"),
    [
        (287, 0.5, 1, 0, 143.5),
        (128, 0.5, 1, 1, 128),
        (255, 0.5, 5, 0, 637.5),
        (957, 0.1, 1, 0, 95.7),
        (385, 0.1, 1, 1, 77),
    ],
)
def test_processed_samples_of_vhl(rounds, share, epochs, virtual_ratio, samples):
    assert processed_samples(rounds, share, epochs, virtual_ratio) == pytest.approx(samples, rel=1e-12)


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"at most all clients.*clients=5, cohort=6"):
        communicated("down_selected_up_selected", parameters=1, rounds=1, clients=5, cohort=6)
    with pytest.raises(ValueError, match=r"rounds=-1"):
        communicated("one_way_per_client", parameters=1, rounds=-1, clients=5, cohort=5)
    with pytest.raises(ValueError, match=r"share=1.5"):
        processed_samples(1, 1.5, 1)
    with pytest.raises(ValueError, match=r"virtual_ratio=-1"):
        processed_samples(1, 0.5, 1, -1)
