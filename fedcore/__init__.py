"""fedcore: federated learning on heterogeneous data. The engine; knows torch and numpy, and no orchestrator."""

__version__ = "0.1.0"
