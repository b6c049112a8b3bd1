"""What a step of the papers' models takes and sends by our model of the machine, which needs no TPU's compiler.

`make paper-costs` prints a row for each model of `paper_models.py`; with CASES="2048E 36L" for those that have these
words in their name. With WRITE=1 the rows get into docs/papers.md.
"""

from __future__ import annotations

import datetime
from collections import Counter

from paper_models import MODELS, Model
from papers import PAGE, partitioned
from table import Row, Table, asked, line

KINDS = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter")
HEAD = ("model", "cores", "step, s", "network, s", "steps / s", "paper's", *KINDS, "date")


def row(model: Model, cores: int, seconds: float, network: float, sent: dict[str, tuple[int, float]]) -> Row:
    """Of each kind of collective: how often a core executes it, and the GiB that it receives."""
    cells = (f"{sent[kind][1]:.1f} in {sent[kind][0]:,}" if kind in sent else "-" for kind in KINDS)
    paper = "-" if model.steps is None else f"{model.steps:.2g}"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return model.name, f"{cores:,}", f"{seconds:.3g}", f"{network:.2g}", f"{1 / seconds:.2g}", paper, *cells, today


def reckoned(model: Model) -> Row:
    step = partitioned(model)
    cost = step.cost().total
    times, received = Counter[str](), Counter[str]()
    for each in step.collectives():
        times[each.kind] += each.count or 1
        received[each.kind] += (each.count or 1) * (each.bytes or 0)
    sent = {kind: (times[kind], received[kind] / 2**30) for kind in times}
    return row(model, step.program.mesh.size, cost.seconds, cost.network, sent)


def main() -> None:
    words, writes = asked(__doc__, "what the names of models have to contain", PAGE)
    names = [model.name for model in MODELS]
    begin, end = "make paper-costs WRITE=1", "end of paper-costs"
    table = Table(begin, end, HEAD, names, lambda rows: f"{len(rows)} models.", PAGE)
    print(line(HEAD), flush=True)
    for model in MODELS:
        if all(word in model.name for word in words):
            found = reckoned(model)
            print(line(found), flush=True)
            if writes:
                table.put([found])


if __name__ == "__main__":
    main()
