"""What `import tinker` finds in a process whose PYTHONPATH begins with the folder above.

It makes way for this package, or, for an interpreter that does not have it, for the official one.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "tinker":
    del sys.modules[__name__]
    try:
        from tinkex.as_tinker import install
    except ImportError:
        here = Path(__file__).parent.parent
        sys.path[:] = [entry for entry in sys.path if Path(entry) != here]
    else:
        install()
    importlib.import_module("tinker")
