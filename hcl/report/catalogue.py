"""The catalogue: everything that the world sees of a method, of a metric and of a statistic, once.

Tables, figures and the page take their words from here, and the documents may be checked against
it. ``entry`` knows every name: one that is not listed is a variant of the nearest one that is, or
stands under its own name. What is a fact of a run, such as whether it was told the task, is not
here: ``about.json`` of its scores says it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hcl.report.names import one_line

Origin = Literal["the paper's", "closed form", "beyond the paper", "your own"]

TASK_AGNOSTIC = "never told that the task has changed (task-agnostic)"
_SUFFIX = "-ta"


@dataclass(frozen=True)
class Method:
    """What is said of a method, and how it is drawn."""

    label: str
    colour: str  # of ``hcl.report.figures.PALETTE``
    marker: str  # as matplotlib names it
    sentence: str  # what it is
    origin: Origin
    take_it: str = ""  # when to prefer it: the sentence goes on after "Take it"
    upper_bound: bool = False  # sees what a continual learner may not: left out of "best"


METHODS: dict[str, Method] = {
    "adam": Method(
        label="Adam",
        colour="muted",
        marker="X",
        sentence="plain training, nothing done against forgetting: the lower bound",
        origin="the paper's",
        take_it="to see how much is forgotten when nothing is done about it.",
    ),
    "mtl": Method(
        label="MTL",
        colour="ink",
        marker="s",
        sentence="sees all earlier tasks again while it trains: the upper bound, left out of "
        "“best”",
        origin="the paper's",
        take_it="when all data may be kept and seen again.",
        upper_bound=True,
    ),
    "joint": Method(
        label="Joint",
        colour="teal",
        marker="H",
        sentence="a network with one hidden layer that is trained on all data of all tasks at once "
        "and often: for reference, left out of “best”",
        origin="beyond the paper",
        take_it="to see what there is to gain when nothing has to be learned in turn.",
        upper_bound=True,
    ),
    "er": Method(
        label="ER",
        colour="orange",
        marker="D",
        sentence="replays stored samples of earlier tasks",
        origin="the paper's",
        take_it="when some samples of each task may be kept.",
    ),
    "curl": Method(
        label="CURL",
        colour="pink",
        marker="v",
        sentence="a variational autoencoder with one latent Gaussian a class; it knows no tasks",
        origin="the paper's",
        take_it="to compare with another generative model; it never says which task a sample is "
        "of.",
    ),
    "hcl-gr": Method(
        label="HCL-GR",
        colour="vermillion",
        marker="^",
        sentence="the flow with generative replay",
        origin="the paper's",
        take_it="when no sample may be kept and there is no time to tune α.",
    ),
    "hcl-fr": Method(
        label="HCL-FR",
        colour="blue",
        marker="o",
        sentence="the flow with functional regularisation",
        origin="the paper's",
        take_it="for the paper's main method: no sample is kept, and α weighs old tasks against "
        "the new one.",
    ),
    "hcl-gr-ta": Method(
        label="HCL-GR (TA)",
        colour="vermillion",
        marker="^",
        sentence=f"the flow with generative replay; {TASK_AGNOSTIC}",
        origin="the paper's",
        take_it="as HCL-GR, when nobody says that the task changes.",
    ),
    "hcl-fr-ta": Method(
        label="HCL-FR (TA)",
        colour="blue",
        marker="o",
        sentence=f"the flow with functional regularisation; {TASK_AGNOSTIC}",
        origin="the paper's",
        take_it="as HCL-FR, when nobody says that the task changes.",
    ),
    "hcl-gr-auto": Method(
        label="HCL-GR (auto)",
        colour="vermillion",
        marker="p",
        sentence=f"the flow with generative replay and the calibrated detector; {TASK_AGNOSTIC}",
        origin="beyond the paper",
        take_it="in place of HCL-GR (TA) on a stream that nobody has chosen a λ for.",
    ),
    "hcl-fr-auto": Method(
        label="HCL-FR (auto)",
        colour="blue",
        marker=".",
        sentence="the flow with functional regularisation and the calibrated detector; "
        f"{TASK_AGNOSTIC}",
        origin="beyond the paper",
        take_it="in place of HCL-FR (TA) on a stream that nobody has chosen a λ for.",
    ),
    "hcl-fr-measured": Method(
        label="HCL-FR, measured draws",
        colour="blue",
        marker="*",
        sentence="HCL-FR with replay drawn where the latents of earlier tasks were",
        origin="beyond the paper",
        take_it="in place of HCL-FR when each sample is seen once.",
    ),
    "hcl-gr-fixed": Method(
        label="HCL-GR, fixed replay",
        colour="vermillion",
        marker="d",
        sentence="HCL-GR with as many draws in a step, whatever the number of earlier tasks",
        origin="beyond the paper",
        take_it="in place of HCL-GR when steps must not cost more with every task.",
    ),
    "hcl-fr-fixed": Method(
        label="HCL-FR, fixed replay",
        colour="blue",
        marker="8",
        sentence="HCL-FR with as many draws in a step, whatever the number of earlier tasks",
        origin="beyond the paper",
        take_it="in place of HCL-FR when steps must not cost more with every task; with many it "
        "forgets more.",
    ),
    "hcl-fr-trimmed-ta": Method(
        label="HCL-FR, trimmed (TA)",
        colour="blue",
        marker="p",
        sentence=f"HCL-FR that leaves the two ends of a batch out of its statistics; "
        f"{TASK_AGNOSTIC}",
        origin="beyond the paper",
        take_it="in place of HCL-FR (TA) when single strange images raise false alarms.",
    ),
    "hcl-plus": Method(
        label="HCL+",
        colour="green",
        marker="P",
        sentence="a measured Gaussian for each class of each task, and a regression beside them",
        origin="beyond the paper",
        take_it="when accuracy matters most and the embeddings are good.",
    ),
    "hcl-plus-ta": Method(
        label="HCL+ (TA)",
        colour="green",
        marker="P",
        sentence="a measured Gaussian for each class of each task, and a regression beside them; "
        f"{TASK_AGNOSTIC}",
        origin="beyond the paper",
        take_it="for images of your own: nobody has to say when the task changes.",
    ),
    "hcl-fr-mixed": Method(
        label="HCL-FR, mixed",
        colour="blue",
        marker="x",
        sentence="HCL-FR that infers whose each sample of a batch is",
        origin="beyond the paper",
        take_it="in place of HCL-FR when batches hold samples of several tasks.",
    ),
    "hcl-gr-mixed": Method(
        label="HCL-GR, mixed",
        colour="vermillion",
        marker="1",
        sentence="HCL-GR that infers whose each sample of a batch is",
        origin="beyond the paper",
        take_it="in place of HCL-GR when batches hold samples of several tasks.",
    ),
    "hcl-plus-mixed": Method(
        label="HCL+, mixed",
        colour="green",
        marker="2",
        sentence="HCL+ that infers whose each sample of a batch is",
        origin="beyond the paper",
        take_it="in place of HCL+ when batches hold samples of several tasks.",
    ),
    "hcl-plus-shared": Method(
        label="HCL+, with the unlabelled",
        colour="green",
        marker="4",
        sentence="HCL+ whose samples without a label are shared out between classes",
        origin="beyond the paper",
        take_it="in place of HCL+ when few samples have a label.",
    ),
    "hcl-gr-labelled": Method(
        label="HCL-GR, labelled alone",
        colour="vermillion",
        marker="3",
        sentence="HCL-GR without the samples that have no label",
        origin="beyond the paper",
        take_it="beside HCL-GR, to see what samples without a label bring.",
    ),
    "hcl-fr-labelled": Method(
        label="HCL-FR, labelled alone",
        colour="sky",
        marker="+",
        sentence="HCL-FR without the samples that have no label",
        origin="beyond the paper",
        take_it="beside HCL-FR, to see what samples without a label bring.",
    ),
    "ncm": Method(
        label="NCM",
        colour="sky",
        marker="<",
        sentence="nearest class mean",
        origin="closed form",
        take_it="as the simplest thing that a learner has to beat.",
    ),
    "slda": Method(
        label="SLDA",
        colour="olive",
        marker=">",
        sentence="streaming linear discriminant analysis",
        origin="closed form",
        take_it="when changes are told and training must be quick.",
    ),
    "ranpac": Method(
        label="RanPAC",
        colour="wine",
        marker="h",
        sentence="random projection and ridge regression",
        origin="closed form",
        take_it="as SLDA, where classes are not told apart by a straight line.",
    ),
}


def entry(name: str) -> Method:
    """What is said of the method ``name``, whatever it is called.

    A name that is not listed stands for a variant of the longest listed name that it begins with:
    ``hcl-fr-anything`` is "HCL-FR, anything", in the colour of HCL-FR; ``x-ta`` is ``x`` that is
    not told of changes. A variant is not the paper's, and is recommended for nothing. A name that
    begins with none is shown as it is.
    """
    if name in METHODS:
        return METHODS[name]
    if name.endswith(_SUFFIX) and name != _SUFFIX:
        told = entry(name.removesuffix(_SUFFIX))
        sentence = "; ".join(part for part in (told.sentence, TASK_AGNOSTIC) if part)
        return replace(_variant(told), label=f"{told.label} (TA)", sentence=sentence)
    near = [known for known in METHODS if name.startswith(f"{known}-")]
    if near:
        of = max(near, key=len)
        words = one_line(name.removeprefix(f"{of}-").replace("-", " "))
        base = _variant(METHODS[of])
        said = f"a variant of {base.label}"
        return replace(base, label=f"{base.label}, {words}", marker="d", sentence=said)
    return Method(one_line(name), colour="teal", marker="d", sentence="", origin="your own")


def _variant(method: Method) -> Method:
    own = method.origin == "your own"
    return replace(method, origin=method.origin if own else "beyond the paper", take_it="")


def label(name: str) -> str:
    """The method's name as the paper writes it: ``hcl-fr-ta`` is "HCL-FR (TA)"."""
    return entry(name).label


