"""A measurement as lines for people."""

from __future__ import annotations

from typing import Any

from benchmarks.work import Work


def report(result: dict[str, Any]) -> str:
    """Return one workload's result under one executor."""
    low, high = result["ratio_range"]
    shares = ", ".join(f"{name} {seconds(value)}" for name, value in result["parts"].items() if name != "total")
    peaks = ", ".join(f"{100 * share:.3g} % of torch.mm ({name})" for name, share in result["of_peak"].items())
    runs_on = f"executor {result['executor']}, workers {result['workers']}, {result['device']}"
    setup = f", set-up rounds {seconds(result['setup'])}" if result["setup"] else ""
    lines = [
        "",
        f"{result['workload']}  {result['title']}" + (" (RANDOM DATA)" if result["random_data"] else ""),
        f"  work    {Work(**result['work']).described()}",
        f"  R0      {_side(result, 'reference_')}",
        f"  ours    {_side(result)}; {method_name(result)}, {runs_on}",
        f"  ratio   {result['ratio']:.3f} (by round {low:.3f} to {high:.3f}); of CPU seconds {result['cpu_ratio']:.3f}",
        f"  first   {seconds(result['first_round'])} (R0 {seconds(result['reference_first_round'])}){setup}",
        f"  where   {shares}",
        f"  speed   {result['gflops']:.3g} GFLOP/s, {peaks}",
    ]
    if result["memory"]:
        lines.append("  memory  " + _memory(result["memory"]))
    if not result["method"]:
        lines.append(
            f"  equal   the global models differ by {result['difference']:.1e} after one round and by"
            f" {result['last_difference']:.1e} after {len(result['accuracy'])}; accuracy {result['accuracy'][-1]:.4f}"
            f" (R0 {result['reference_accuracy'][-1]:.4f})"
        )
    return "\n".join(lines)


def method_name(result: dict[str, Any]) -> str:
    """Return the method and its add-ons, without their parameters."""
    method = result["method"]
    return "+".join([method.get("method", "fedavg"), *method.get("add", {})])


def seconds(value: float) -> str:
    """Return a duration with three digits."""
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def megabytes(size: int | None) -> str:
    """Return a size; None is unknown."""
    return "unknown" if size is None else f"{size / 1e6:,.0f} MB"


def _side(result: dict[str, Any], prefix: str = "") -> str:
    low, high = result[f"{prefix or 'seconds_'}range"]
    median, cpu = result[f"{prefix}seconds"], result[f"{prefix}cpu_seconds"]
    return f"{seconds(median)} a round ({seconds(low)} to {seconds(high)}), {seconds(cpu)} of CPU"


def _memory(peaks: dict[str, Any]) -> str:
    names = {"ours": "ours", "reference": "R0"}
    words = [f"{names[side]} {megabytes(found['host'])}" for side, found in peaks.items()]
    words += [f"{names[side]} on the GPU {megabytes(found['gpu'])}" for side, found in peaks.items() if found["gpu"]]
    return ", ".join(words)
