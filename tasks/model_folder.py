"""A run's model as an MLflow model folder: it loads where neither the project nor the data is, without pickle."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature

PACKAGES = ("mlflow", "numpy", "pandas", "pydantic", "safetensors", "torch")


def save_model(
    path: Path,
    run_folder: Path,
    view: str,
    dataset: Path,
    model_id: str | None = None,
    run_id: str | None = None,
    fallback: Path | None = None,
) -> None:
    """Write a run's model as an MLflow model folder.

    Parameters
    ----------
    path : Path
        The folder to write; must not exist.
    run_folder : Path
        Its ``config.json``, ``model.safetensors`` and ``personal.safetensors`` go in. The global model gets no
        client's personal weights.
    view : {"global", "personal"}
    dataset : Path
        Folder of the prepared data set, for the input example.
    fallback : Path or None
        The run folder whose global model serves clients without a model of their own; None: `run_folder`'s.
    """
    import mlflow.pyfunc
    from mlflow.models import Model
    from safetensors import safe_open
    from safetensors.numpy import save_file

    import fedcore

    personal = run_folder / "personal.safetensors"
    with safe_open(personal, framework="numpy") as file:
        clients, facts = file.get_tensor("clients"), file.metadata()
    with tempfile.TemporaryDirectory() as folder:
        nobody = {"clients": clients[:0]}
        artifacts = {"run": _copy_run(run_folder, Path(folder) / "run")}
        if view == "global":
            save_file(nobody, Path(folder) / "run" / personal.name, metadata=facts)
        if fallback is not None:
            artifacts["fallback"] = _copy_run(fallback, Path(folder) / "fallback")
            save_file(nobody, Path(folder) / "fallback" / personal.name, metadata=facts)
        with warnings.catch_warnings():
            # MLflow compares a table's columns with a range, which pandas 3 is about to understand differently.
            warnings.filterwarnings("ignore", message="Operation with range is deprecated")
            mlflow.pyfunc.save_model(
                path=str(path),
                python_model=str(Path(__file__).with_name("registry_model.py")),
                artifacts=artifacts,
                model_config={"view": view},
                code_paths=[str(Path(fedcore.__file__).parent)],
                pip_requirements=[f"{name}=={metadata.version(name).split('+')[0]}" for name in PACKAGES],
                signature=signature(view),
                input_example=input_example(dataset, view, int(clients[0]) if len(clients) else 0),
                mlflow_model=Model(model_id=model_id, run_id=run_id),
            )


def _copy_run(run_folder: Path, target: Path) -> str:
    target.mkdir()
    for name in ("config.json", "model.safetensors", "personal.safetensors"):
        shutil.copyfile(run_folder / name, target / name)
    return str(target)


def signature(view: str) -> ModelSignature:
    """Return the columns a model takes and gives."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import AnyType, Array

    # Not lists of doubles: MLflow refuses whole numbers for those, and cuts a client_id of 3.5 to 3, another client's
    # model. The model checks both itself.
    inputs = [ColSpec(AnyType(), "features")]
    outputs = [
        ColSpec(DataType.long, "label"),
        ColSpec(DataType.string, "class_name"),
        ColSpec(DataType.double, "probability"),
        ColSpec(Array(DataType.double), "probabilities"),
    ]
    if view == "personal":
        inputs.insert(0, ColSpec(AnyType(), "client_id"))
        outputs.append(ColSpec(DataType.boolean, "known_client"))
    return ModelSignature(Schema(inputs), Schema(outputs), ParamSchema([ParamSpec("logits", DataType.boolean, False)]))


def input_example(dataset: Path, view: str, client: int) -> pd.DataFrame:
    """Return the data set's first two examples as a model takes them."""
    import numpy as np
    import pandas as pd

    file = dataset / "inputs.npy"
    if not file.is_file():
        raise ValueError(f"{file}: does not exist; run `dvc repro prepare`")
    rows = np.load(file, mmap_mode="r", allow_pickle=False)[:2]
    features = [row.astype(np.float64).ravel().tolist() for row in rows]
    table = pd.DataFrame({"features": features})
    if view == "personal":
        table.insert(0, "client_id", np.full(len(table), client, np.int64))
    return table
