"""What a layer is compared with: the oracle, under the kernel's own routing if there is one."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance._judge import Where, all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.oracle._formats import FORMATS
from moe_ref.oracle._problem import problem
from moe_ref.spec import Numerics

NO_GRADIENT = Judgement(status="skipped", detail="no gradient was given")


def truth_of(case: Case, outputs: Outputs) -> oracle.LayerResult:
    """The layer under the routing the kernel reports, or the oracle's if it reports none."""
    routing = None
    if "experts" in outputs and "weights" in outputs:
        routing = {"experts": outputs["experts"], "weights": outputs["weights"]}
    return _layer(case, routing=routing)


def own_truth(case: Case) -> oracle.LayerResult:
    """The layer under the oracle's own routing."""
    return _layer(case)


def declared(case: Case) -> Numerics | None:
    """What the kernel declares; but a dtype that the spec names for a stage of the router holds."""
    if case.numerics is None:
        return None
    named, rule = oracle.numerics_for(case.spec, case.dtype), case.spec.router
    stages = {"projection": rule.projection_dtype, "logits": rule.projection_dtype}
    stages |= {"score": rule.score_dtype, "weights": rule.weight_dtype}
    wider = {
        stage: getattr(named, stage)
        for stage, dtype in stages.items()
        if dtype is not None and _bits(case.numerics, stage) < _bits(named, stage)
    }
    return dataclasses.replace(case.numerics, **wider)


def _bits(numerics: Numerics, stage: str) -> int:
    return FORMATS[getattr(numerics, stage)].bits


def _layer(case: Case, **given: Any) -> oracle.LayerResult:
    arrays, mask = case.arrays, case.arrays.get("mask")
    return oracle.layer(
        arrays["x"], arrays["layer"], case.spec, mask=mask, numerics=declared(case), **given
    )


def token(place: tuple[int, ...]) -> str:
    """A number of the output, for a reader."""
    return f"token {place[0]}, feature {place[1]}"


def clear_rows(truth: oracle.LayerResult, outputs: Outputs) -> np.ndarray:
    """Tokens that can be judged: all if the routing is known, else those of a certain choice."""
    return np.ones(len(truth.value), bool) if "experts" in outputs else ~truth.ambiguous


def judge_output(case: Case, outputs: Outputs) -> Judgement:
    """The output alone."""
    truth = truth_of(case, outputs)
    return within(outputs["y"], truth.output, where=token, rows=clear_rows(truth, outputs))


def judge_layer(case: Case, outputs: Outputs) -> Judgement:
    """The output, whether every expert counts in it, and the routing."""
    truth = truth_of(case, outputs)
    output = within(outputs["y"], truth.output, where=token, rows=clear_rows(truth, outputs))
    return all_of(output, _heard(truth, case), _judge_routing(case, outputs))


def _heard(truth: oracle.LayerResult, case: Case) -> Judgement:
    """Whether leaving out an expert would be noticed, for every expert that is visited."""
    deaf = np.flatnonzero(truth.deaf_experts(case.spec.router.num_choices) == 1)
    if not deaf.size:
        return Judgement(status="pass")
    detail = f"expert {deaf[0]}: all it adds is below the bound, it could be left out"
    return Judgement(status="cannot tell", detail=detail)


def _judge_routing(case: Case, outputs: Outputs) -> Judgement:
    if "experts" not in outputs:
        return Judgement(status="pass")
    acceptable = np.asarray(oracle.acceptable(own_routing(case), outputs["experts"]))
    if not acceptable.all():
        detail = f"token {int(np.argmin(acceptable))}: another set of experts"
        return Judgement(status="fail", detail=detail)
    if "weights" not in outputs:
        return Judgement(status="pass")
    live = own_routing(case, experts=outputs["experts"]).weights
    return within(outputs["weights"], live, where=lambda p: f"weight of token {p[0]}")


@np.errstate(all="ignore")
def own_routing(case: Case, **given: Any) -> oracle.RouteResult:
    """The oracle's routing, of tokens none of which is padding; without the layer behind it."""
    x, layer = case.arrays["x"], case.arrays["layer"]
    return problem(x, layer, case.spec, numerics=declared(case), **given).routing


def gradients_of(case: Case, outputs: Outputs) -> dict[str, oracle.Value]:
    """The oracle's gradients by name, but for that of the selection bias, which has none."""
    arrays = case.arrays
    truth = oracle.layer_vjp(
        arrays["x"],
        arrays["layer"],
        case.spec,
        arrays["cotangent"],
        experts=outputs.get("experts"),
        mask=arrays.get("mask"),
        numerics=declared(case),
    )
    found = {}
    for name in leaves({k: arrays[k] for k in ("x", "layer")}):
        if not name.endswith("selection_bias"):
            wanted: Any = truth
            for part in name.removeprefix("layer.").split("."):
                wanted = getattr(wanted, part)
            found[name] = wanted
    return found


def given_gradients(outputs: Outputs) -> list[str]:
    """Names of the inputs that the kernel gave a gradient of."""
    return [name.removeprefix("grad.") for name in outputs if name.startswith("grad.")]


def judge_gradients(case: Case, outputs: Outputs, *, quiet: str | None = None) -> Judgement:
    """Every gradient that was given; what begins with `quiet` may be lost below its bound."""
    truth, judged = gradients_of(case, outputs), []
    for name in given_gradients(outputs):
        actual = outputs[f"grad.{name}"]
        if name.endswith("selection_bias"):
            judged.append(equal(actual, np.zeros_like(actual), where=place_in(name)))
        else:
            whole = name != "x" and not name.startswith("layer.experts")
            found = within(actual, truth[name], where=place_in(name), whole=whole)
            if found.status == "cannot tell" and quiet is not None and name.startswith(quiet):
                found = Judgement(status="pass", ratio=found.ratio)
            judged.append(found)
    return all_of(*judged) if judged else NO_GRADIENT


def place_in(name: str) -> Where:
    """A number of a gradient, for a reader."""
    return lambda place: f"d{name} at {place}"


def near(actual: np.ndarray, expected: np.ndarray, *truths: oracle.Value, **options) -> Judgement:
    """Whether two results agree, computed with errors within the bounds of all `truths`."""
    bound, worst = (sum(getattr(t, name) for t in truths) for name in ("bound", "worst"))
    limits = {"value": expected.astype(np.float64), "bound": bound, "worst": worst}
    return within(actual, dataclasses.replace(truths[0], **limits), **options)
