"""How well and how fast tools are found, on sets that are read where they are.

    .venv/bin/python bench/search.py --sets DIR [--catalogue FILE]

DIR has tools.json and queries.json (real servers, and recorded queries with the tool that was then called, by task),
and reference-tools.json and reference-queries.json. FILE is what bench/catalogue_corpus.py has fetched; its queries are
bench/catalogue_queries.json. Weights were chosen on every other task (`tuned on`); the rest was looked at afterwards.
Recall at k: one of the right tools is among the k that are shown. Learning is measured by folds of whole tasks: what is
asked in a task was never learned from that task. Times are CPU time.
"""

import argparse
import gc
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.protocol.search._words import STOP_WORDS, split_name, words_of
from app.protocol.search.documents import Definition, Document, Source
from app.protocol.search.index import ToolIndex
from app.protocol.search.learned import MAX_QUERIES, Learned
from app.protocol.search.reading import Reading

QUERIES = Path(__file__).with_name("catalogue_queries.json")
AT = (1, 3, 5, 10)
FOLDS = 10
MANY = 3_000
BYTES_PER_TOKEN = 4  # of English and JSON, about

Tool = dict[str, Any]
Rank = Callable[[str, int], list[str]]  # query and how many -> ids


class Case(NamedTuple):
    task: str
    query: str
    right: frozenset[str]


class Set(NamedTuple):
    name: str
    tools: list[Tool]
    cases: list[Case]


# --- the sets


def live(folder: Path) -> Set:
    tools = [{**each, "id": str(each["id"])} for each in json.loads((folder / "tools.json").read_text())]
    queries = json.loads((folder / "queries.json").read_text())
    cases = [Case(each["task"], each["query"], frozenset(map(str, each["tools"]))) for each in queries]
    return Set(f"recorded runs, {len(tools)} tools", tools, cases)


def reference(folder: Path) -> Set:
    rows = json.loads((folder / "reference-tools.json").read_text())
    tools = [{**each, "id": each["tool_id"], "name": each["tool"]} for each in rows]
    cases = []
    for each in json.loads((folder / "reference-queries.json").read_text()):
        right = frozenset(label["tool_id"] for label in each["labels"] if label["relevance"] > 0)
        cases.append(Case(each["id"], each["query"], right))
    return Set(f"reference servers, {len(tools)} tools", tools, cases)


def catalogue(file: Path) -> Set:
    """Queries for tools that the catalogue does not have any more are left out, and counted in the name."""
    tools = [{**each, "id": f"{each['server']}:{each['name']}"} for each in json.loads(file.read_text())]
    known = frozenset(each["id"] for each in tools)
    cases = []
    for each in (rows := json.loads(QUERIES.read_text())):
        if right := known.intersection(each["right"]):
            cases.append(Case(each["query"], each["query"], right))
    return Set(f"catalogue, {len(tools)} tools ({len(rows) - len(cases)} queries for none)", tools, cases)


def documents(tools: Iterable[Tool], more: dict[str, list[str]] | None = None) -> list[Document]:
    sources: dict[str, Source] = {}
    found = []
    for each in tools:
        server = each["server"]
        if server not in sources:
            sources[server] = Source(server, each.get("server_title"), each.get("server_description"))
        found.append(Document(each["id"], sources[server], definition_of(each, *(more or {}).get(each["id"], []))))
    return found


def definition_of(tool: Tool, *more: str) -> Definition:
    text = " ".join([tool.get("description") or "", *more])
    return Definition(tool["name"], tool.get("title"), text, tool.get("inputSchema"))


# --- what is compared


class Plain:
    """BM25 as textbooks have it, over name, description, server and parameters alike: words as they are written."""

    def __init__(self, tools: list[Tool], more: dict[str, list[str]] | None = None) -> None:
        self._ids = [each["id"] for each in tools]
        bags = [Counter(plain_words(" ".join([text_of(each), *(more or {}).get(each["id"], [])]))) for each in tools]
        mean = sum(bag.total() for bag in bags) / len(bags)
        having = Counter(word for bag in bags for word in bag)
        self._impacts: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, bag in enumerate(bags):
            norm = 1.2 * (0.25 + 0.75 * bag.total() / mean)
            for word, count in bag.items():
                rarity = math.log(1 + (len(bags) - having[word] + 0.5) / (having[word] + 0.5))
                self._impacts[word].append((number, rarity * 2.2 * count / (norm + count)))

    def __call__(self, query: str, limit: int) -> list[str]:
        scores: defaultdict[int, float] = defaultdict(float)
        for word in plain_words(query):
            for number, impact in self._impacts.get(word, ()):
                scores[number] += impact
        return [self._ids[each] for each in sorted(scores, key=lambda each: (-scores[each], each))[:limit]]


