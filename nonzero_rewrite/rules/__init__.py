"""The table of what a NonZero may become, and the closed list of reasons why not.

Each rule lives in the module named beside it; ``nonzero_rewrite.rewrite`` runs them in this order,
so that a NonZero that is not needed is gone before a plugin is put anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Rule:
    """One rewrite.

    Attributes:
        name: what options and reports call it.
        summary: what it does.
        default: whether it runs without being asked for.
        exact: whether its results are bit-equal to the original's in onnxruntime.
    """

    name: str
    summary: str
    default: bool = True
    exact: bool = True


RULES = (
    Rule("inline-function", "a model-local function around NonZero is inlined"),  # lift
    Rule("inline-if", "an If whose condition is a constant becomes its branch"),  # lift
    Rule("hoist", "a NonZero in a body whose mask comes from outside moves outside"),  # hoist
    Rule("unused", "a NonZero whose result nobody uses is removed"),  # fold
    Rule("constant", "NonZero of a constant becomes the constant result"),  # fold
    Rule("ramp", "NonZero of all ones becomes Range, of all zeros an empty constant"),  # fold
    Rule("where-scatter", "x[mask] = v becomes Where(mask, v, x)"),  # scatter
    Rule("elementwise", "x[mask] = f(x[mask]) becomes Where(mask, f(x), x)"),  # scatter
    Rule(
        "masked-scatter",
        "x[mask] = source, in order, becomes Where over a CumSum of the mask",
        default=False,
    ),  # masked_scatter
    Rule("rows", "a mask repeated along the last dims lists rows instead of their items"),  # rows
    Rule("count", "where only the count is used, it becomes a ReduceSum of the mask"),  # count
    Rule(
        "where-sum",
        "ReduceSum(x[mask]) becomes ReduceSum(Where(mask, x, 0)); changes summation order",  # count
        default=False,
        exact=False,
    ),
    Rule(
        "size-from-indices",
        "a sum over the mask that is the size of a tensor becomes the Shape of the indices",
    ),  # size
    Rule("share", "equal NonZero become one"),  # plugin
    Rule(
        "mask-cast", "a Cast, or an Expand to the same size, in front of NonZero is bypassed"
    ),  # plugin
    Rule("transpose", "Transpose after NonZero is part of the plugin"),  # plugin
    Rule(
        "any-rank",
        "a mask of unknown rank goes to the plugin too; TensorRT must know the rank when it builds",
        default=False,
    ),  # plugin
    Rule("plugin", "NonZero becomes NonZeroPlugin"),  # plugin
)

RULE_NAMES = tuple(rule.name for rule in RULES)
DEFAULT_RULES = frozenset(rule.name for rule in RULES if rule.default)
EXACT_RULES = frozenset(rule.name for rule in RULES if rule.exact)


class SkipReason(Enum):
    """Why a NonZero is left as it is. The value is what people read."""

    EXCLUDED = "excluded by the options or the plan"
    IN_SUBGRAPH = "inside a control-flow body, where TensorRT allows no data-dependent shape"
    IN_FUNCTION = "inside a model-local function that is not inlined"
    RANK_UNKNOWN = "the rank of its input is not known (--rules +any-rank leaves it to TensorRT)"
    RANK_ZERO = "its input is a scalar, where ONNX and onnxruntime disagree about the result"
    RANK_TOO_HIGH = "its input has more dimensions than TensorRT's eight"
    DTYPE_UNKNOWN = "the type of its input is not known"
    DTYPE_UNSUPPORTED = "its input type has no exact form that the plugin takes"
    MALFORMED = "the node has not exactly one input and one output"
