"""Imports the modules of tinker_cookbook that use the SDK; prints, as JSON, which could be imported.

Missing packages are listed; modules that do work when imported (downloads, say) may fail at that.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import tinker


def main(folder: str) -> None:
    sys.path.insert(0, folder)
    imported, failed, missing = [], {}, set()
    for path in sorted(Path(folder, "tinker_cookbook").rglob("*.py")):
        name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        if name.endswith(("_test", ".__main__")) or "tinker" not in path.read_text():
            continue
        try:
            importlib.import_module(name)
            imported.append(name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in ("tinker", "tinkex"):
                failed[name] = str(error)
            missing.add((error.name or "").split(".")[0])
        except (ImportError, AttributeError, TypeError) as error:
            if "Install " in str(error):
                missing.add(name)
            else:
                failed[name] = f"{type(error).__name__}: {error}"
        except Exception:
            missing.add(name)
    print(json.dumps({"imported": imported, "failed": failed, "missing": sorted(missing)}))


assert tinker.__title__ == "tinker"
main(sys.argv[1])