def plain_words(text: str) -> list[str]:
    return [word for word in words_of(split_name(text)) if word not in STOP_WORDS]


def text_of(tool: Tool) -> str:
    parameters = (tool.get("inputSchema") or {}).get("properties") or {}
    described = [str(each.get("description") or "") for each in parameters.values() if isinstance(each, dict)]
    texts = [str(tool.get(key) or "") for key in ("name", "description", "server", "server_title")]
    return " ".join([*texts, *parameters, *described])


def ours(index: ToolIndex, learned: Learned | None = None) -> Rank:
    def rank(query: str, limit: int) -> list[str]:
        return [hit.id for hit in index.search(query, limit, learned.evidence(query, 0) if learned else {})]

    return rank


class Recall:
    """Counts at each of AT: with 5 shown, the first 5 may be others than the first 5 of 10."""

    def __init__(self) -> None:
        self._found = dict.fromkeys(AT, 0)
        self._cases = 0

    def add(self, rank: Rank, case: Case) -> None:
        self._cases += 1
        for most in AT:
            self._found[most] += bool(case.right.intersection(rank(case.query, most)))

    def __str__(self) -> str:
        figures = " | ".join(f"{self._found[most] / max(1, self._cases):.3f}" for most in AT)
        return f"{self._cases} | {figures}"


def head(title: str) -> None:
    print(f"\n| {title} | cases | @1 | @3 | @5 | @10 |\n|---|--:|--:|--:|--:|--:|")


def row(name: str, rank: Rank, cases: Iterable[Case]) -> None:
    recall = Recall()
    for each in cases:
        recall.add(rank, each)
    print(f"| {name} | {recall} |")


