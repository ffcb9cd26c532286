"""Compare rows of another package's environment with episodes that Gymnasium alone plays.

    python benchmarks/third_party_trial.py highway-v0

The truth is an episode of ``gymnasium.make``, seeded and stepped, never saved or restored. It is
played three times: in a new object, in a second new object, and in another process with another
PYTHONHASHSEED. If these three differ, nothing can be compared with the truth; rows must then still
be equal wherever they are stepped. `benchmarks/third_party.py` calls this script for every id and
explains the outcomes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from third_party_truth import (
    PARTS,
    Journey,
    Odometer,
    first_differences,
    listed,
    parted,
    play_all,
    wrappers_of,
)


class Wrong(Exception):
    """A row that differs from what it should be."""


class Comparison:
    """What one environment's rows are compared with, and how far."""

    def __init__(self, name: str, wrappers: list[Any], plays: list[list[Journey]]) -> None:
        self.name, self.wrappers, self.plays = name, wrappers, plays
        self.journeys, self.marks = plays[0], first_differences(plays)
        self.compared = 0

    def is_luck(self, number: int, step: int) -> bool:
        """Tell whether Gymnasium's own episode is another one, if played more often.

        Or where other episodes were played before: an environment may remember them.
        """
        for count in range(8):
            again = play_all(self.name, self.wrappers, self.journeys, one=count % 2 == 0)
            self.plays.append(again)
            self.marks = first_differences(self.plays)
            if any(at <= step for at in self.marks[number].values()):
                return True
        return False

    def check(self, what: str, number: int, step: int, outcome: tuple[Any, ...]) -> None:
        """Compare an outcome with that of the truth at `step` of journey `number`."""
        marks = self.marks[number]
        solid = min((at for part, at in marks.items() if part != "info"), default=10**9)
        if step >= solid:
            return
        truth = self.journeys[number].outcomes[step]
        if step >= marks.get("info", 10**9):
            outcome = (*outcome[:4], truth[4])
        self.compared += 1
        if (part := parted(outcome, truth)) is not None:
            if self.is_luck(number, step):
                return
            at = PARTS.index(part)
            values = f"{outcome[at]!r:.80}, not {truth[at]!r:.80}"
            raise Wrong(f"{what}: {part} of step {step}: {values}")


def row(result: Any, index: int) -> tuple[Any, ...]:
    """Return one row of a batch's result as an outcome, without what `step_batch` adds to infos."""
    info = {key: result.infos[index][key] for key in result.infos[index]}
    obs = gymnasium_row(result.obs, index)
    flags = bool(result.terminateds[index]), bool(result.truncateds[index])
    return obs, float(result.rewards[index]), *flags, without_extras(info)


