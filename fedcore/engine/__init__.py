"""The engine: one round loop, interchangeable executors, evaluation, checkpoints, export."""