def halves(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """By task: what the weights were chosen on, and what they were not."""
    tuned = set(list(dict.fromkeys(sorted(each.task for each in cases)))[::2])
    return [each for each in cases if each.task in tuned], [each for each in cases if each.task not in tuned]


def show_recall(chosen: Set, *, tuned: bool) -> None:
    index = ToolIndex(documents(chosen.tools))
    head(chosen.name)
    row("plain BM25", Plain(chosen.tools), chosen.cases)
    row("ours", ours(index), chosen.cases)
    if tuned:
        seen, unseen = halves(chosen.cases)
        row("ours, the half it was tuned on", ours(index), seen)
        row("ours, the other half", ours(index), unseen)


# --- learning

Split = tuple[list[Case], list[Case]]  # what is learned, what is asked


def by_folds(cases: Sequence[Case]) -> list[Split]:
    tasks = sorted({each.task for each in cases})
    fold = {task: number % FOLDS for number, task in enumerate(tasks)}
    return [
        ([each for each in cases if fold[each.task] != held], [each for each in cases if fold[each.task] == held])
        for held in range(FOLDS)
    ]


def by_order(cases: Sequence[Case]) -> list[Split]:
    """The first half of the recording is learned, the second is asked; no task is in both."""
    tasks = list(dict.fromkeys(each.task for each in cases))
    first = set(tasks[: len(tasks) // 2])
    return [([each for each in cases if each.task in first], [each for each in cases if each.task not in first])]


def taught(cases: Iterable[Case]) -> Learned:
    learned = Learned()
    for each in cases:
        for tool in sorted(each.right):
            learned.learn(each.query, tool, 0)
    return learned


def appended(cases: Iterable[Case]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for each in cases:
        for tool in each.right:
            found[tool].append(each.query)
    return found


def show_learning(chosen: Set, title: str, splits: list[Split]) -> None:
    index, plain = ToolIndex(documents(chosen.tools)), Plain(chosen.tools)
    named: dict[str, dict[str, Recall]] = defaultdict(lambda: defaultdict(Recall))
    for earlier, later in splits:
        used = frozenset[str]().union(*(each.right for each in earlier))
        ways: dict[str, Rank] = {
            "plain BM25": plain,
            "plain BM25, queries appended to the tools' text": Plain(chosen.tools, appended(earlier)),
            "ours": ours(index),
            "ours, queries appended to the tools' text": ours(ToolIndex(documents(chosen.tools, appended(earlier)))),
            "ours, learned": ours(index, taught(earlier)),
        }
        for case in later:
            for which in ("all", "tools that were used before" if case.right & used else "tools that never were"):
                for way, rank in ways.items():
                    named[which][way].add(rank, case)
    head(f"{chosen.name}, {title}")
    for which, ways_of in sorted(named.items()):
        for way, recall in ways_of.items():
            print(f"| {which}: {way} | {recall} |")


# --- time and size


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Milliseconds of CPU time of each run."""
    found = []
    for _ in range(times):
        began_s = time.process_time()
        work()
        found.append((time.process_time() - began_s) * 1000)
    return found


def of_a_query(index: ToolIndex, query: str, learned: Learned | None = None) -> float:
    return timed(lambda: ours(index, learned)(query, 5), 1)[0]


def quantiles(values: list[float]) -> str:
    """Median and 99th of a hundred."""
    return f"{statistics.median(values):.2f} | {sorted(values)[len(values) * 99 // 100]:.2f}"


def after_a_change(tools: list[Tool]) -> Callable[[], object]:
    """Makes the index of these tools again, all of one server's changed, as a toolset does."""

    def indexed(earlier: Reading | None, edition: int) -> Reading:
        reading = Reading(earlier)
        found = []
        for each in tools:
            source = reading.source(each["server"], each.get("server_title"), each.get("server_description"))
            text = (id(each), edition if each["server"] == tools[0]["server"] else 0)
            found.append(reading.document(each["id"], source, text, partial(definition_of, each)))
        ToolIndex(found)
        reading.done()
        return reading

    editions = itertools.count(1)
    last = [indexed(None, 0)]

    def again() -> None:
        last[0] = indexed(last[0], next(editions))

    return again


def show_times(chosen: Set) -> None:
    """Of a catalogue that is the set several times over: every word is as frequent in it as in the set."""
    rounds = -(-MANY // len(chosen.tools))
    tools = [
        {**each, "id": f"{each['id']}.{n}", "server": f"{each['server']} {n}"}
        for n in range(rounds)
        for each in chosen.tools
    ]
    tools = tools[:MANY]
    read = timed(lambda: documents(tools), 5)
    changed = timed(after_a_change(tools), 9)
    ready = documents(tools)
    gc.collect()
    built = timed(lambda: ToolIndex(ready), 9)
    index, learned = ToolIndex(ready), Learned()
    queries = list(dict.fromkeys(each.query for each in chosen.cases))
    first = [of_a_query(index, each) for each in queries]
    again = [of_a_query(index, each) for each in queries * 5]
    chosen_words = random.Random(1)
    words = sorted({word for each in queries for word in words_of(each)})
    for number in range(MAX_QUERIES):
        learned.learn(" ".join(chosen_words.sample(words, 8)), tools[number]["id"], 0)
    after = [of_a_query(index, each, learned) for each in queries * 5]
    print(f"\n| {MANY} tools, ms of CPU | median | 99 % |\n|---|--:|--:|")
    print(f"| reading all definitions, once when they arrive | {quantiles(read)} |")
    print(f"| building the index of them | {quantiles(built)} |")
    print(f"| both, when one server of them has changed | {quantiles(changed)} |")
    print(f"| a query, new words | {quantiles(first)} |")
    print(f"| a query, words that were asked before | {quantiles(again)} |")
    print(f"| the same with {len(learned)} learned queries | {quantiles(after)} |")


def shown(tool: Tool) -> int:
    """Bytes of a definition as tools/list has it."""
    keys = ("name", "title", "description", "inputSchema", "annotations")
    return len(json.dumps({key: tool[key] for key in keys if tool.get(key)}, ensure_ascii=False).encode())


def show_sizes(chosen: Set) -> None:
    index, by_id = ToolIndex(documents(chosen.tools)), {each["id"]: each for each in chosen.tools}
    whole = sum(map(shown, chosen.tools))
    print(f"\n| what a model is shown, {chosen.name} | bytes | tokens, about | of the list |\n|---|--:|--:|--:|")
    print(f"| the whole list | {whole} | {whole // BYTES_PER_TOKEN} | 100 % |")
    for most in (5, 10):
        sizes = [sum(shown(by_id[hit.id]) for hit in index.search(each.query, most)) for each in chosen.cases]
        mean = round(statistics.mean(sizes))
        print(f"| an answer with {most}, mean | {mean} | {mean // BYTES_PER_TOKEN} | {100 * mean / whole:.1f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, help="the folder of the public sets")
    parser.add_argument("--catalogue", type=Path, help="what bench/catalogue_corpus.py has fetched")
    arguments = parser.parse_args()
    if arguments.sets:
        recorded = live(arguments.sets)
        show_recall(recorded, tuned=True)
        show_recall(reference(arguments.sets), tuned=True)
        show_learning(recorded, "10 folds by task", by_folds(recorded.cases))
        show_learning(recorded, "second half after the first", by_order(recorded.cases))
        show_times(recorded)
        show_sizes(recorded)
    if arguments.catalogue:
        fetched = catalogue(arguments.catalogue)
        show_recall(fetched, tuned=False)
        show_sizes(fetched)


if __name__ == "__main__":
    main()
