"""Write `tinker_public_pb2.py` and its type stub from `tinker_public.proto`.

Code made by grpcio-tools 1.62.3 runs on every protobuf runtime from 4.25 on; newer generators
demand a runtime as new as themselves.  Usage:

    pip install grpcio-tools==1.62.3 "setuptools<80"
    python tools/make_proto.py [--check]
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
NAME = "tinkex/wire/tinker_public"  # the file's name in the descriptor pool must be our own too
GENERATOR = "1.62.3"


def generate() -> dict[str, str]:
    """The text of each file made from the present .proto file."""
    from grpc_tools import protoc

    if version("grpcio-tools") != GENERATOR:
        raise SystemExit(f"needs grpcio-tools=={GENERATOR}, found {version('grpcio-tools')}")
    with tempfile.TemporaryDirectory() as folder:
        targets = [f"--python_out={folder}", f"--pyi_out={folder}"]
        code = protoc.main(["", f"-I{SOURCE}", *targets, f"{NAME}.proto"])
        if code != 0:
            raise SystemExit(code)
        made = {name: (Path(folder) / name).read_text() for name in (f"{NAME}_pb2.py", f"{NAME}_pb2.pyi")}
        return {name: precise(text) if name.endswith("i") else text for name, text in made.items()}


def precise(stub: str) -> str:
    """A stub whose mappings say what they map; the generator leaves that open."""
    return stub.replace(", _Mapping]", ", _Mapping[str, _Any]]").replace(
        "from typing import ClassVar as _ClassVar", "from typing import Any as _Any, ClassVar as _ClassVar"
    )


def main() -> None:
    """Write the files, or with --check tell whether they are up to date."""
    for name, text in generate().items():
        target = SOURCE / name
        if "--check" not in sys.argv:
            target.write_text(text)
        elif target.read_text() != text:
            raise SystemExit(f"{name} is not what {NAME}.proto makes: run {__file__}")
        print(f"{name} is up to date")


if __name__ == "__main__":
    main()