@dataclass(frozen=True)
class Metric:
    """A number of the headline, and what it counts."""

    label: str
    sentence: str
    lower_is_better: bool = False


# In the order of the paper's columns. A sentence says what one would tell a reader who has not
# read the paper: an average of 94 % was quoted as "names the cats", which only the last one counts.
METRICS: dict[str, Metric] = {
    "average_accuracy": Metric(
        "average accuracy",
        "The share of a task's test images whose place in the task is named rightly at the end "
        "(with pairs of classes: the first or the second of its pair, not “cat”), mean over tasks.",
    ),
    "forgetting": Metric(
        "forgetting",
        "How many points of this share a task has lost since it was first learned, mean over the "
        "tasks that something came after.",
        lower_is_better=True,
    ),
    "overall_accuracy": Metric(
        "overall accuracy",
        "The share of all test images whose task and place in it are both named rightly: “cat”, "
        "among all classes of all tasks.",
    ),
}

STATISTICS: dict[str, str] = {
    "log_px": "log-likelihood S₁",
    "log_pz": "latent log-likelihood S₂",
    "log_det": "log-determinant S₃",
    "mean_shift": "shift of the class means",
    "common_shift": "shift of their mean",
    "spread": "spread around the class means",
    "evidence": "evidence of a change E",
}


def statistic_label(name: str) -> str:
    """What a detector's statistic is called in figures; one that is not listed, by its name."""
    return STATISTICS.get(name, name)
