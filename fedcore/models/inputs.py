"""What shapes of inputs a model takes."""

from __future__ import annotations


def check_images(
    name: str, input_shape: tuple[int, ...], least: int = 4, instead: str = "mlp, softmax_regression"
) -> None:
    """Raise ValueError unless inputs are images of at least `least` pixels on a side; `instead` names what is valid."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise ValueError(
            f"model.name '{name}' needs images of at least {least}x{least} pixels,"
            f" got inputs of shape {input_shape}; valid here: {instead}"
        )
