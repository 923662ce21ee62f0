"""Local SGD against torch.optim, and the step mass against its closed forms."""

import pytest
import torch

from fedcore.config import Train
from fedcore.engine.optim import descend, learning_rate, unit_motion


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
def test_descend_is_torch_sgd(momentum, decay):
    section = Train(lr=0.1, momentum=momentum, weight_decay=decay)
    start = torch.linspace(-1, 1, 7, dtype=torch.float64)
    weight = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=momentum, weight_decay=decay)
    params, velocity = {"w": start, "frozen": start}, {"w": torch.zeros_like(start)}
    for step in range(5):
        slope = torch.sin(params["w"] + step)
        optimizer.zero_grad()
        weight.grad = torch.sin(weight.detach() + step)
        optimizer.step()
        params, velocity = descend(params, {"w": slope}, velocity, 0.1, section)
    torch.testing.assert_close(params["w"], weight.detach(), rtol=0, atol=1e-14)
    assert params["frozen"] is start


def test_learning_rate_decays_per_round():
    section = Train(lr=0.5, lr_decay=0.9)
    assert learning_rate(section, 0, 7) == learning_rate(section, -1, 7) == 0.5
    assert learning_rate(section, 3, 7) == pytest.approx(0.5 * 0.729)
    own = section.model_copy(update={"lr_decay_by": "participation"})
    assert learning_rate(own, 3, 2) == pytest.approx(0.5 * 0.81)


def test_step_mass_closed_forms():
    """FedNova, closed forms: K for SGD; (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho); [1 - (1 - a)^K] / a."""
    assert unit_motion(5, 0.1, 0.0, 0.0).moved == pytest.approx(0.5)
    rho = 0.9
    assert unit_motion(5, 1.0, rho, 0.0).moved == pytest.approx((5 - rho * (1 - rho**5) / (1 - rho)) / (1 - rho))
    assert unit_motion(5, 0.1, 0.0, 2.0).moved / 0.1 == pytest.approx((1 - (1 - 0.2) ** 5) / 0.2)


def test_step_mass_is_what_a_scalar_with_unit_gradients_moves():
    section = Train(lr=0.05, momentum=0.7)
    params, velocity = {"w": torch.zeros((), dtype=torch.float64)}, {"w": torch.zeros((), dtype=torch.float64)}
    for _ in range(6):
        slope = 1 + 0.3 * params["w"]  # a proximal term of strength 0.3 around 0, inside the momentum
        params, velocity = descend(params, {"w": slope}, velocity, 0.05, section)
    assert unit_motion(6, 0.05, 0.7, 0.3).moved == pytest.approx(-float(params["w"]))


def test_steps_from_a_kept_velocity_go_on_where_earlier_ones_ended():
    whole = unit_motion(7, 0.1, 0.9, 0.0)
    first = unit_motion(3, 0.1, 0.9, 0.0)
    second = unit_motion(4, 0.1, 0.9, 0.0, first.velocity)
    assert first.moved + second.moved == pytest.approx(whole.moved)
    assert second.velocity == pytest.approx(whole.velocity) == pytest.approx((1 - 0.9**7) / 0.1)