def gymnasium_row(tree: Any, index: int) -> Any:
    """Return row `index` of a nest of arrays."""
    if isinstance(tree, dict):
        return {key: gymnasium_row(value, index) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(gymnasium_row(value, index) for value in tree)
    return copy.deepcopy(tree[index])


def without_extras(info: dict[str, Any]) -> dict[str, Any]:
    """Return `info` without the keys that this package adds."""
    return {key: value for key, value in info.items() if key not in ("n_step", "dt")}


def stepped_live(env: Any, comparison: Comparison, number: int) -> list[Any]:
    """Play a journey with `step`; return the state rows before each step."""
    journey = comparison.journeys[number]
    state, obs, info = env.reset(seed=journey.seed)
    comparison.check("reset", number, 0, (obs, 0.0, False, False, without_extras(info)))
    states = [state]
    for step, action in enumerate(journey.actions, 1):
        result = env.step(copy.deepcopy(action), dt=journey.repeat, return_state=True)
        state, obs, reward, terminated, truncated, info = result
        outcome = (obs, reward, terminated, truncated, without_extras(info))
        comparison.check("live", number, step, outcome)
        states.append(state)
    return states[: len(journey.actions)]


Row = tuple[int, int, Any]


def batches(
    env: Any, comparison: Comparison, rows: list[Row], what: str, known: dict[Any, Any]
) -> None:
    """Step rows in batches, compare them with the truth and with what they gave elsewhere."""
    for begin in range(0, len(rows), 48):
        some = rows[begin : begin + 48]
        journeys = comparison.journeys
        actions = [journeys[number].actions[step] for number, step, _ in some]
        counts = np.array([journeys[number].repeat for number, *_ in some])
        states = np.stack([state for *_, state in some])
        result = env.step_batch(copy.deepcopy(actions), states, dt=counts)
        for index, (number, step, _) in enumerate(some):
            outcome = row(result, index)
            comparison.check(what, number, step + 1, outcome)
            before = known.setdefault((number, step), outcome)
            if (part := parted(before, outcome)) is not None:
                raise Wrong(f"{what}: {part} of step {step + 1} is another than in the first batch")


def unseeded(env: Any, others: list[Any]) -> None:
    """Reset without a seed; one row has to give one result, wherever it is stepped."""
    state, *_ = env.reset()
    action = env.action_space.sample()
    results = [each.step_batch([action] * 4, state) for each in [env, *others, env]]
    expected = row(results[0], 0)
    for result in results:
        for index in range(4):
            if (part := parted(expected, row(result, index))) is not None:
                raise Wrong(f"unseeded: {part} of a row that was stepped again")
    obs, reward, terminated, truncated, info = env.step(action)
    live = (obs, reward, terminated, truncated, without_extras(info))
    if (part := parted(expected, live)) is not None:
        raise Wrong(f"unseeded: {part} of a batch, not that of a step")


def sampled(rows: list[Row], most: int, number: int) -> list[Row]:
    """Return at most `most` rows in random order, the deepest among them."""
    order = random.Random(number)
    deepest = max(rows, key=lambda one: one[1])
    return [*order.sample(rows, min(most, len(rows))), deepest]


def compare(
    name: str, wrappers: list[Any], seconds: float, truth: Any, pools: list[tuple[int, bool]]
) -> dict[str, Any]:
    """Make the environment with plangym_like, and compare everything."""
    import plangym_like
    from plangym_like.errors import PlangymError

    comparison = Comparison(name, wrappers, truth)
    journeys = comparison.journeys
    report: dict[str, Any] = {"outcome": "exact", "said": ""}
    begin = time.monotonic()
    kwargs: dict[str, Any] = {"wrappers": wrappers, "remove_time_limit": False}
    made: list[Any] = []

    def make(**more: Any) -> Any:
        made.append(plangym_like.make(name, **kwargs, **more))
        return made[-1]

    try:
        try:
            env = make()
        except Exception as error:
            kind = "refused" if isinstance(error, PlangymError) else "failed"
            return {**report, "outcome": kind, "said": told(error)}
        report |= {"snapshot": env.snapshot, "state_nbytes": int(env.state_nbytes)}
        report |= {"made_s": round(time.monotonic() - begin, 2)}
        if env.exactness != "exact":
            report |= {"outcome": "approximate", "said": env.exactness_note}
            comparison.marks = [{"observation": 0} for _ in journeys]
        rows: list[Row] = []
        for number in range(len(journeys)):
            states = stepped_live(env, comparison, number)
            rows += [(number, step, state) for step, state in enumerate(states)]
        report["steps"] = max((step for _, step, _ in rows), default=-1) + 1
        known: dict[Any, Any] = {}
        check: Callable[..., None] = batches
        if env.exactness != "exact":
            return report
        deadline = time.monotonic() + seconds
        if rows:
            check(env, comparison, sampled(rows, 24, 0), "shuffled", known)
            number = 1
            while time.monotonic() < deadline and number < 12:
                check(env, comparison, sampled(rows, 24, number), "shuffled", known)
                number += 1
            # An environment that is slow to try is tried with fewer workers.
            for workers, isolate in pools if report["made_s"] < 4 else pools[:1]:
                with make(n_workers=workers, isolate=isolate) as other:
                    most = 48 if time.monotonic() < deadline else 16
                    what = f"{workers} workers, isolated: {isolate}"
                    check(other, comparison, sampled(rows, most, 2), what, known)
                    if workers == 2:
                        unseeded(make(), [other])
        report["rows"] = comparison.compared
        parts = {part for mark in comparison.marks for part in mark}
        if parts and report["outcome"] == "exact":
            told_parts = ", ".join(sorted(parts))
            report["said"] = f"Gymnasium itself does not repeat a seeded episode: {told_parts}"
    except Wrong as error:
        report |= {"outcome": "silently wrong", "said": str(error)}
    except PlangymError as error:
        report |= {"outcome": "noticed", "said": told(error)}
    except Exception as error:
        report |= {"outcome": "failed", "said": told(error)}
        traceback.print_exc()
    finally:
        for one in made:
            with contextlib.suppress(Exception):
                one.close()
    return report


def told(error: BaseException) -> str:
    """Return the type of an error and what it says, without addresses and paths."""
    return f"{type(error).__name__}: {error}"


def other_process(name: str, module: str | None, wrapped: bool, path: pathlib.Path) -> int:
    """Play the plans in `path` under another PYTHONHASHSEED; return the exit status."""
    command = [sys.executable, "-W", "ignore", __file__, name, "--play", str(path)]
    command += [] if module is None else ["--module", module]
    if wrapped:
        command.append("--wrapped")
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    return subprocess.call(command, env=environment, stdout=subprocess.DEVNULL)


def judged(name: str, module: str | None, seconds: float) -> dict[str, Any]:
    """Play the truth three times, with and without a user's wrapper, and compare."""
    report: dict[str, Any] = {}
    for wrapped in (False, True):
        wrappers = [*wrappers_of(name), *([Odometer] if wrapped else [])]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plans"
            try:
                first = play_all(name, wrappers, None)
                if not any(journey.actions for journey in first):
                    raise RuntimeError("no random action is legal")
                path.write_bytes(pickle.dumps([(j.seed, j.repeat, j.actions) for j in first]))
                if other_process(name, module, wrapped, path) != 0:
                    raise RuntimeError("it does not play in a second process")
                second = play_all(name, wrappers, first)
                third = pickle.loads(path.read_bytes())
            except Exception as error:
                return {"outcome": "not with Gymnasium", "said": told(error)}
        truth = [first, second, [Journey(*one) for one in third]]
        pools = [(1, True)] if wrapped else [(2, False), (3, True)]
        found = compare(name, wrappers, seconds, truth, pools)
        if wrapped:
            found["said"] = found["said"] and f"with a wrapper: {found['said']}"
        report = found if not report or found["outcome"] != "exact" else report
        if report["outcome"] != "exact":
            break
    return report


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--list", action="store_true", help="print packages and ids, and exit")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of comparing (4)")
    parser.add_argument("--play", type=pathlib.Path, help="play the plans in this file, and exit")
    parser.add_argument("--wrapped", action="store_true", help="with the user's wrapper")
    parser.add_argument("--module", help="import only this module")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = list(listed(options.module))
    if options.list:
        print(json.dumps(found))
        return
    if options.play:
        plans = [Journey(*one) for one in pickle.loads(options.play.read_bytes())]
        wrappers = [*wrappers_of(options.name), *([Odometer] if options.wrapped else [])]
        again = play_all(options.name, wrappers, plans)
        data = [(one.seed, one.repeat, one.actions, one.outcomes) for one in again]
        options.play.write_bytes(pickle.dumps(data))
        return
    print(json.dumps(judged(options.name, options.module, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
