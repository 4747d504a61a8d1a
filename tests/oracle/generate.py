#!/usr/bin/env python3
"""Makes reference cases with PyTorch in float64 (pip install torch numpy safetensors).

    generate.py --list                     lists the cases that are defined
    generate.py ops unary/relu --out DIR   writes cases of a suite to DIR (all, where none is named)
    generate.py --check                    makes the stored cases again from their inputs, and compares
    generate.py --add                      adds the cases that are defined and not yet stored
    generate.py --replace ops unary/relu   draws these stored cases anew
    generate.py --random 200 --out DIR     writes so many random cases of each suite to DIR, or of one suite

Stored cases are those in the files beside this. A case is defined by a line in the table CASES of
generator/SUITE.py, its op by a function there. Names of cases may be patterns: 'unary/*'.
"""

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from generator import blocks, layers, losses, metrics, ops, optimizers, random_cases, training
from generator.make import make, share
from generator.suite import Suite, versions

TABLES = {
    "ops": ops.CASES,
    "layers": layers.CASES + blocks.CASES,
    "losses": losses.CASES,
    "metrics": metrics.CASES,
    "optimizers": optimizers.CASES,
    "training": training.CASES,
}


def main():
    args = arguments()
    print(versions())
    kinds = [args.kind] if args.kind else list(TABLES)
    if args.list:
        return any([show(kind, args.names) for kind in kinds])
    if args.check:
        return any([check(kind, args.names) for kind in kinds])
    if args.add:
        return any([in_place(kind, args.names, False, args.seed) for kind in kinds])
    if args.replace:
        return in_place(args.kind, args.names, True, args.seed)
    if args.random:
        return at_random(kinds, args.random, args.seed or 0, args.out)
    return elsewhere(args.kind, args.names, args.out, args.seed)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=TABLES, help="a suite; default: every suite")
    parser.add_argument("names", nargs="*", help="names of cases, or patterns; default: every case")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--replace", action="store_true")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--random", type=int, metavar="N", help="with --out: N random cases of each suite")
    parser.add_argument("--seed", type=int, help="draws all inputs from it, stored or not (new cases: 0)")
    args = parser.parse_args()
    if sum([args.list, args.check, args.add, args.replace, args.out is not None]) != 1:
        parser.error("one of --list, --check, --add, --replace and --out DIR")
    if args.replace and not args.names or args.out and not args.kind and not args.random:
        parser.error("--out wants a suite or --random, --replace a suite and names")
    if args.random and args.out is None:
        parser.error("--random wants --out DIR")
    return args


def chosen(kind, patterns):
    """Returns the definitions that the patterns name, and stops at a pattern that names none."""
    named = {case.name for case in TABLES[kind]}
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in named):
            sys.exit(f"{kind}: no case {pattern} is defined")
    return [c for c in TABLES[kind] if not patterns or any(fnmatch(c.name, p) for p in patterns)]


def show(kind, patterns):
    stored = Suite.read(kind)
    for case in chosen(kind, patterns):
        place = "" if case.name in stored.cases else "   not in the files"
        print(f"{kind:11} {case.name:32} {case.op}{place}")
    return False


def drawn(kind, case, seed):
    generator, inputs = case.draw(kind, seed)
    return make(case.op, case.attrs, inputs, generator)


def elsewhere(kind, patterns, directory, seed):
    """Writes cases into a directory: with stored inputs where there are some and no seed is given."""
    stored, suite = Suite.read(kind), Suite(kind)
    for case in chosen(kind, patterns):
        if case.name in stored.cases and seed is None:
            suite.put(case, *make(case.op, case.attrs, stored.arrays(case.name, "inputs")))
        else:
            suite.put(case, *drawn(kind, case, seed or 0))
    suite.write(directory)
    print(f"{kind}: {len(suite.cases)} cases written to {directory}")
    return False


def at_random(kinds, count, seed, directory):
    """Writes random cases into a directory."""
    for kind in kinds:
        suite, thrown = random_cases.suite(kind, count, seed)
        suite.write(directory)
        print(f"{kind}: {count} random cases written to {directory}, {thrown} other draws thrown away")
    return False


def in_place(kind, patterns, replace, seed):
    """Writes cases into the files beside this. The tensors of all others keep their bytes."""
    suite = Suite.read(kind)
    cases = [case for case in chosen(kind, patterns) if replace or case.name not in suite.cases]
    for case in cases:
        suite.put(case, *drawn(kind, case, seed or 0))
    if cases:
        suite.write()
    print(f"{kind}: {len(cases)} cases written: {', '.join(case.name for case in cases) or 'none'}")
    return False


def check(kind, patterns):
    """Makes stored cases again and compares. Prints a line, and one for each case that is not as it was."""
    stored = Suite.read(kind)
    defined = {case.name: case for case in TABLES[kind]}
    names = [n for n in stored.cases if not patterns or any(fnmatch(n, p) for p in patterns)]
    failures, worst, same = [], 0.0, 0
    for name in names:
        problem, error = compared(stored, name, defined.get(name))
        if problem:
            failures.append(f"{name}: {problem}")
        else:
            worst, same = max(worst, error), same + (error == 0)
    passed = len(names) - len(failures)
    print(
        f"{kind}: {len(names)} cases, {passed} made again ({same} to the bit), "
        f"worst error {worst:.2g} of its tolerance"
    )
    for failure in failures:
        print(f"  FAILED {failure}")
    for name in defined.keys() - stored.cases.keys():
        print(f"  {name} is not in the files yet (--add)")
    return bool(failures)


def compared(stored, name, definition):
    """Returns (what is wrong or None, the worst error over the tolerance) of a stored case."""
    case, inputs, expect = stored.cases[name], stored.arrays(name, "inputs"), stored.arrays(name, "expect")
    if definition is None:
        return "it is not defined", 0.0
    for part in ("op", "attrs", "tolerance"):
        if getattr(definition, part) != case[part]:
            return f"{part} is defined as {getattr(definition, part)}, stored as {case[part]}", 0.0
    made_inputs, made = make(case["op"], case["attrs"], inputs)
    _, drawn_inputs = definition.draw(stored.name, 0)
    shapes = {role: array.shape for role, array in inputs.items() if role in drawn_inputs}
    if shapes != {role: array.shape for role, array in drawn_inputs.items()}:
        return f"its inputs are defined as other than {shapes}", 0.0
    if made.keys() != expect.keys() or made_inputs.keys() != inputs.keys():
        return f"roles: {sorted(made)} are made, {sorted(expect)} are stored", 0.0
    errors = {role: share(made[role], expect[role], case["tolerance"]) for role in expect}
    worst = max(errors, key=errors.get)
    if errors[worst] > 1:
        return f"{worst} is off by {errors[worst]:.3g} times its tolerance", errors[worst]
    return None, errors[worst]


if __name__ == "__main__":
    sys.exit(main())
