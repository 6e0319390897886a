"""Run the benchmarks; exit status 1 where a figure is over its limit."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module

from benchmarks import MODULES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}; all unless stated")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    args = parser.parse_args()
    unknown = [name for name in args.modules if name not in MODULES]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(MODULES)}")
    over = 0
    for module in args.modules or MODULES:
        for figure in import_module(f"benchmarks.{module}").measure():
            over += not figure.ok
            if args.json:
                fields = {
                    "name": figure.name,
                    "value": figure.value,
                    "unit": figure.unit,
                    "limit": figure.limit,
                    "ok": figure.ok,
                }
                print(json.dumps(fields), flush=True)
                continue
            limit = "" if figure.limit is None else f"  (limit {figure.limit:g}{'' if figure.ok else ', OVER'})"
            print(f"{figure.name:36} {figure.value:10.3f} {figure.unit}{limit}  {figure.note}", flush=True)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
