"""The usual assumptions of identifiability theory: which hold for a model by its construction.

Nothing is estimated. A verdict follows from the mechanisms as they are written, from the scene's
rules, and from what is sampled: environments, counterfactuals, views or sequences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from threedident.causal.mechanisms import (
    Choice,
    Constant,
    Domain,
    Draw,
    Mechanism,
    Shift,
    Stay,
    Table,
    Uniform,
)
from threedident.causal.model import (
    OBSERVED,
    CausalModel,
    Mechanisms,
    Variable,
    base_column,
)
from threedident.causal.sampling import Sampling
from threedident.factors import FACTOR_NAMES, FACTORS

HOLDS, FAILS, UNKNOWN = "holds", "fails", "unknown"
VERDICTS = (HOLDS, FAILS, UNKNOWN)

_TURN = 2 * math.pi
_NEARLY = 1e-6  # rad
_SHOWN = 6  # names in a line
#: Columns that are the same again after a turn.
_TURNING = tuple(each.name for each in FACTORS if each.unit == "rad")
_HUES = tuple(each.name for each in FACTORS if each.group == "hue")


@dataclasses.dataclass(frozen=True)
class Assumption:
    """An assumption, and whether it holds.

    Attributes:
        about: the images that it is about: images, environments, counterfactuals, views, sequences.
        key: a short name.
        text: the assumption, a sentence.
        verdict: holds, fails, or unknown where it cannot be told from the model.
        reason: the reason, which names the variables.
        papers: some of the papers that assume it, as author and year.
    """

    about: str
    key: str
    text: str
    verdict: str
    reason: str
    papers: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """The assumption as plain data."""
        return dataclasses.asdict(self) | {"papers": list(self.papers)}


def model_assumptions(model: CausalModel) -> tuple[Assumption, ...]:
    """Check the assumptions of everything that a model's file can give: see `Sampling`.

    Args:
        model: the model; its environments are taken together, beside the model as it is.
    """
    found = list(sampling_assumptions(Sampling(model)))
    samplings = []
    if model.environments:
        samplings.append(Sampling(model, environments=(OBSERVED, *model.environments)))
    samplings += [Sampling(model, view=name) for name in model.views]
    if model.has_time:
        samplings.append(Sampling(model, steps=2))
    for sampling in samplings:
        found += [each for each in sampling_assumptions(sampling) if each.about != "images"]
    return tuple(found)


def sampling_assumptions(sampling: Sampling) -> tuple[Assumption, ...]:
    """Check the assumptions of what is sampled.

    Args:
        sampling: the sampling. Of pairs and sequences, the assumptions about single images are
            those of their first ones.
    """
    found = [*_images(sampling)]
    if sampling.environments or sampling.do:
        found += _environments(sampling)
    if sampling.group == "counterfactual":
        found += _counterfactuals(sampling)
    if sampling.group == "views":
        found += _views(sampling)
    if sampling.group == "sequence":
        found += _sequences(sampling)
    return tuple(found)


# Mechanisms


def support(mechanism: Mechanism, domain: Domain) -> str:
    """What values a mechanism can give, whatever its variable's parents are.

    Returns:
        "range" for all of its variable's range, "part" for a part that is always the same, "point"
        for one value that is always the same, "function" for one value that follows from other
        variables, and "varies" for a set that does.
    """
    parents = _inputs(mechanism)
    match mechanism:
        case Shift():
            inner = support(mechanism.of, domain)
            return "part" if inner == "range" and domain.kind == "continuous" else inner
        case Constant():
            return "function" if parents else "point"
        case Uniform() if domain.kind != "discrete" and not mechanism.is_whole:
            ends = [None if e is None else e.text for e in (mechanism.low, mechanism.high)]
            if ends[0] == ends[1]:
                return "function" if parents else "point"
            return "varies" if parents else "part"
        case Choice() if mechanism.probabilities:
            some = sum(share > 0 for share in mechanism.probabilities)
            kind = "range" if some == len(domain.values) else "part" if some > 1 else "point"
        case Stay() if not mechanism.redraw:
            kind = "function"
        case Table():
            kind = _of_cases(mechanism, domain)
        case _:
            kind = "range"
    return "point" if domain.kind == "discrete" and len(domain.values) == 1 else kind


def _of_cases(table: Table, domain: Domain) -> str:
    cases = [each for _, each in table.cases]
    cases += [] if table.otherwise is None else [table.otherwise]
    kinds = {support(each, domain) for each in cases}
    if kinds == {"range"}:
        return "range"
    if len(set(map(repr, cases))) == 1:
        return kinds.pop()
    return "function" if kinds <= {"point", "function"} else "varies"


def _silent(mechanism: Mechanism, domain: Domain) -> bool:
    """Whether a mechanism has no noise, at least in one of its cases."""
    return support(mechanism, domain) in ("point", "function") or any(
        support(part, domain) in ("point", "function") for part in mechanism.parts()
    )


def _inputs(mechanism: Mechanism) -> frozenset[str]:
    return mechanism.frames("") | mechanism.frames("previous") | mechanism.frames("first")


# Sentences


def _some(names: Iterable[str]) -> str:
    """Join names; many are cut."""
    listed = list(dict.fromkeys(names))
    more = len(listed) - _SHOWN
    if more > 0:
        return f"{', '.join(listed[:_SHOWN])} and {more} more"
    return " and ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))


def _verb(names: Sequence[str], one: str, many: str) -> str:
    return f"{_some(names)} {one if len(set(names)) == 1 else many}"


# Single images


@dataclasses.dataclass(frozen=True)
class _Law:
    """The mechanisms of images, and the variables that vary among them."""

    model: CausalModel
    mechanisms: Mechanisms

    @property
    def latents(self) -> list[Variable]:
        """The variables that are not one and the same number."""
        return [v for v in self.model.variables if self.support(v) != "point"]

    @property
    def held(self) -> list[str]:
        return [v.name for v in self.model.variables if self.support(v) == "point"]

    def support(self, variable: Variable) -> str:
        return support(self.mechanisms[variable.name], variable.domain)

    def parents(self, name: str) -> list[str]:
        """Its parents in the same image that vary, in the order of the variables."""
        parents = self.mechanisms[name].frames("") - {*self.held}
        return [each for each in self.model.names if each in parents]

    def edges(self) -> Iterator[tuple[str, str]]:
        for variable in self.latents:
            for parent in self.parents(variable.name):
                yield parent, variable.name


_Finding = tuple[str, str]


def _images(sampling: Sampling) -> Iterator[Assumption]:
    environments = sampling.environments or (OBSERVED,)
    laws = {
        name: _Law(sampling.model, sampling._drawn(number))
        for number, name in enumerate(environments)
    }
    for key, (text, check, papers) in _OF_IMAGES.items():
        findings = {name: check(law) for name, law in laws.items()}
        worst = max(findings, key=lambda name: (HOLDS, UNKNOWN, FAILS).index(findings[name][0]))
        verdict, reason = findings[worst]
        if verdict != HOLDS and len(laws) > 1:
            reason = f"in {worst}: {reason}"
        yield Assumption("images", key, text, verdict, reason, papers)


def _independent(law: _Law) -> _Finding:
    edges = list(law.edges())
    if not edges:
        return HOLDS, "no variable has a parent"
    children = list(dict.fromkeys(child for _, child in edges))
    first = [f"{child} on {_some(law.parents(child))}" for child in children[:3]]
    more = f"; {len(children) - 3} more have parents" if len(children) > 3 else ""
    return FAILS, f"depend on others: {'; '.join(first)}{more}"


def _uniform(law: _Law) -> _Finding:
    other, children = [], []
    for variable in law.latents:
        mechanism, name = law.mechanisms[variable.name], variable.name
        while isinstance(mechanism, Shift) and variable.kind == "circular":
            mechanism = mechanism.of
        if isinstance(mechanism, Uniform) and law.support(variable) in ("range", "part"):
            continue
        if isinstance(mechanism, Choice) and len(set(mechanism.probabilities)) <= 1:
            continue
        (children if law.parents(name) else other).append(name)
    if other:
        return FAILS, f"{_verb(other, 'has', 'have')} another law"
    if children:
        return UNKNOWN, f"the marginals of {_some(children)} follow from their parents"
    return HOLDS, "each is drawn evenly from its values"


def _product(law: _Law) -> _Finding:
    names = [v.name for v in law.latents if law.support(v) in ("function", "varies")]
    if names:
        return FAILS, f"the values that {_some(names)} can take depend on other variables"
    return HOLDS, "every combination of the variables' values can occur"


def _no_functions(law: _Law) -> _Finding:
    names = [v.name for v in law.latents if law.support(v) == "function"]
    if names:
        reasons = [f"{n} of {_some(law.parents(n)) or 'its parents'}" for n in names[:3]]
        more = f"; {len(names) - 3} more" if len(names) > 3 else ""
        return FAILS, f"functions without noise: {'; '.join(reasons)}{more}"
    return HOLDS, "no mechanism is a constant of other variables"


def _noise(law: _Law) -> _Finding:
    names = [v.name for v in law.latents if _silent(law.mechanisms[v.name], v.domain)]
    if names:
        return FAILS, f"{_verb(names, 'has', 'have')} none, or none in some cases"
    held = law.held
    left_out = f"; {_verb(held, 'is one number', 'are one number each')}, left out" if held else ""
    return HOLDS, f"each has noise of its own{left_out}"


def _box(law: _Law) -> _Finding:
    reasons = [
        _verb(names, f"is {kind}", f"are {kind}")
        for kind in ("discrete", "circular")
        if (names := [v.name for v in law.latents if v.kind == kind])
    ]
    if reasons:
        return FAILS, "; ".join(reasons)
    return HOLDS, "all have an interval of numbers"


def _injective(law: _Law) -> _Finding:
    model, preset = law.model, law.model.preset
    reasons = []
    unseen = [v.name for v in law.latents if not v.renders]
    if unseen:
        reasons.append(_verb(unseen, "renders nothing", "render nothing"))
    ranges, fixed = dict(preset.ranges), dict(preset.fixed)
    flat, rings = [], []
    held = {*law.held}
    for variable in model.variables:
        column = variable.renders
        if not column or base_column(column) not in ranges:
            continue
        if variable.name in held:
            if column in FACTOR_NAMES:
                fixed[column] = _raw(law, variable)
            continue
        low, high = variable.scene or ranges[base_column(column)]
        if low == high:
            flat.append(variable.name)
        elif variable.kind == "circular" and abs(high - low - _TURN) <= _NEARLY:
            if column in FACTOR_NAMES:  # whose ends are one value: no two values look alike
                ranges[column] = (low, high - 1e-3)
        elif base_column(column) == "spotlight_position" and high - low >= _TURN - _NEARLY:
            rings.append(variable.name)
    if flat:
        reasons.append(f"the scene's range of {_some(flat)} is one value")
    if rings:
        reasons.append(f"{_verb(rings, 'spans', 'span')} a full turn or more")
    seen = dataclasses.replace(preset, ranges=ranges, fixed=fixed)
    reasons += seen.ambiguities()
    if reasons:
        return FAILS, "; ".join(reasons)
    return HOLDS, "by the scene's rules, no two values look alike where the object is in the frame"


def _raw(law: _Law, variable: Variable) -> float:
    """The raw value of a factor whose variable is one number."""
    names = law.model.names
    zero = dict.fromkeys(names, np.zeros(1))
    at = Draw(variable.domain, np.full((1, 2), 0.5), zero, zero, zero)
    row = np.zeros((1, len(names)))
    row[:, names.index(variable.name)] = law.mechanisms[variable.name].draw(at)
    return float(law.model.raw_latents(row)[0, FACTOR_NAMES.index(variable.renders)])


def _smooth(law: _Law) -> _Finding:
    preset, jumping = law.model.preset, []
    for variable in law.latents:
        column = base_column(variable.renders)
        if variable.kind != "circular" or not column:
            continue
        low, high = variable.scene or preset.ranges[column]
        turns = (high - low) / _TURN
        whole = column in _TURNING and abs(turns - round(turns)) <= _NEARLY and round(turns) >= 1
        if not whole or (column in _HUES and preset.hue == "unwrapped" and low < 0):
            jumping.append(variable.name)
    if jumping:
        return FAILS, f"the image jumps where the {_verb(jumping, 'circle', 'circles')} closes"
    classes = [v.name for v in law.latents if v.kind == "discrete" and v.renders]
    if classes:
        return FAILS, f"the image jumps from class to class of {_some(classes)}"
    return HOLDS, "every rendered value moves the scene without a jump"


_INDEPENDENT = ("Hyvärinen & Morioka 2017", "Locatello et al. 2020")
_PRODUCT = ("Wang & Jordan 2021", "Roth et al. 2023", "Ahuja et al. 2023")
_SMOOTH = ("von Kügelgen et al. 2021", "Zimmermann et al. 2021", "Lachapelle et al. 2022")
_CAUSAL = ("Brehmer et al. 2022", "von Kügelgen et al. 2023")

_OF_IMAGES: dict[str, tuple[str, Callable[[_Law], _Finding], tuple[str, ...]]] = {
    "independent": ("The latents are mutually independent.", _independent, _INDEPENDENT),
    "uniform": (
        "Each latent is uniform on its values.",
        _uniform,
        ("Zimmermann et al. 2021",),
    ),
    "product": ("The support is a product: every combination occurs.", _product, _PRODUCT),
    "no_functions": ("No latent is a function of others.", _no_functions, _CAUSAL),
    "noise": ("Every mechanism has noise, in every case.", _noise, _CAUSAL),
    "box": (
        "The latents are continuous, in a box.",
        _box,
        ("Zimmermann et al. 2021", "von Kügelgen et al. 2021"),
    ),
    "injective": (
        "The mixing is injective: no two latents share an image.",
        _injective,
        (*_SMOOTH, "Khemakhem et al. 2020"),
    ),
    "smooth": ("The image moves continuously with the latents.", _smooth, _SMOOTH),
}


# Environments


def _observed(model: CausalModel) -> _Law:
    return _Law(model, {variable.name: variable.mechanism for variable in model.variables})


def _environments(sampling: Sampling) -> Iterator[Assumption]:
    model, names = sampling.model, sampling.environments or (OBSERVED,)
    laws = {name: sampling._replaced(n, counterfactual=False) for n, name in enumerate(names)}
    observed = [name for name, law in laws.items() if not law]
    yield Assumption(
        "environments",
        "observed",
        "One environment is without intervention.",
        HOLDS if observed else FAILS,
        f"{observed[0]}" if observed else f"{_some(names)} have interventions each",
        ("Squires et al. 2023", "Zhang et al. 2023"),
    )
    yield Assumption(
        "environments",
        "known_targets",
        "It is known which variables are intervened on.",
        HOLDS,
        "targets and environment are stored with every image",
        ("Lippe et al. 2022",),
    )
    own = [v.name for v in _observed(model).latents]
    yield _of_each("environments", [*laws.values()], own)
    yield _perfect("environments", laws)
    yield _twice(laws, own)
    yield Assumption(
        "environments",
        "variability",
        "The environments differ enough (sufficient variability).",
        UNKNOWN,
        "a condition on all densities at once; more environments make it likelier",
        ("Hyvärinen et al. 2019", "Khemakhem et al. 2020"),
    )


def _of_each(about: str, laws: Sequence[Mechanisms], names: Sequence[str]) -> Assumption:
    alone = {next(iter(law)) for law in laws if len(law) == 1}
    missing = [name for name in names if name not in alone]
    text = "Each variable is intervened on, alone."
    papers = ("Squires et al. 2023", "Ahuja et al. 2023", "Brehmer et al. 2022")
    if missing:
        reason = f"{_verb(missing, 'is', 'are')} never intervened on alone"
        return Assumption(about, "single_node", text, FAILS, reason, papers)
    return Assumption(about, "single_node", text, HOLDS, "one intervention for each", papers)


def _perfect(about: str, laws: Mapping[str, Mechanisms]) -> Assumption:
    text = "Interventions are perfect: they cut all parents."
    papers = ("Squires et al. 2023", "von Kügelgen et al. 2023", "Brehmer et al. 2022")
    soft = [
        f"{each} in {name}" if about == "environments" else each
        for name, law in laws.items()
        for each, mechanism in law.items()
        if mechanism.frames("")
    ]
    if soft:
        reason = f"{_verb(soft, 'keeps', 'keep')} parents"
        return Assumption(about, "perfect", text, FAILS, reason, papers)
    if not any(laws.values()):
        return Assumption(about, "perfect", text, FAILS, "there are no interventions", papers)
    reason = "no mechanism that is put in looks at another variable"
    return Assumption(about, "perfect", text, HOLDS, reason, papers)


def _twice(laws: Mapping[str, Mechanisms], names: Sequence[str]) -> Assumption:
    seen: dict[str, set[str]] = {name: set() for name in names}
    for law in laws.values():
        if len(law) == 1:
            for name, mechanism in law.items():
                seen.setdefault(name, set()).add(repr(mechanism))
    few = [name for name in names if len(seen[name]) < 2]
    text = "Each variable is intervened on, alone, in two different ways."
    papers = ("von Kügelgen et al. 2023",)
    key, about = "paired", "environments"
    if few:
        return Assumption(about, key, text, FAILS, f"not so: {_some(few)}", papers)
    return Assumption(about, key, text, HOLDS, "two laws or more for each", papers)


def _counterfactuals(sampling: Sampling) -> Iterator[Assumption]:
    about, model = "counterfactuals", sampling.model
    yield Assumption(
        about,
        "same_noise",
        "Both images of a pair have the same noise.",
        HOLDS,
        "the second is a second evaluation on it",
        ("Brehmer et al. 2022",),
    )
    law = {name: sampling._replaced(0, counterfactual=True)[name] for name in sampling.counterfactual}
    yield _of_each(about, [law], [v.name for v in _observed(model).latents])
    yield _perfect(about, {"": law})


# Views


def _views(sampling: Sampling) -> Iterator[Assumption]:
    model, view = sampling.model, sampling.view
    law = _Law(model, sampling._drawn(0))
    second = model.view(view)
    roles: dict[str, list[str]] = {"content": [], "style": [], "private": []}
    mixing = []
    for variable in model.variables:
        rendered = base_column(variable.renders)
        if rendered == "material" and variable.name in second:
            mixing.append(variable.name)
        elif variable.name in second or variable.name not in law.held:
            roles[model.role(variable.name, view)].append(variable.name)
    content, style, private = roles.values()
    about, changing = "views", [*style, *private]
    papers = ("von Kügelgen et al. 2021", "Daunhawer et al. 2023")
    yield Assumption(
        about,
        "content",
        "Content is the same in both views.",
        HOLDS if content else FAILS,
        f"copied: {_some(content)}" if content else "no variable is copied",
        (*papers, "Yao et al. 2024"),
    )
    narrow = [n for n in style if support(second[n], model[n].domain) != "range"]
    if narrow:
        reason = f"{_some(narrow)} cannot take every value in the second view"
    elif style:
        reason = f"{_some(style)} can take every value in the second view"
    else:
        reason = "no variable is style"
    yield Assumption(
        about,
        "style",
        "Style changes, with full support.",
        FAILS if narrow else HOLDS,
        reason,
        papers,
    )
    back = [f"{p} -> {c}" for p, c in law.edges() if p in changing and c in content]
    yield Assumption(
        about,
        "content_first",
        "Style does not cause content.",
        FAILS if back else HOLDS,
        _some(back) if back else "no arrow leads from what changes to what is copied",
        papers[:1],
    )
    if private:
        tied = [n for n in private if law.parents(n) or second[n].frames("")]
        tied += [c for p, c in law.edges() if p in private and c not in private]
        yield Assumption(
            about,
            "private",
            "What is private to a view is independent of all else.",
            FAILS if tied else HOLDS,
            f"{_verb(tied, 'depends', 'depend')} on other variables"
            if tied
            else f"{_verb(private, 'has', 'have')} neither parents nor children",
            papers[1:],
        )
    yield Assumption(
        about,
        "same_mixing",
        "Both views have the same mixing.",
        FAILS if mixing else HOLDS,
        f"{_verb(mixing, 'differs', 'differ')}: two mixings, as of two modalities"
        if mixing
        else "one scene renders both",
        papers[:1],
    )


# Time


def _sequences(sampling: Sampling) -> Iterator[Assumption]:
    model, about = sampling.model, "sequences"
    law = _Law(model, sampling.later_law())
    edges = list(law.edges())
    yield Assumption(
        about,
        "given_past",
        "Given the past, the latents are independent (no parents in the same frame).",
        FAILS if edges else HOLDS,
        _some(f"{parent} -> {child}" for parent, child in edges)
        if edges
        else "all parents are of the frame before",
        ("Klindt et al. 2021", "Lachapelle et al. 2022", "Lippe et al. 2022", "Yao et al. 2022"),
    )
    verdict, reason = _noise(law)
    yield Assumption(
        about,
        "noise",
        "Every transition has noise, in every case.",
        verdict,
        reason,
        ("Lachapelle et al. 2022", "Yao et al. 2022"),
    )
    yield from _targets(model, law)
    yield Assumption(
        about,
        "variability",
        "The transitions vary enough (sufficient variability).",
        UNKNOWN,
        "a condition on derivatives of log densities, which no file states",
        ("Lachapelle et al. 2022", "Yao et al. 2022"),
    )


def _targets(model: CausalModel, law: _Law) -> Iterator[Assumption]:
    about, papers = "sequences", ("Lippe et al. 2022", "Lippe et al. 2023")
    interventions = model.interventions
    idle = interventions.targets == "none" or interventions.observed == 1
    yield Assumption(
        about,
        "known_targets",
        "Variables are intervened on in time, with known targets.",
        FAILS if idle else HOLDS,
        "there are no interventions" if idle else "the targets are stored with every image",
        papers,
    )
    names = [v.name for v in law.latents]
    hits = {
        name: frozenset(n for n, group in enumerate(interventions.groups) if name in group)
        for name in names
    }
    never = [name for name in names if idle or not hits[name]]
    together = [
        [name for name in names if hits[name] == which]
        for which in dict.fromkeys(hits.values())
        if which
    ]
    together = [group for group in together if len(group) > 1]
    if never:
        reason = f"{_verb(never, 'is', 'are')} never hit"
    else:
        reason = "hit together, so one variable to the theory: " + "; ".join(map(_some, together))
    yield Assumption(
        about,
        "single_node",
        "Each variable has targets of its own.",
        FAILS if never or together else HOLDS,
        reason if never or together else "no two are always hit together",
        papers,
    )
    if not idle:
        yield Assumption(
            about,
            "perfect",
            "Interventions in time are perfect: they cut all parents.",
            HOLDS,
            "a variable that is hit is uniform on its values",
            papers[1:],
        )
